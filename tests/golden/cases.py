"""Short runs with recorded checksums. ``python -m tests.golden.cases`` records them again."""

import gzip
import hashlib
import json
import platform
import tempfile
from pathlib import Path

import numpy as np
import torch

from cabafl import simulate
from cabafl.config import load_experiment
from tests.golden.arithmetic import fixed_arithmetic, probe
from tests.runs import ALL_METHODS, FILES, settings

SUMS = Path(__file__).with_name("sums.json")
PLAIN = ["data.dataset=synthetic", "data.devices=12", "model.name=mlp", "fleet.participation=0.35"]
ABSOLUTE = "method.sigma_scale=absolute"
SHORT = ["run.virtual_time=60", "run.evaluate_every=5", "run.workers=0", "method.m=2", "method.k=3", ABSOLUTE]
PICTURES = ["data.train_limit=400", "data.test_limit=200", "data.devices=10", "data.min_samples=2", "training.epochs=1"]

CASES: dict[str, list[str]] = {
    **{f"{method} with faults": settings(method, "run.workers=0") for method in ALL_METHODS if method != "cabafl"},
    "cabafl with faults": settings("cabafl", "run.workers=0", ABSOLUTE),
    "cabafl": [*PLAIN, *SHORT],
    "tiers": [*PLAIN, *SHORT, 'fleet.tiers="config2"', "run.virtual_time=200", "run.evaluate_every=20"],
    "devices that come and go": [*PLAIN, *SHORT, "fleet.faults.present_seconds=20", "fleet.faults.absent_seconds=5"],
    "feature noise": [*PLAIN, *SHORT, "privacy.feature_clip=5.0", "privacy.feature_noise=0.1"],
    "labels": [*PLAIN, *SHORT, "method.features=labels"],
    "relative sigma": [*PLAIN, *SHORT, "method.sigma_scale=relative"],
    "conf1": [*PLAIN, *SHORT, "method.selection=similarity"],
    "conf4": [*PLAIN, *SHORT, "method.l1_cache=false"],
    "conf5": [*PLAIN, *SHORT, "method.aggregation=mean"],
    "evaluated by version": [*PLAIN, *SHORT, "run.evaluate_versions=2"],
    "counted dispatches": [*PLAIN, *SHORT, "run.virtual_time=none", "run.max_dispatches=50", "run.max_staleness=3"],
    "wkafl by loss": [*PLAIN, *SHORT[:3], "method.name=wkafl", "method.stage_rule=loss"],
    "fedprox with partial work": [*PLAIN, *SHORT[:3], "method.name=fedprox", "method.partial_fraction=0.5"],
    "safa with all devices": [*PLAIN, *SHORT[:3], "method.name=safa", "method.population=all"],
    "cnn": [*PICTURES, *SHORT],
    "lstm": ["data.dataset=shakespeare", "data.partition=natural", "model.name=lstm", *SHORT, "training.epochs=1"],
}


def write_roles(folder: Path) -> Path:
    """Writes a small role file of the Shakespeare data set."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "wizards", "brew", "amber"]
    speech = " ".join(words[(7 * i) % len(words)] for i in range(60))
    roles = {f"PLAY__ROLE_{n}": [speech[n:], speech[: 300 - n]] for n in range(6)}
    path = folder / "roles.json.gz"
    path.write_bytes(gzip.compress(json.dumps(roles).encode()))
    return path


def as_written_by_0_1(name: str, content: bytes) -> bytes:
    """Translates a file to the names of version 0.1, with which the checksums were recorded.

    Version 0.1 called ``time`` ``t`` in events and ``virtual_time`` in metrics, and ``publish`` events ``aggregation``.
    """
    if name == "metrics.csv":
        return b"virtual_" + content
    if name == "events.jsonl":
        lines = content.replace(b'\n{"time":', b'\n{"t":').replace(b',"event":"publish",', b',"event":"aggregation",')
        return lines.replace(b'{"time":', b'{"t":', 1)
    return content


def run_case(name: str, folder: Path, *more: str) -> dict[str, str]:
    """Runs a case, with ``more`` settings, and returns the checksums of its files."""
    words = [*CASES[name], *more]
    if name == "lstm":
        words += [f"data.root={write_roles(folder)}", "data.train_limit=60", "data.test_limit=40"]
    simulate(load_experiment(None, words), folder / "run")
    contents = {file: (folder / "run" / file).read_bytes() for file in FILES}
    return {file: hashlib.sha256(as_written_by_0_1(file, content)).hexdigest() for file, content in contents.items()}


def run_anywhere(name: str, *more: str) -> dict[str, str]:
    """`run_case` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return run_case(name, Path(folder), *more)


def record() -> None:
    """Records the checksums of this version: only for a new case, for another machine or version of torch, or if
    results change on purpose."""
    with fixed_arithmetic() as process:
        known = {name: process.submit(run_anywhere, name).result() for name in CASES}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        content = {"arithmetic": process.submit(probe).result(), **versions, "sums": known}
    SUMS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    from tests.golden import cases  # by its name, under which the other process finds it

    cases.record()
