"""The method that an experiment names, with its own keys checked. Does not load torch: lists and `cabafl config` stay
quick."""

from collections.abc import Sequence
from pathlib import Path
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
    return cls, validated(cls.Parameters, experiment.method.parameters, "method", owner=name)


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
