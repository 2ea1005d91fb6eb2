"""Asynchronous federated learning: CaBaFL and its rivals, in deterministic virtual time."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabafl.config import Experiment
    from cabafl.runner import Result, simulate

__all__ = ["Experiment", "Result", "simulate"]

_HOMES = {"Experiment": "cabafl.config", "Result": "cabafl.runner", "simulate": "cabafl.runner"}


def __getattr__(name: str) -> Any:
    """Imports on first use: torch takes seconds, and `cabafl --help` should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cabafl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
