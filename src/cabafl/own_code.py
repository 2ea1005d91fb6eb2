"""The user's own code, which a setting names as ``package.module:name``: whatever is wrong with it, at import or when
it is called, becomes one line that names the setting."""

import importlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from cabafl.errors import RunStopped, UserError

LONGEST = 300  # characters of a reason
_LISTENERS = "cabafl.lifecycle"  # calls whoever listens to a run, whose errors are their own


def find_own(key: str, name: str) -> Any:
    """Imports ``package.module:name``, the value of the setting ``key``; raises `UserError` if that fails."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the module may do anything
        raise UserError(f"{key} = {name!r}: cannot be imported: {reason(error)}") from error


@contextmanager
def blaming(named: Mapping[str, str]) -> Iterator[None]:
    """Inside the context, an error of the user's code becomes a `UserError` about the setting that names the code.
    ``named``: setting -> its value; values without a colon name nothing."""
    try:
        yield
    except (UserError, RunStopped):
        raise
    except (Exception, SystemExit) as error:
        key = _blamed(error, {name.partition(":")[0]: key for key, name in named.items() if ":" in name})
        if key is None:
            raise
        raise UserError(f"{key} = {named[key]!r}: fails: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The error in one line, and where in the user's code it comes from."""
    plain = isinstance(error, ImportError | AttributeError | OSError | SyntaxError) and str(error)
    text = " ".join((str(error) if plain else f"{type(error).__name__}: {error}").split()).removesuffix(":")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _of_library(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return text[:LONGEST] + where


def _of_library(file: str) -> bool:
    """Whether a file is of Python, of an installed package or of this one."""
    path = Path(file)
    return (
        file.startswith("<frozen")
        or "site-packages" in path.parts
        or path.is_relative_to(Path(__file__).parent)
        or path.is_relative_to(Path(importlib.__file__).parents[1])
    )


def _blamed(error: BaseException, settings: Mapping[str, str]) -> str | None:
    """The setting of the innermost module among those of ``settings`` (module -> setting) that the error passed; None
    if there is none, or a listener of the run raised it."""
    found, trace = None, error.__traceback__
    for module in _modules(trace):
        if module.startswith(_LISTENERS):
            found = None
        elif module in settings:
            found = settings[module]
    return found


def _modules(trace: TracebackType | None) -> Iterator[str]:
    """The module of each frame, from the outermost."""
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
