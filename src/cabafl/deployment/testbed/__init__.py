"""A whole fleet on one machine."""
