"""The command line. Commands import what they need when they run, so that help is instant."""

from cabafl.cli.main import main

__all__ = ["main"]
