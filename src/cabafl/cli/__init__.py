"""The command line. Commands import what they need when they run: torch takes seconds, and `--help` needs none."""

from cabafl.cli.main import main

__all__ = ["main"]
