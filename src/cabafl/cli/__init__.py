"""The command line. Commands import what they need when they run: torch takes seconds, which `--help` can save."""

from cabafl.cli.main import main

__all__ = ["main"]
