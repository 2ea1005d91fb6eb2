"""Turns a failed validation into one line that names the key, the value given and what is accepted."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cabafl.errors import UserError

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], values: Mapping[str, Any], section: str = "") -> M:
    """Returns ``model(**values)``; raises `UserError` about the first invalid key, with ``section`` as its prefix."""
    try:
        return model(**values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise UserError(_explain(model, details[0], section) + more) from None


def unknown(what: str, value: str, accepted: Iterable[str]) -> UserError:
    """Returns the error for an unknown name; it lists the accepted names and suggests the closest one."""
    names = list(accepted)
    return UserError(f"{what} = {value!r}: unknown{nearest(value, names)}; accepted: {', '.join(names)}")


def nearest(value: str, names: Iterable[str]) -> str:
    """Returns ``, did you mean 'x'?`` with the closest of ``names``, or an empty string if none is similar."""
    close = get_close_matches(value, list(names), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def _explain(model: type[BaseModel], error: ErrorDetails, section: str) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join([section, *path] if section else path)
    value = error["input"]
    if error["type"] == "extra_forbidden":
        names = _fields(model, path[:-1])
        return f"{key} = {value!r}: unknown key{nearest(path[-1], names)}; accepted here: {', '.join(names)}"
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        names_its_keys = not path or text.startswith((f"{key}.", f"{key}:"))  # a rule about several keys of a section
        return text if names_its_keys else f"{key} = {value!r}: {text}"
    if error["type"] == "literal_error":
        expected = [name.strip("'") for name in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        return f"{key} = {value!r}: unknown{nearest(str(value), expected)}; accepted: {', '.join(expected)}"
    return f"{key} = {value!r}: {_lower(error['msg'])}"


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
