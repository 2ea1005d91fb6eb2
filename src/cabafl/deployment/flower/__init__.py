"""Flower as the network between server and devices."""
