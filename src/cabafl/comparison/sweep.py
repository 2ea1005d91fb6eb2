"""A sweep: every combination of the values of some keys, for one method or several.

A key has one value, which then holds for all runs, or several, which are swept. ``section.key`` applies to all methods,
``method.key`` to those that have this key, ``fedasync.key`` to that method. A method without a swept key runs once per
combination of the other keys, as a reference.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from cabafl import methods
from cabafl.checked import make_method
from cabafl.comparison.grid import GridCase
from cabafl.comparison.variants import method_variants
from cabafl.config import EXECUTION_KEYS, Experiment, MethodSection, load_experiment, parse_value
from cabafl.errors import UserError
from cabafl.reporting.sweep import Sweep, SweepPoint, value_text
from cabafl.validation import nearest

MAX_RUNS = 5000
MAX_NAME = 100  # characters of a folder's name before the seed
# Where and how the work is done; ``run.wall_time`` and ``[deploy]`` are for real devices.
_NEUTRAL = {"run.device", "run.wall_time", *(f"run.{key}" for key in EXECUTION_KEYS)}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')


@dataclass(frozen=True)
class Axis:
    """A key and its values, in order; ``texts`` are the values as written."""

    key: str
    texts: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def swept(self) -> bool:
        """Whether there are several values."""
        return len(self.values) > 1

    @property
    def section(self) -> str:
        """The first part of the key."""
        return self.key.partition(".")[0]

    @property
    def shared(self) -> bool:
        """Whether the key belongs to the experiment and not to a method."""
        return self.key == "method.name" or (self.section in Experiment.model_fields and self.section != "method")


Combination = list[tuple[Axis, int]]  # each axis with the place of its value


class SweepPlan(NamedTuple):
    """The cases of a sweep, and what they vary, for the report."""

    cases: list[GridCase]
    sweep: Sweep
    seed: int


def plan_sweep(file: Path | None, settings: Sequence[str], names: str | None, seeds: int) -> SweepPlan:
    """Checks a sweep completely: every combination is a valid experiment. Raises `UserError` otherwise.

    ``names`` are the methods as in ``--methods``; None: the method of the experiment.
    """
    axes = parse_axes(settings)
    first = [f"{axis.key}={axis.texts[0]}" for axis in axes if axis.shared]
    base = load_experiment(file, first)
    in_file = load_experiment(file, [text for text in first if not text.startswith("method.")]).method
    if names is None:
        method_keys(base.method.name)  # an unknown method is an error of method.name, not of --methods
    variants = method_variants(names or base.method.name, base, [], in_file)
    own = _own_axes(axes, variants)
    _check_size(own, seeds)
    short = short_names([axis.key for axis in axes if axis.swept])
    cases, points = [], {}
    for label, keys in variants.items():
        for chosen in _combinations(own[label]):
            varied = {short[axis.key]: axis.values[place] for axis, place in chosen if axis.swept}
            case = _case(file, label, keys, chosen, varied, several=len(variants) > 1)
            cases.append(case)
            points[case.label] = SweepPoint(label, varied)
    swept = {short[axis.key]: axis.key for axis in axes if axis.swept}
    return SweepPlan(cases, Sweep(swept, points), base.seed)


def parse_axes(settings: Sequence[str]) -> list[Axis]:
    """Reads ``KEY=v1,v2`` settings. Raises `UserError` unless at least one key has several values."""
    axes: dict[str, Axis] = {}
    for text in settings:
        axis = _axis(text)
        if axis.key in axes:
            raise UserError(f"{axis.key}: given twice; accepted: once, with all its values")
        axes[axis.key] = axis
    if not any(axis.swept for axis in axes.values()):
        raise UserError("sweep: no key has several values; accepted: at least one KEY=v1,v2, e.g. method.k=5,10,20")
    return list(axes.values())


def _axis(text: str) -> Axis:
    key, given = split_setting(text, "section.key=v1,v2, e.g. data.beta=0.1,0.5")
    texts = split_values(key, given)
    values = [parse_value(item) for item in texts]
    if len(texts) > 1:
        _check_swept(key, given, values)
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            order = sorted(range(len(values)), key=values.__getitem__)
            texts, values = [texts[place] for place in order], [values[place] for place in order]
    return Axis(key, tuple(texts), tuple(values))


def split_setting(text: str, accepted: str) -> tuple[str, str]:
    """Key and value of ``section.key=value``; raises `UserError` if it is not of this form."""
    key, equals, given = (part.strip() for part in text.partition("="))
    if not equals or not key or not all(key.split(".")):
        raise UserError(f"{text!r}: not a setting; accepted: {accepted}")
    if "." not in key and key != "seed":
        raise UserError(f"{key}: not a key; accepted: section.key, e.g. data.beta, method.k")
    return key, given


def split_values(key: str, text: str) -> list[str]:
    """Splits at the commas outside brackets and quotes. Raises `UserError` for an empty value or too many."""
    items, start, place, depth = [], 0, 0, 0
    while place < len(text):
        sign = text[place]
        string = _STRING.match(text, place) if depth or not text[start:place].strip() else None
        if sign in "\"'" and string is None and (depth or not text[start:place].strip()):
            raise UserError(f"{key} = {text}: a quote is not closed")
        if sign == "," and depth == 0:
            items.append(text[start:place].strip())
            start = place + 1
        depth = max(0, depth + (sign in "[{") - (sign in "]}"))
        place = string.end() if string else place + 1
    items.append(text[start:].strip())
    if depth:
        raise UserError(f"{key} = {text}: a bracket is not closed")
    if not all(items):
        what = "no value" if items == [""] else "an empty value"
        raise UserError(f"{key} = {text}: {what}; accepted: values separated by commas, e.g. {key}=1,2")
    if len(items) > MAX_RUNS:
        raise UserError(f"{key}: {len(items):,} values; accepted: at most {MAX_RUNS:,} runs")
    return items


def _check_swept(key: str, text: str, values: Sequence[Any]) -> None:
    """Raises `UserError` for a key that cannot be swept, or a value that is there twice."""
    if key == "seed":
        raise UserError(
            f"seed = {text}: seeds are not swept; accepted: --seeds {len(values)}, which count up from seed"
        )
    if key == "method.name":
        raise UserError(f"method.name = {text}: methods are not swept; accepted: --methods {text}")
    check_varied(key, text, values)


def check_varied(key: str, text: str, values: Sequence[Any]) -> None:
    """Raises `UserError` for a key that changes no result of a simulation, or a value that is there twice."""
    if key in _NEUTRAL or key.startswith("deploy."):
        raise UserError(f"{key} = {text}: changes no result; accepted: keys that do, or one value")
    written = [value_text(value) for value in values]
    twice = next((each for place, each in enumerate(written) if each in written[:place]), None)
    if twice is not None:
        raise UserError(f"{key} = {text}: {twice} is there twice; accepted: different values")


def _own_axes(axes: Sequence[Axis], variants: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Axis]]:
    """Label of a method -> the axes that apply to it. Raises `UserError` for an axis that applies to none."""
    accepted = {str(keys["name"]): method_keys(str(keys["name"])) for keys in variants.values()}
    for axis in axes:
        check_address(axis, accepted)
    own: dict[str, list[Axis]] = {}
    for label, keys in variants.items():
        name = str(keys["name"])
        special = {axis.key.removeprefix(f"{name}.") for axis in axes if axis.key.startswith(f"{name}.")}
        general = set(accepted[name]) - special if len(accepted) > 1 else None
        own[label] = [axis for axis in axes if axis.shared or _applies(axis, name, general, special)]
    return own


def _applies(axis: Axis, name: str, general: set[str] | None, special: set[str]) -> bool:
    """Whether a key applies to the method ``name``: one of its ``special`` ones, or ``method.key`` with one of the
    ``general`` ones. None: any, since a wrong one is an error if there is no other method."""
    if axis.key.startswith(f"{name}."):
        return True
    key = axis.key.removeprefix("method.")
    return axis.section == "method" and (key in general if general is not None else key not in special)


def check_address(axis: Axis, accepted: Mapping[str, Sequence[str]]) -> None:
    """Raises `UserError` if the key belongs neither to the experiment nor to a method of the sweep."""
    names = list(accepted)
    owner = next((name for name in names if axis.key.startswith(f"{name}.")), None)
    if owner is not None and axis.key == f"{owner}.name":
        raise UserError(f"{axis.key}: not a key of a method; accepted: {', '.join(accepted[owner])}")
    if axis.shared or owner is not None:
        return
    if axis.section == "method":
        key, known = axis.key.partition(".")[2], sorted({key for keys in accepted.values() for key in keys})
        if len(names) > 1 and key not in known:
            raise UserError(f"{axis.key}: none of {', '.join(names)} has this key{nearest(key, known)}")
    elif axis.section in methods.NAMES:
        raise UserError(f"{axis.key}: a setting for a method that does not run; accepted: {', '.join(names)}")
    else:
        sections = [*Experiment.model_fields, *names]
        sections.remove("seed")
        hint = nearest(axis.section, sections)
        raise UserError(f"{axis.key}: unknown section{hint}; accepted: {', '.join(sections)}")


def method_keys(name: str) -> list[str]:
    """The keys of a method; raises `UserError` if there is no such method."""
    experiment = Experiment(method=MethodSection(name=name))
    return list(type(make_method(experiment).parameters).model_fields)


def _method_key(axis: Axis, name: str) -> str:
    prefix = f"{name}." if axis.key.startswith(f"{name}.") else "method."
    return axis.key.removeprefix(prefix)


def _check_size(own: Mapping[str, Sequence[Axis]], seeds: int) -> None:
    runs = seeds * sum(math.prod(len(axis.values) for axis in axes) for axes in own.values())
    if runs > MAX_RUNS:
        raise UserError(f"sweep: {runs:,} runs; accepted: at most {MAX_RUNS:,}, with fewer values, methods or seeds")


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Key -> its last part, or the whole key if another one has the same last part."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: key if last.count(name) > 1 else name for key, name in zip(keys, last, strict=True)}


def _combinations(axes: Sequence[Axis]) -> Iterator[Combination]:
    """Every combination; the last axis varies fastest."""
    for places in itertools.product(*(range(len(axis.values)) for axis in axes)):
        yield list(zip(axes, places, strict=True))


def _case(
    file: Path | None,
    method: str,
    keys: Mapping[str, Any],
    chosen: Combination,
    varied: Mapping[str, Any],
    several: bool,
) -> GridCase:
    """Builds and checks the experiment of one combination."""
    name = str(keys["name"])
    settings = [f"{axis.key}={axis.texts[place]}" for axis, place in chosen if axis.shared]
    own = {_method_key(axis, name): axis.values[place] for axis, place in chosen if not axis.shared}
    experiment = load_experiment(file, settings).model_copy(update={"method": MethodSection(**{**keys, **own})})
    make_method(experiment)
    texts = {key: value_text(value) for key, value in varied.items()}
    label = ", ".join(f"{key} = {text}" for key, text in texts.items())
    if several:
        label = f"{method} ({label})" if label else method
    return GridCase(label or method, _folder_name(method, texts), experiment)


def _folder_name(method: str, texts: Mapping[str, str]) -> str:
    """``cabafl-k5-beta0.1``; other signs are replaced, and a checksum then keeps names different."""
    exact = "-".join([method, *(f"{key}{text}" for key, text in texts.items())])
    name = re.sub(r"[^\w.+-]+", "_", exact, flags=re.ASCII)[:MAX_NAME]
    return name if name == exact else f"{name}-{crc32(exact.encode()):08x}"
