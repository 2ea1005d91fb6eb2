"""The server of a fleet: connects the network with the engine."""
