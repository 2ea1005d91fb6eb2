"""The method that an experiment names, with its own keys checked. Does not load torch: lists and `cabafl config` stay
quick."""

from collections.abc import Sequence
from inspect import getattr_static, signature
from pathlib import Path
from types import FunctionType
from typing import Any

from cabafl import methods
from cabafl.config import Experiment, apply_override, load_experiment
from cabafl.errors import UserError
from cabafl.methods.base import Method, Parameters
from cabafl.own_code import blaming, reason
from cabafl.toml import read_toml
from cabafl.validation import unknown, validated


def make_method(experiment: Experiment) -> Method:
    """The method with its own keys checked."""
    cls, parameters = find_method(experiment)
    with blaming({"method.name": experiment.method.name}):
        return cls(parameters)


def find_method(experiment: Experiment) -> tuple[type[Method], Parameters]:
    """The class of the method, and its own keys, checked."""
    name = experiment.method.name
    if ":" not in name and name not in methods.NAMES:
        raise unknown("method.name", name, [*methods.NAMES, "my_module:MyMethod"])
    try:
        cls = methods.find(name)
    except (Exception, SystemExit) as error:  # the user's module may do anything
        raise UserError(f"method.name = {name!r}: cannot be used: {reason(error)}") from error
    if ":" in name:
        _check_calls(name, cls)
    return cls, validated(cls.Parameters, experiment.method.parameters, "method", owner=name)


# What is called of a method, and with how many arguments.
_CALLS = {"__init__": 1, "start": 1, "on_upload": 2, "on_loss": 3, "on_ready": 2, "on_features": 2, "on_timer": 2}
_CALLS |= {"on_idle": 2, "on_end": 1}


def _check_calls(name: str, cls: type[Method]) -> None:
    """Raises `UserError` for a class of the user that an engine could not call: only the run would show it, and not
    where the mistake is."""
    missing = [call for call in ("start", "on_upload", "on_loss") if getattr(cls, call) is getattr(Method, call)]
    missing += [] if hasattr(cls, "name") else ["name"]
    if missing:
        raise UserError(f"method.name = {name!r}: the class has no {', '.join(missing)}; accepted: one that has")
    for call, count in _CALLS.items():
        try:
            if isinstance(getattr_static(cls, call), FunctionType):
                signature(getattr(cls, call)).bind(None, *[None] * count)
        except TypeError as error:
            calls = f"is called with {count} {'argument' if count == 1 else 'arguments'} besides self"
            raise UserError(f"method.name = {name!r}: its {call} {calls}: {error}") from None


def load_checked(file: Path | None, settings: Sequence[str]) -> Experiment:
    """As `load_experiment`, with the keys of the method checked, too. An error about a key of the file names it."""
    try:
        experiment = load_experiment(file, settings)
    except UserError as error:
        _check_bare_keys(file, settings)
        raise UserError("; ".join([str(error), *_wrong_in_method(file, settings)])) from None
    try:
        find_method(experiment)
    except UserError:
        if file is not None:
            _check_file(file)
        raise
    return experiment


def _check_bare_keys(file: Path | None, settings: Sequence[str]) -> None:
    """Raises `UserError` for a key of the method that is written without its table."""
    bare = [text for text in settings if "." not in text.partition("=")[0]]
    try:
        _, known = find_method(load_experiment(file, [text for text in settings if text not in bare]))
    except UserError:
        return  # there is more that is wrong
    for text in bare:
        key, _, value = (part.strip() for part in text.partition("="))
        if key in type(known).model_fields:
            raise UserError(f"{key} = {value}: unknown key, did you mean 'method.{key}'?; accepted: section.key=value")


def _wrong_in_method(file: Path | None, settings: Sequence[str]) -> list[str]:
    """What is wrong with the keys of the method, in an experiment of which other tables are wrong, too."""
    named = any(text.partition("=")[0].strip() == "method.name" for text in settings)
    try:
        values: dict[str, Any] = {"method": {} if file is None or named else read_toml(file).get("method", {})}
        for text in settings:
            if text.startswith("method."):
                apply_override(values, text)
        experiment = validated(Experiment, values)
    except UserError:
        return []  # that is what the first error is about
    try:
        find_method(experiment)
    except UserError as error:
        return [str(error)]
    return []


def _check_file(file: Path) -> None:
    try:
        find_method(load_experiment(file))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
