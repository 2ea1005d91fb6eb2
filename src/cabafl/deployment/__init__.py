"""Runs the methods on real devices, through Flower."""
