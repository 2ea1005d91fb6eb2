"""The simulator compared with bare torch loops that do the same local steps."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from cabafl.assembly import SimulationParts
from cabafl.bench import NEVER, bare
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.bench.startup import start_up
from cabafl.bench.timing import Spread, in_turns, ratio, seconds
from cabafl.bench.workload import even_parts, images
from cabafl.checked import make_method
from cabafl.execution.base import Executor, FeatureJob, TrainJob
from cabafl.execution.pool import ProcessExecutor
from cabafl.execution.starting import worker_count
from cabafl.lifecycle.simulate import make_engine
from cabafl.methods.base import Objective

COLLECTION_INTERVAL = 500  # jobs between two feature collections: m = 50 aggregations of k = 10 trainings


@dataclass(frozen=True)
class Size:
    """Size of the measurement; samples per device, epochs and batch size are those of the paper."""

    jobs: int = 40
    devices: int = 100
    samples: int = 500
    epochs: int = 5
    batch: int = 50
    slots: int = 10

    @property
    def steps(self) -> int:
        """Local steps of one measurement."""
        return self.jobs * self.epochs * -(-self.samples // self.batch)


def cifar_parts(size: Size) -> SimulationParts:
    """CaBaFL on generated images. Features are label counts, to keep forward passes out of the measured time."""
    settings = [
        "model.name=cnn",
        f"training.epochs={size.epochs}",
        f"training.batch_size={size.batch}",
        f"fleet.slots={size.slots}",
        "method.name=cabafl",
        "method.features=labels",
        "run.virtual_time=none",
        f"run.max_dispatches={size.jobs}",
        f"run.evaluate_versions={NEVER}",
    ]
    return even_parts(images(size.devices * size.samples), size.devices, settings)


def open_workers(parts: SimulationParts, count: int) -> ProcessExecutor:
    """Worker processes that have built the task and trained once each."""
    executor = ProcessExecutor(count)
    executor.for_task(parts.task)
    weights = parts.task.model.save()
    tickets = [executor.submit(TrainJob(i, i, weights, Objective(epochs=1))) for i in range(2 * count)]
    for ticket in tickets:
        executor.result(ticket)
    return executor


def simulated_seconds(parts: SimulationParts, executor: Executor, steps: int) -> float:
    """Seconds of a complete run of the engine with its method."""
    method = make_method(parts.experiment)
    engine = make_engine(replace(parts, method=method), executor, lambda event: None)
    elapsed = seconds(engine.run)
    section = parts.experiment.training
    per_job = section.epochs * -(-int(parts.task.partition.sizes[0]) // section.batch_size)
    assert engine.ledger.uploads * per_job == steps, "the simulator must do the same steps"
    return elapsed


def bare_seconds(size: Size, tuned: bool) -> Callable[[], float]:
    """Prepares a bare loop over the tensors of ``slots`` clients; each call returns the seconds it takes."""
    torch.set_num_threads(1)
    data = images(size.slots * size.samples)
    x = data.inputs(data.train.x)
    x = x.contiguous(memory_format=torch.channels_last) if tuned else x
    clients = list(zip(torch.split(x, size.samples), torch.split(data.train.y, size.samples), strict=True))
    network = bare.tuned_cnn() if tuned else bare.usual_cnn()

    def timed() -> float:
        done: list[int] = []
        elapsed = seconds(lambda: done.append(bare.train(network, clients, size.jobs, size.epochs, size.batch)))
        assert done == [size.steps], "the bare loop must do the same steps"
        return elapsed

    return timed


def collection_seconds(parts: SimulationParts, executor: Executor) -> float:
    """Seconds of one feature collection over all devices' samples."""
    weights = parts.task.model.save()

    def collect() -> None:
        jobs = (FeatureJob(weights, "activations", devices) for devices in executor.feature_chunks)
        for ticket in [executor.submit(job) for job in jobs]:
            executor.result(ticket)

    return seconds(collect)


def measure(
    size: Size | None = None, repetitions: int = 5, cores: int | None = None, launches: int = 3
) -> BenchSection:
    """Measures bare loops, one worker, all cores and one feature collection in turns, then start-up."""
    size = size or Size()
    cores = cores or worker_count("auto")
    with ExitStack() as cleanup:
        parts = {name: cifar_parts(size) for name in ("one", "all")}
        counts = {"one": 1, "all": cores}
        workers = {name: open_workers(parts[name], counts[name]) for name in parts}
        for executor in workers.values():
            cleanup.callback(executor.close)
        functions: dict[str, Callable[[], float]] = {
            "bare": bare_seconds(size, tuned=False),
            "tuned": bare_seconds(size, tuned=True),
            **{n: lambda n=n: simulated_seconds(parts[n], workers[n], size.steps) for n in parts},  # type: ignore[misc]
            "collection": lambda: collection_seconds(parts["all"], workers["all"]),
        }
        for function in functions.values():
            function()  # warm-up
        taken = in_turns(functions, repetitions)
    return _section(size, cores, taken, start_up(launches))


def _section(size: Size, cores: int, taken: dict[str, list[float]], launch: dict[str, Spread]) -> BenchSection:
    labels = {
        "bare": "bare torch loop",
        "tuned": "tuned torch loop",
        "one": "cabafl, 1 worker",
        "all": f"cabafl, {cores} workers",
    }
    ratios = {name: (ratio(taken["bare"], taken[name]), ratio(taken["tuned"], taken[name])) for name in labels}
    rows = [_row(labels[name], size, taken[name], *ratios[name]) for name in labels]
    share = ratio(taken["collection"], [value * COLLECTION_INTERVAL / size.jobs for value in taken["all"]])
    samples = size.devices * size.samples
    beside = [
        (f"one feature collection over {samples:,} images", Spread.of(taken["collection"]).text(2) + " s"),
        (f"relative to the {COLLECTION_INTERVAL} jobs between two collections", share.text(3)),
    ]
    if launch:
        beside += [
            ("`import torch` alone", launch["torch"].text(2) + " s"),
            ("`cabafl run` up to its first dispatch, 2 workers", launch["cabafl"].text(2) + " s"),
        ]
    headings = ("", "s", "ms per step", "speed-up over bare", "speed-up over tuned")
    return BenchSection(
        "simulator",
        "The simulator against bare torch loops",
        [
            BenchTable(f"{size.steps:,} local steps ({size.jobs} jobs), CNN on CIFAR-10 shapes", headings, rows),
            BenchTable("Besides training", ("what", "measured"), beside),
        ],
        _notes(size, len(taken["bare"])),
        _figures(size, cores, taken, ratios, share, launch),
        [
            Check("speed-up over the bare loop, 1 worker", ratios["one"][0].median, 0.97),
            Check(f"speed-up over the bare loop, {cores} workers", ratios["all"][0].median, 0.95 * cores),
            Check("feature collection relative to the jobs between two", share.median, 0.10, above=False),
            *_start_up_checks(launch),
        ],
    )


def _start_up_checks(launch: dict[str, Spread]) -> list[Check]:
    name = "seconds to the first dispatch, beyond importing torch"
    return [Check(name, launch["extra"].median, 4.0, above=False)] if launch else []


def _row(label: str, size: Size, taken: list[float], bare_ratio: Spread, tuned_ratio: Spread) -> tuple[str, ...]:
    times = Spread.of(taken)
    return label, times.text(2), f"{1e3 * times.median / size.steps:.2f}", bare_ratio.text(2), tuned_ratio.text(2)


def _notes(size: Size, repetitions: int) -> list[str]:
    return [
        f"A job is {size.epochs} epochs over {size.samples} samples in batches of {size.batch}; "
        f"K = {size.slots} jobs are in flight.",
        "Torch loops: one thread, float tensors in memory, a new SGD(lr 0.01, momentum 0.5) per job, randperm per "
        "epoch. Bare: NCHW, ReLU then pooling. Tuned: channels_last, pooling then ReLU.",
        "cabafl: the engine with CaBaFL (cache, selection, aggregation), including gathering samples from uint8 images "
        "and moving weights between processes. Not included: start-up of workers, evaluation (10 test samples only), "
        "recording, feature collections (measured separately; label counts are used instead).",
        f"{repetitions} repetitions in turns after a warm-up; median (lowest to highest); ratios per turn. "
        f"This machine has {os.cpu_count()} cores.",
    ]


def _figures(
    size: Size,
    cores: int,
    taken: dict[str, list[float]],
    ratios: dict[str, tuple[Spread, Spread]],
    share: Spread,
    launch: dict[str, Spread],
) -> dict[str, Any]:
    return {
        "jobs": size.jobs,
        "steps": size.steps,
        "workers": cores,
        "seconds": {name: Spread.of(values).figures() for name, values in taken.items()},
        "speed_against_bare": {name: pair[0].figures() for name, pair in ratios.items()},
        "speed_against_tuned": {name: pair[1].figures() for name, pair in ratios.items()},
        "collection_share": share.figures(),
        "start_up": {name: spread.figures() for name, spread in launch.items()},
    }
