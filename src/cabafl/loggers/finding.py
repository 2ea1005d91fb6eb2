"""Finds the loggers that ``run.log`` names, before a run begins."""

import importlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from cabafl.errors import UserError
from cabafl.loggers.base import Logger

Maker = Callable[[], Logger]

_BUILT_IN = {  # name: module and class here, library that it needs
    "tensorboard": ("tensorboard_files:TensorBoardLogger", "tensorboard"),
    "mlflow": ("mlflow_store:MlflowLogger", "mlflow"),
    "wandb": ("wandb_run:WandbLogger", "wandb"),
}


def find_loggers(names: Sequence[str], writes: bool = True) -> dict[str, Maker]:
    """Name -> what makes the logger; ``writes``: the run has a folder. Libraries are imported later, by the logger's
    own thread.

    Raises `UserError` for a library that is not installed, a class that cannot be used or a folder that is missing.
    """
    return {name: _own(name) if ":" in name else _built_in(name, writes) for name in names}


def _built_in(name: str, writes: bool) -> Maker:
    home, library = _BUILT_IN[name]
    if find_spec(library) is None:
        raise UserError(f"run.log = {name!r}: needs {library}: pip install 'cabafl[{name}]'")
    if not writes:
        raise UserError(f"run.log = {name!r}: needs a run folder (out), in which it keeps its files")
    module, _, attribute = home.partition(":")

    def make() -> Logger:
        made: Logger = getattr(importlib.import_module(f"cabafl.loggers.{module}"), attribute)()
        return made

    return make


def _own(name: str) -> Maker:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's module raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"run.log = {name!r}: cannot be imported: {reason}") from None
    if not (isinstance(found, type) and issubclass(found, Logger)):
        raise UserError(f"run.log = {name!r}: is not a subclass of cabafl.Logger; accepted: one that is")
    return found
