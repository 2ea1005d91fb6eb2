"""Runs from start to finish, on either clock."""
