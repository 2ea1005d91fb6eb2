"""The variants of a comparison: label -> keys of ``[method]``."""

from collections.abc import Sequence
from typing import Any

from cabafl import methods
from cabafl.config import Experiment, MethodSection, apply_override
from cabafl.errors import UserError
from cabafl.paper.published import METHODS
from cabafl.validation import unknown

ABLATION: dict[str, dict[str, Any]] = {
    "cabafl": {},
    "conf1": {"selection": "similarity"},
    "conf2": {"selection": "size"},
    "conf3": {"selection": "random"},
    "conf4": {"l1_cache": False},
    "conf5": {"aggregation": "mean"},
    "hard-labels": {"features": "labels"},
}


def method_variants(
    names: str, base: Experiment, overrides: Sequence[str], in_file: MethodSection | None = None
) -> dict[str, dict[str, Any]]:
    """Returns one variant per method of ``--methods``: names separated by commas, ``paper`` or ``all``.

    The keys of ``[method]`` in ``base`` apply to the method named there, and so do those of the file alone
    (``in_file``); ``overrides`` (``fedasync.alpha=0.5``) apply to the method they name. Raises `UserError` for an
    unknown, repeated or missing method.
    """
    chosen = list(METHODS) if names == "paper" else list(methods.NAMES) if names == "all" else names.split(",")
    for name in chosen:
        if ":" not in name and name not in methods.NAMES:
            raise unknown("--methods", name, [*methods.NAMES, "paper", "all"])
    tables: dict[str, Any] = {}
    for text in overrides:
        apply_override(tables, text)
    for name, keys in tables.items():
        if name not in chosen:
            raise UserError(f"{name}: a setting for a method that is not compared; accepted: {', '.join(chosen)}")
        if not isinstance(keys, dict) or "name" in keys:
            raise UserError(f"{name} = {keys!r}: not a key of a method; accepted: {name}.key=value")
    given = {section.name: section.parameters for section in (in_file or base.method, base.method)}
    variants: dict[str, dict[str, Any]] = {}
    for name in chosen:
        label = name.rpartition(":")[2]
        if label in variants:
            raise UserError(f"--methods = {names!r}: two methods called {label}; accepted: different names")
        variants[label] = {"name": name, **given.get(name, {}), **tables.get(name, {})}
    return variants


def ablation_variants(base: Experiment) -> dict[str, dict[str, Any]]:
    """Returns CaBaFL and its variants in the paper, each with one key changed."""
    given = base.method.parameters if base.method.name == "cabafl" else {}
    return {label: {"name": "cabafl", **given, **change} for label, change in ABLATION.items()}
