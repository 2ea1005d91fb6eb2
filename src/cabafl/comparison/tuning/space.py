"""What a search varies: ``KEY=low..high``, ``KEY=a,b,c``, and the settings that hold for all of its runs."""

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from cabafl.checked import make_method
from cabafl.comparison.sweep import Axis, check_address, check_varied, method_keys, split_setting, split_values
from cabafl.config import Experiment, load_experiment, parse_value
from cabafl.errors import UserError

LOG_RATIO = 100  # a range whose ends differ by this factor or more is searched on a logarithmic scale
DIGITS = 4  # significant digits of a drawn number: readable, and finer than any effect
SCALES = {"log": True, "linear": False}
LENGTH_KEYS = ("run.virtual_time", "run.max_dispatches")  # how long a run is; the rungs are shares of it
_FORMS = "KEY=low..high, KEY=low..high:log or KEY=a,b,c, e.g. training.learning_rate=0.001..0.1"

Value = int | float | str  # of a choice: its text
Point = Mapping[str, Value]  # key -> value


@dataclass(frozen=True)
class Dimension:
    """A key that is searched: numbers between two ends, or choices as they were written."""

    key: str
    given: str  # the value on the command line
    whole: bool = False  # whole numbers only
    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple[str, ...] = ()

    @property
    def first(self) -> Value:
        """Its first value."""
        return self.choices[0] if self.choices else self.low

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values that are checked before the search begins: all choices, or both ends of the range."""
        return self.choices or (self.low, self.high)

    @property
    def size(self) -> float:
        """The number of different values."""
        return len(self.choices) if self.choices else self.high - self.low + 1 if self.whole else math.inf

    def values(self) -> Iterator[Value]:
        """All values of a dimension of finite size."""
        yield from self.choices or range(int(self.low), int(self.high) + 1)

    def rounded(self, value: Value) -> Value:
        """The value with a few significant digits, inside the range."""
        if self.choices or self.whole or isinstance(value, str):
            return value
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Space:
    """The keys that are searched, and the settings of all runs."""

    file: Path | None
    fixed: tuple[str, ...]
    dimensions: tuple[Dimension, ...]

    @property
    def size(self) -> float:
        """The number of different points."""
        return math.prod(dimension.size for dimension in self.dimensions)

    @property
    def first(self) -> dict[str, Value]:
        """The first value of every key."""
        return {dimension.key: dimension.first for dimension in self.dimensions}

    def experiment(self, point: Point) -> Experiment:
        """The experiment at one point. Raises `UserError` if its values do not go together."""
        settings = [f"{key}={value if isinstance(value, str) else repr(value)}" for key, value in point.items()]
        experiment = load_experiment(self.file, [*self.fixed, *settings])
        make_method(experiment)
        return experiment

    def origin(self) -> dict[str, Value] | None:
        """The values that the experiment has without the search; None unless all of them are inside."""
        try:
            experiment = self.experiment({})
        except UserError:
            return None
        point: dict[str, Value] = {}
        for dimension in self.dimensions:
            value = _current(experiment, dimension.key)
            if dimension.choices:
                text = next((text for text in dimension.choices if parse_value(text) == value), None)
                if text is None:
                    return None
                point[dimension.key] = text
            elif _number(value) and dimension.low <= value <= dimension.high:
                point[dimension.key] = value
            else:
                return None
        return point


def parse_space(file: Path | None, settings: Sequence[str]) -> Space:
    """Reads and checks the settings of `cabafl tune`. Raises `UserError` unless at least one key is searched."""
    given: dict[str, str] = {}
    for text in settings:
        key, value = split_setting(text, _FORMS)
        if key in given:
            raise UserError(f"{key}: given twice; accepted: once, with all its values")
        given[key] = value
    name = given.get("method.name") or load_experiment(file).method.name
    if len(split_values("method.name", name)) > 1:
        _check_searchable("method.name", name, [])
    accepted = {name: method_keys(name)}
    dimensions, fixed = [], []
    for key, value in given.items():
        check_address(Axis(key, (), ()), accepted)
        own = f"method.{key.removeprefix(name + '.')}" if key.startswith(f"{name}.") else key
        if own != key and own in given:
            raise UserError(f"{key}: the same key as {own}; accepted: one of them")
        dimension = _dimension(own, value, name)
        if dimension is None:
            fixed.append(f"{own}={value}")
        else:
            dimensions.append(dimension)
    if not dimensions:
        raise UserError(f"tune: no key is searched; accepted: at least one of {_FORMS}")
    space = Space(file, tuple(fixed), tuple(dimensions))
    _check_ends(space)
    return space


def _dimension(key: str, given: str, method: str) -> Dimension | None:
    """The values of a searched key; None if the key has one value."""
    kind = _number_kind(key, method)
    low, dots, high = given.partition("..")
    if dots and (kind is not None or (_as_number(low) is not None and _as_number(high.partition(":")[0]) is not None)):
        _check_searchable(key, given, [])
        if kind is None:  # an unknown key, or one that takes no number; either says so
            make_method(load_experiment(None, [f"method.name={method}", f"{key}={low}"]))
        return _range(key, given, kind)
    texts = split_values(key, given)
    if len(texts) == 1:
        return None
    _check_searchable(key, given, [parse_value(text) for text in texts])
    return Dimension(key, given, choices=tuple(texts))


def _check_searchable(key: str, given: str, values: Sequence[Any]) -> None:
    if key == "seed":
        raise UserError(
            f"seed = {given}: seeds are not searched; accepted: one seed, and --seeds for a mean over several"
        )
    if key == "method.name":
        raise UserError(f"method.name = {given}: methods are not searched; accepted: one method, or `cabafl compare`")
    if key in LENGTH_KEYS:
        raise UserError(f"{key} = {given}: the rungs are shares of it; accepted: one value")
    check_varied(key, given, values)


def _range(key: str, given: str, kind: type[int] | type[float] | None) -> Dimension:
    ends, colon, scale = given.partition(":")
    low, high = (_as_number(text) for text in ends.split("..", 1))
    if kind is None:
        raise UserError(f"{key} = {given}: not a key with a number; accepted: choices, {key}=a,b,c")
    if low is None or high is None:
        raise UserError(f"{key} = {given}: not a range; accepted: two numbers, {key}=low..high")
    if kind is int and not (isinstance(low, int) and isinstance(high, int)):
        raise UserError(f"{key} = {given}: the key takes whole numbers; accepted: e.g. {key}=1..20")
    if colon and scale.strip() not in SCALES:
        raise UserError(f"{key} = {given}: unknown scale {scale.strip()!r}; accepted: {', '.join(SCALES)}")
    if low >= high:
        raise UserError(f"{key} = {given}: an empty range; accepted: low..high with low below high")
    log = SCALES[scale.strip()] if colon else low > 0 and high >= LOG_RATIO * low * (1 - 1e-9)
    if log and low <= 0:
        raise UserError(f"{key} = {given}: a logarithmic scale begins above 0; accepted: {key}={ends}:linear")
    return Dimension(key, given, kind is int, low, high, log)


def _check_ends(space: Space) -> None:
    """Raises `UserError` unless each end of each range, and each choice, is a valid experiment."""
    for dimension in space.dimensions:
        for value in dimension.ends:
            space.experiment({**space.first, dimension.key: value})
    if space.experiment(space.first).run.virtual_time is None:
        raise UserError("run.virtual_time: not set; accepted: a number of seconds, because the rungs are shares of it")


def _as_number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            value = kind(text.strip())
        except ValueError:
            continue
        return value if math.isfinite(value) else None
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_kind(key: str, method: str) -> type[int] | type[float] | None:
    """Whether a key takes numbers, and which; None also for an unknown key."""
    first, *rest = key.split(".")
    model: Any = Experiment
    parts = [first, *rest]
    if first == "method":
        model = type(make_method(Experiment.model_validate({"method": {"name": method}})).parameters)
        parts = rest
    for part in parts:
        fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
        model = fields[part].annotation if part in fields else None
    return _kind_of(model)


def _kind_of(annotation: Any) -> type[int] | type[float] | None:
    """``float`` if the type accepts numbers with a fraction, ``int`` if only whole ones, at its top level."""
    if annotation in (int, float):
        return annotation  # type: ignore[no-any-return]
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [_kind_of(part) for part in get_args(annotation)]
        return float if float in kinds else int if int in kinds else None
    return _kind_of(get_args(annotation)[0]) if get_origin(annotation) is Annotated else None


def _current(experiment: Experiment, key: str) -> Any:
    """The value of a key, defaults included."""
    first, *rest = key.split(".")
    value: Any = experiment
    if first == "method" and rest != ["name"]:
        value, first, rest = make_method(experiment).parameters, rest[0], rest[1:]
    for part in (first, *rest):
        value = getattr(value, part, None)
    return value
