"""What a device computes: flat weights, local training, features, evaluation."""
