"""The server of a fleet: between the network and the engine."""
