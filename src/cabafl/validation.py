"""Turns a failed validation into one line that names the keys, the values given and what is accepted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cabafl.errors import UserError

M = TypeVar("M", bound=BaseModel)
MOST_MISTAKES = 20  # on one line


def validated(model: type[M], values: Mapping[str, Any], section: str = "", owner: str = "") -> M:
    """Returns ``model(**values)``; raises `UserError` about every invalid key, with ``section`` as its prefix.

    ``owner`` is who accepts the keys, such as a method; by default they are those of the table.
    """
    try:
        return model(**values)
    except ValidationError as error:
        raise UserError(_explained(model, error.errors(include_url=False), section, owner)) from None


def unknown(what: str, value: str, accepted: Iterable[str]) -> UserError:
    """Returns the error for an unknown name; it lists the accepted names and suggests the closest one."""
    names = list(accepted)
    return UserError(f"{what} = {value!r}: unknown{nearest(value, names)}; accepted: {', '.join(names)}")


def nearest(value: str, names: Iterable[str], similarity: float = 0.5) -> str:
    """Returns ``, did you mean 'x'?`` with the closest of ``names``, or an empty string if none is similar (1: equal).
    Capitals, hyphens and the like do not count."""
    forms = {_plain(name): name for name in names}
    close = get_close_matches(_plain(value), list(forms), n=1, cutoff=similarity)
    return f", did you mean {forms[close[0]]!r}?" if close else ""


def _plain(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum()) or name


def _explained(model: type[BaseModel], errors: Sequence[ErrorDetails], section: str, owner: str) -> str:
    """All mistakes on one line; what a table accepts is listed once, after its unknown keys."""
    texts: list[str] = []
    strange: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for error in errors[:MOST_MISTAKES]:
        if error["type"] == "extra_forbidden":
            strange.setdefault(tuple(str(part) for part in error["loc"][:-1]), []).append(error)
        else:
            texts.append(_explain(model, error, section))
    for path, found in strange.items():
        texts += [_unknown_key(model, error, section) for error in found]
        table = ".".join([section, *path] if section else path)
        home = f"by {owner}" if owner else f"in [{table}]" if table else "here"
        texts.append(f"accepted {home}: {', '.join(_fields(model, path))}")
    more = len(errors) - MOST_MISTAKES
    return "; ".join(texts) + (f"; and {more} more mistakes" if more > 0 else "")


def _unknown_key(model: type[BaseModel], error: ErrorDetails, section: str) -> str:
    path = [str(part) for part in error["loc"]]
    name = path[-1]
    beside = ["name"] if section == "method" and len(path) == 1 else []  # the keys of a method stand beside its name
    hint = nearest(name, [*_fields(model, path[:-1]), *beside])
    homes = [] if isinstance(error["input"], dict) else [key for key in _keys(model) if key.rpartition(".")[2] == name]
    if homes:  # the key of another table, or without its table
        hint = f", did you mean {' or '.join(map(repr, homes))}?"
    return f"{_key(error, section)} = {error['input']!r}: unknown key{hint}"


def _explain(model: type[BaseModel], error: ErrorDetails, section: str) -> str:
    key, value = _key(error, section), error["input"]
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        names_its_keys = not error["loc"] or text.startswith((f"{key}.", f"{key}:"))  # about several keys of a section
        return text if names_its_keys else f"{key} = {value!r}: {text}"
    if error["type"] == "literal_error":
        expected = [name.strip("'") for name in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        expected += ["none"] if _can_be_none(model, [str(part) for part in error["loc"]]) else []
        return f"{key} = {value!r}: unknown{nearest(str(value), expected)}; accepted: {', '.join(expected)}"
    if error["type"] == "model_type":
        return f"{key} = {value!r}: is a section; accepted: {key}.KEY=VALUE; `cabafl config` lists its keys"
    return f"{key} = {value!r}: {_lower(error['msg'])}"


def _key(error: ErrorDetails, section: str) -> str:
    path = [str(part) for part in error["loc"]]
    return ".".join([section, *path] if section else path)


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all tables of a model; none for a model without tables."""
    for name in model.model_fields:
        inner = _table(model, name)
        if inner is not None:
            yield from (f"{prefix}{name}.{key}" for key in _fields(inner, ()) if _table(inner, key) is None)
            yield from _keys(inner, f"{prefix}{name}.")


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        inner = _table(model, part)
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _can_be_none(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Whether a setting can be switched off: ``none`` stands for None."""
    for part in path[:-1]:
        inner = _table(model, part)
        if inner is None:
            return False
        model = inner
    field = model.model_fields.get(path[-1])
    return field is not None and NoneType in get_args(field.annotation)


def _table(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    inner = model.model_fields[name].annotation if name in model.model_fields else None
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
