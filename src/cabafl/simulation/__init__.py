"""The engine in virtual time."""
