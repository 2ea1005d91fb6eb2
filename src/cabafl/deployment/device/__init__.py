"""What runs on a device: receives models, trains them, computes features of its data."""
