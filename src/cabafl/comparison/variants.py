"""Which methods a comparison runs, each with its own keys."""

from collections.abc import Sequence
from typing import Any

from cabafl import methods
from cabafl.config import Experiment, apply_override
from cabafl.errors import UserError
from cabafl.validation import unknown

PAPER = ("fedavg", "fedprox", "fedasync", "fedsa", "safa", "wkafl", "cabafl")
ABLATION: dict[str, dict[str, Any]] = {
    "cabafl": {},
    "conf1": {"selection": "similarity"},
    "conf2": {"selection": "size"},
    "conf3": {"selection": "random"},
    "conf4": {"l1_cache": False},
    "conf5": {"aggregation": "mean"},
    "hard-labels": {"features": "labels"},
}


def method_variants(names: str, base: Experiment, own: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The methods of ``--methods``: a list, ``paper`` or ``all``. Keys of the file's ``[method]`` go to that method,
    ``own`` settings (fedasync.alpha=0.5) to the one they name."""
    chosen = list(PAPER) if names == "paper" else list(methods.NAMES) if names == "all" else names.split(",")
    for name in chosen:
        if ":" not in name and name not in methods.NAMES:
            raise unknown("--methods", name, [*methods.NAMES, "paper", "all"])
    tables: dict[str, Any] = {}
    for text in own:
        apply_override(tables, text)
    strays = [name for name in tables if name not in chosen]
    if strays:
        raise UserError(f"{strays[0]}: a setting for a method that is not compared; compared are {', '.join(chosen)}")
    variants: dict[str, dict[str, Any]] = {}
    for name in chosen:
        label = name.rpartition(":")[2]
        if label in variants:
            raise UserError(f"--methods = {names!r}: two methods called {label}; accepted: one of each name")
        given = base.method.parameters if name == base.method.name else {}
        variants[label] = {"name": name, **given, **tables.get(name, {})}
    return variants


def ablation_variants(base: Experiment) -> dict[str, dict[str, Any]]:
    """CaBaFL and its variants, each with one setting changed."""
    given = base.method.parameters if base.method.name == "cabafl" else {}
    return {label: {"name": "cabafl", **given, **change} for label, change in ABLATION.items()}
