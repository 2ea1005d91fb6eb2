"""The parameters of a request; a bad one is one line."""

import math
from collections.abc import Collection
from typing import overload

from starlette.requests import Request

from cabafl.errors import UserError


class Query:
    """Reads parameters; raises `UserError` for a value that is not accepted."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def text(self, name: str, default: str | None = None) -> str:
        """A text of at most 200 letters."""
        value = self.request.query_params.get(name, default)
        if value is None or len(value) > 200:
            raise UserError(f"{name}: missing or too long; accepted: a name")
        return value

    def names(self, name: str, accepted: Collection[str]) -> list[str]:
        """Names separated by commas; default: all."""
        value = self.request.query_params.get(name)
        found = list(accepted) if not value else value[:1000].split(",")
        if unknown := [each for each in found if each not in accepted]:
            raise UserError(f"{name} = {unknown[0]!r:.100}: accepted: {', '.join(accepted)}")
        return found

    def time(self) -> float | None:
        """A time of the run; None: now."""
        return self.number("time", None, 0.0, 1e300)

    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        """A number within bounds."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        try:
            value = float(text[:50])
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise UserError(f"{name} = {text!r:.100}: accepted: a number from {low:g} to {high:g}")
        return value

    @overload
    def whole(self, name: str, default: int, low: int, high: int) -> int: ...

    @overload
    def whole(self, name: str, default: None, low: int, high: int) -> int | None: ...

    def whole(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number within bounds."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and low <= int(text) <= high):
            raise UserError(f"{name} = {text!r:.100}: accepted: a whole number from {low} to {high}")
        return int(text)
