"""Reads TOML files and writes experiments as TOML (the standard library has no TOML writer)."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cabafl.errors import UserError


def read_toml(file: Path, accepted: str = "an experiment file") -> dict[str, Any]:
    """Parses a TOML file. Raises `UserError` if it cannot be read; ``accepted`` says what kind of file is expected."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); accepted: {accepted}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not a TOML file: {error}") from None


def experiment_toml(experiment: BaseModel, parameters: BaseModel, comments: bool = False) -> str:
    """Formats a complete experiment file: every key of every section, including the method's ``parameters``.

    TOML has no null: a key that is not set becomes a comment, or "none" if its default is a value. With ``comments``,
    a description follows each key.
    """
    lines = _keys(experiment, ["seed"], comments)
    for name in type(experiment).model_fields:
        section = getattr(experiment, name)
        if not isinstance(section, BaseModel):
            continue
        lines += ["", f"[{name}]", *_keys(section, list(type(section).model_fields), comments)]
        if name == "method":
            lines += _keys(parameters, list(type(parameters).model_fields), comments)
        for inner in type(section).model_fields:
            table = getattr(section, inner)
            if isinstance(table, BaseModel):
                lines += ["", f"[{name}.{inner}]", *_keys(table, list(type(table).model_fields), comments)]
    return "\n".join(lines) + "\n"


def _keys(section: BaseModel, names: list[str], comments: bool) -> list[str]:
    lines = []
    for name in names:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            continue
        switched_off = value is None and type(section).model_fields[name].default is not None
        line = f"# {name} =" if value is None else f"{name} = {toml_value(value)}"
        line = f'{name} = "none"' if switched_off else line
        description = type(section).model_fields[name].description
        lines.append(f"{line:<36} # {description}" if comments and description else line)
    return lines


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested tables to dotted keys; tables per tier, such as ``fleet.tiers``, stay one value."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and "tier" not in key:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def toml_value(value: Any) -> str:
    """Formats one value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML forbids DEL, JSON does not
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)
