"""Runs one experiment in virtual time."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from cabafl.assembly import Parts, assemble
from cabafl.config import Experiment
from cabafl.execution.inline import InlineExecutor
from cabafl.recording.environment import environment
from cabafl.recording.events import Evaluated, Event
from cabafl.recording.folder import CURVE, RunFolder, summarise
from cabafl.reporting.curve import draw_curve
from cabafl.simulation.engine import Limits, Simulation
from cabafl.toml import experiment_toml

Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Result:
    """What a run gives back."""

    summary: dict[str, Any]
    metrics: pd.DataFrame
    model: nn.Module
    folder: Path | None


def simulate(experiment: Experiment, out: str | Path | None = None, listener: Listener | None = None) -> Result:
    """Runs an experiment; with ``out`` it also writes the run folder. ``listener`` sees every event as it happens."""
    return run_parts(assemble(experiment), None if out is None else Path(out), listener)


def run_parts(parts: Parts, out: Path | None, listener: Listener | None = None) -> Result:
    """As `simulate`, with the parts already built."""
    torch.set_num_threads(1)  # the same bits here and in worker processes
    started = time.perf_counter()
    rows: list[Evaluated] = []
    with ExitStack() as cleanup:
        folder = RunFolder(out) if out is not None else None
        if folder is not None:
            cleanup.callback(folder.close)
            folder.describe(experiment_toml(parts.experiment, parts.parameters), environment())
        executor = InlineExecutor(parts.task)
        cleanup.callback(executor.close)

        def emit(event: Event) -> None:
            if isinstance(event, Evaluated):
                rows.append(event)
            if folder is not None:
                folder(event)
            if listener is not None:
                listener(event)

        engine = make_engine(parts, executor, emit)
        try:
            engine.run()
        finally:
            if folder is not None and rows:
                _draw(parts, folder, rows)
        summary = summarise(rows, engine.selections, engine.ledger.losses, engine.ledger.staleness)
        summary = {"method": parts.experiment.method.name, "seed": parts.experiment.seed, **summary}
        summary["wall_seconds"] = time.perf_counter() - started
        if folder is not None:
            folder.save_model(parts.task.model.layout.tensors(engine.model))
            folder.finish(summary)
    parts.task.model.load(engine.model)
    network = parts.task.model.network.eval()
    return Result(summary, pd.DataFrame(rows, columns=list(Evaluated._fields)), network, out)


def make_engine(parts: Parts, executor: InlineExecutor, emit: Listener) -> Simulation:
    """The engine for assembled parts."""
    run, training = parts.experiment.run, parts.experiment.training
    limits = Limits(
        virtual_time=run.virtual_time,
        max_dispatches=run.max_dispatches,
        evaluate_every=run.evaluate_every,
        evaluate_aggregations=run.evaluate_aggregations,
        slot_timeout=run.slot_timeout,
        max_staleness=run.max_staleness,
    )
    return Simulation(
        parts.method,
        parts.fleet,
        executor,
        parts.task.model.save(),
        seed=parts.experiment.seed,
        slots=parts.slots,
        limits=limits,
        parameters=parts.task.model.layout.parameters,
        epochs=training.epochs,
        learning_rate=training.learning_rate,
        emit=emit,
    )


def _draw(parts: Parts, folder: RunFolder, rows: list[Evaluated]) -> None:
    experiment = parts.experiment
    title = f"{experiment.method.name} on {experiment.data.dataset}, seed {experiment.seed}"
    draw_curve([r.virtual_time for r in rows], [r.accuracy for r in rows], title, folder.path / CURVE)
