"""Writes run folders with the real recorder, but without a simulation."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import numpy as np

from cabafl.config import load_experiment
from cabafl.engine.core import Engine
from cabafl.engine.ledger import Ledger
from cabafl.lifecycle.summary import summarise
from cabafl.recording.events import Dispatched, Evaluated, Event, Lost, Published, Uploaded
from cabafl.recording.folder import RunFolder
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.reporting.runs import Run, load_runs


def evaluations(
    accuracy: Sequence[float],
    versions: Sequence[int] | None = None,
    every: float = 10.0,
    metric: MetricInfo = ACCURACY,
) -> list[Evaluated]:
    """One evaluation per accuracy; each adds ten downloads, nine uploads and 100 joules, and by default a version."""
    pairs = zip(range(len(accuracy)) if versions is None else versions, accuracy, strict=True)
    return [
        Evaluated(every * i, version, value, 1.0, 10 * i, 9 * i, 0, 19 * i, 1900 * i, 100.0 * i, metric=metric)
        for i, (version, value) in enumerate(pairs)
    ]


def events(jobs: int, devices: int = 5, slots: int = 2) -> list[Event]:
    """Consecutive jobs of 3 s in each slot; every seventh job is lost, every second one publishes a model."""
    found: list[Event] = []
    version = 0
    for job in range(jobs):
        start, slot, device = 3.0 * (job // slots), job % slots, job % devices
        found.append(Dispatched(start, job, device, slot, version, start + 3))
        if job % 7 == 6:
            found.append(Lost(start + 2, job, device, slot, "crash"))
        else:
            found.append(Uploaded(start + 3, job, device, slot, version, job % 3))
        if job % 2:
            version += 1
            found.append(Published(start + 3, version, {"weights": [0.5, 0.5]}))
    return sorted(found, key=lambda event: event[0])


def write_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 1,
    accuracy: Sequence[float] = tuple(np.linspace(0.1, 0.6, 21).tolist()),
    jobs: int = 40,
    settings: str = "",
    finished: bool = True,
    versions: Sequence[int] | None = None,
    metric: MetricInfo = ACCURACY,
) -> Path:
    """Writes a run folder; ``settings`` are lines of TOML after the method's name. Nothing waits for the disk."""
    with patch("os.fsync"):
        return _write_run(folder, method, seed, accuracy, jobs, settings, finished, versions, metric)


def _write_run(
    folder: Path,
    method: str,
    seed: int,
    accuracy: Sequence[float],
    jobs: int,
    settings: str,
    finished: bool,
    versions: Sequence[int] | None,
    metric: MetricInfo,
) -> Path:
    toml = f'seed = {seed}\n[method]\nname = "{method}"\n{settings}\n'
    recorder = RunFolder.create(folder, toml, {} if metric == ACCURACY else {"metric": metric.described()})
    rows, happened = evaluations(accuracy, versions, metric=metric), events(jobs)
    for event in happened:
        recorder(event)
    for row in rows:
        recorder(row)
    if not finished:
        recorder.close()
        return folder
    selections = np.bincount([e.device for e in happened if isinstance(e, Dispatched)], minlength=5)
    staleness = Counter(e.staleness for e in happened if isinstance(e, Uploaded))
    lost = Counter(e.reason for e in happened if isinstance(e, Lost))
    ledger = Ledger(losses=lost, staleness=staleness)
    rest = {"defence": SimpleNamespace(totals=dict), "changes": {}, "stopping": "no", "panel": None}
    rest["outbox"] = SimpleNamespace(best=None)
    engine = cast(Engine, SimpleNamespace(clock="virtual", ledger=ledger, selections=selections, **rest))
    recorder.finish(summarise(load_experiment(folder / "experiment.toml"), engine, rows, 1.5))
    return folder


def two_methods(folder: Path) -> list[Run]:
    """cabafl reaches 62 and 64 %, fedavg 42 and 44 %, with two seeds each."""
    for seed in (1, 2):
        write_run(folder / f"a{seed}", "cabafl", seed, np.linspace(0.1, 0.6 + 0.02 * seed, 21).tolist())
        write_run(folder / f"b{seed}", "fedavg", seed, np.linspace(0.1, 0.4 + 0.02 * seed, 21).tolist())
    return load_runs([folder])
