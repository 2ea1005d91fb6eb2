"""Types of settings that accept more than one kind of value; a wrong value is an error that says what is accepted."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cabafl.names import FUNCTION, LOGGERS
from cabafl.power import BOARDS, BoardName
from cabafl.tiers import CONFIGS, TIERS

MOST_DEVICES = 10_000_000


def _auto_or_count(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_DEVICES):
        return value
    raise ValueError(f"accepted: 'auto' or a whole number from 1 to {MOST_DEVICES:,}")


def _processor(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"cpu|cuda(:\d+)?", value):
        return value
    word = str(value).lower()
    hint = "cuda" if word.startswith(("cuda", "gpu", "nvidia")) else "cpu" if word.startswith("cpu") else ""
    raise ValueError(f"unknown{hint and f', did you mean {hint!r}?'}; accepted: cpu, cuda, cuda:N with N from 0")


def _auto_or_workers(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1024):
        return value
    raise ValueError("accepted: 'auto' (one per core), 0 (no worker processes) or a number of worker processes")


def _counts_or_config(value: Any) -> Any:
    if isinstance(value, str):
        if value in CONFIGS:
            return value
    elif isinstance(value, Mapping) and all(
        name in TIERS and isinstance(n, int) and n >= 0 for name, n in value.items()
    ):
        return dict(value)
    raise ValueError(f"accepted: {', '.join(CONFIGS)} or a table of counts for {', '.join(TIERS)}")


def _watts_by_tier(value: Any) -> Any:
    if isinstance(value, Mapping) and all(
        name in TIERS and _is_number(w) and 0 <= w < math.inf for name, w in value.items()
    ):
        return {name: float(w) for name, w in value.items()}
    raise ValueError(f"accepted: a table of watts (0 or more) for {', '.join(TIERS)}")


def _board_by_tier(value: Any) -> Any:
    if isinstance(value, Mapping) and all(name in TIERS for name in value):
        return dict(value)
    raise ValueError(f"accepted: a table of boards ({', '.join(BOARDS)}) for {', '.join(TIERS)}")


def _plain_options(value: Any) -> Any:
    if isinstance(value, Mapping) and all(
        isinstance(each, bool | int | float | str) or (isinstance(each, list) and all(map(_is_number, each)))
        for each in value.values()
    ):
        return dict(value)
    raise ValueError("accepted: a table of numbers, strings, true or false, and lists of numbers")


def _auto_or_positive(value: Any) -> Any:
    if value in ("auto", None) or (_is_number(value) and 0 < value < math.inf):
        return value if isinstance(value, str) or value is None else float(value)
    raise ValueError("accepted: 'auto', 'none' or a number above 0")


def _auto_or_share(value: Any) -> Any:
    if value in ("auto", None) or (_is_number(value) and 0 < value <= 1):
        return value if isinstance(value, str) or value is None else float(value)
    raise ValueError("accepted: 'auto', 'none' or a number above 0, at most 1")


def _logger_names(value: Any) -> Any:
    """A list, or its names in one word, as on the command line."""
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    accepted = f"accepted: a list of {', '.join(LOGGERS)} and my_module:Class, each once"
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(accepted)
    for name in names:
        if name not in LOGGERS and not FUNCTION.fullmatch(name):
            raise ValueError(f"{name!r} is unknown; {accepted}")
    if len(set(names)) < len(names):
        raise ValueError(accepted)
    return list(names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


Workers = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_workers)]
Devices = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_count)]
TierCounts = Annotated[str | dict[str, int], BeforeValidator(_counts_or_config)]
TierPower = Annotated[dict[str, BoardName], BeforeValidator(_board_by_tier)]
TierWatts = Annotated[dict[str, float], BeforeValidator(_watts_by_tier)]
Watts = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
Processor = Annotated[str, BeforeValidator(_processor)]
Width = Annotated[float, Field(gt=0, le=8)]
AutoPositive = Annotated[Literal["auto"] | float | None, BeforeValidator(_auto_or_positive)]
AutoShare = Annotated[Literal["auto"] | float | None, BeforeValidator(_auto_or_share)]
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
LoggerNames = Annotated[list[str], BeforeValidator(_logger_names)]
Options = Annotated[dict[str, Any], BeforeValidator(_plain_options)]
