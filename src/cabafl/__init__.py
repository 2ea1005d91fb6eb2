"""Asynchronous federated learning: CaBaFL and the methods it is compared with, simulated and on real devices."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabafl.comparison.functions import Comparison, compare, sweep
    from cabafl.config import Experiment, load_experiment
    from cabafl.errors import UserError
    from cabafl.exporting.model import Exported, export_model
    from cabafl.learning.learning_task import LearningTask, TaskMetric
    from cabafl.lifecycle.finishing import finish
    from cabafl.lifecycle.loading import LoadedModel, load_model
    from cabafl.lifecycle.simulate import Result, resume, simulate
    from cabafl.loggers.base import LoggedRun, Logger
    from cabafl.methods.base import Job, Method, Objective, Parameters, Server, Upload
    from cabafl.reporting.report import build_report
    from cabafl.reporting.runs import load_runs

    __version__: str

__all__ = [
    "Comparison",
    "Experiment",
    "Exported",
    "Job",
    "LearningTask",
    "LoadedModel",
    "LoggedRun",
    "Logger",
    "Method",
    "Objective",
    "Parameters",
    "Result",
    "Server",
    "TaskMetric",
    "Upload",
    "UserError",
    "__version__",
    "build_report",
    "compare",
    "export_model",
    "finish",
    "load_experiment",
    "load_model",
    "load_runs",
    "resume",
    "simulate",
    "sweep",
]

_HOMES = {
    "cabafl.comparison.functions": ("Comparison", "compare", "sweep"),
    "cabafl.config": ("Experiment", "load_experiment"),
    "cabafl.errors": ("UserError",),
    "cabafl.exporting.model": ("Exported", "export_model"),
    "cabafl.learning.learning_task": ("LearningTask", "TaskMetric"),
    "cabafl.lifecycle.finishing": ("finish",),
    "cabafl.lifecycle.loading": ("LoadedModel", "load_model"),
    "cabafl.lifecycle.simulate": ("Result", "resume", "simulate"),
    "cabafl.loggers.base": ("LoggedRun", "Logger"),
    "cabafl.methods.base": ("Job", "Method", "Objective", "Parameters", "Server", "Upload"),
    "cabafl.reporting.report": ("build_report",),
    "cabafl.reporting.runs": ("load_runs",),
}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use: torch takes seconds, and `cabafl --help` does not need it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("cabafl")
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(home), name)
    raise AttributeError(f"module 'cabafl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
