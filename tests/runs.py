"""Small real runs that several tests repeat in different ways."""

import hashlib
from pathlib import Path

from cabafl import methods

METHODS = ["cabafl", "fedavg"]  # for slow tests
ALL_METHODS = list(methods.NAMES)
FILES = ("events.jsonl", "metrics.csv", "model.safetensors")
AUTO = [
    f"method.{key}=auto" for key in ("k", "alpha", "gamma", "sigma", "m")
]  # CaBaFL with settings that tune themselves
OWN = {"cabafl": ["method.m=2", "method.k=3"], "periodic": ["method.period=3"]}


def settings(method: str, *more: str) -> list[str]:
    """A few hundred jobs on small data, with faults of every kind."""
    return [
        "data.dataset=synthetic",
        "data.devices=12",
        "model.name=mlp",
        "fleet.participation=0.35",
        "fleet.faults.loss=0.05",
        "fleet.faults.corrupt=0.05",
        "fleet.faults.slowdown=0.1",
        "fleet.faults.present_seconds=60",
        "fleet.faults.absent_seconds=10",
        "run.slot_timeout=9",
        "run.virtual_time=60",
        "run.evaluate_every=5",
        f"method.name={method}",
        *OWN.get(method, []),
        *more,
    ]


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that must not depend on the number of workers."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


def same_bytes(one: Path, other: Path) -> None:
    """Fails when two runs differ in a byte."""
    assert digests(one) == digests(other)
