"""Real devices, through Flower: keys and certificates, configuration, processes."""
