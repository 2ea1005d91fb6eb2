"""The same methods on real devices, through Flower."""
