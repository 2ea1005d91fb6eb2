"""What runs on a device: it receives models, trains them and describes its data."""
