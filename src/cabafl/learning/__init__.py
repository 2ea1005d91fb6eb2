"""What happens on a device: flat weights, local training, features, evaluation."""
