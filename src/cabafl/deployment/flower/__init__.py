"""Flower as the network, for users of `flwr run`: its public interface only."""
