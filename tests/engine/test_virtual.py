"""The engine: order of events, limits, accounting, determinism."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl import Experiment, simulate
from cabafl.config import load_experiment
from cabafl.engine.core import Limits
from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Server, Upload
from cabafl.recording.events import Evaluated, Uploaded
from tests.scripted import World, fleet, vector

SMALL = [
    "data.dataset=synthetic",
    "data.devices=12",
    "model.name=mlp",
    "fleet.participation=0.25",
    "run.virtual_time=60",
    "run.evaluate_every=5",
    "run.workers=0",
    "method.m=3",
]


class Relay(Method):
    """Keeps every device busy with the newest model; publishes each upload."""

    name = "relay"
    kind = "asynchronous"
    paper = "none"

    def __init__(self, objective: Objective | None = None, timer: float | None = None) -> None:
        self.objective = objective or Objective()
        self.timer = timer
        self.timers: list[str] = []

    def start(self, server: Server) -> None:
        for device in range(server.slots):
            server.dispatch(device, server.initial, objective=self.objective)
        if self.timer is not None:
            server.set_timer(self.timer, "tick")

    def on_upload(self, server: Server, upload: Upload) -> None:
        server.publish(upload.weights)
        server.dispatch(upload.job.device, upload.weights, objective=self.objective)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        if job.device in server.idle:
            server.dispatch(job.device, job.weights)

    def on_timer(self, server: Server, name: str) -> None:
        self.timers.append(name)


def relay(times: list[float], limits: Limits, slots: int | None = None, **options: object) -> World:
    return World(
        Relay(**options),  # type: ignore[arg-type]
        fleet(times),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=slots or len(times),
        limits=limits,
        epochs=4,
    ).run()


def uploads(world: World) -> list[tuple[float, int]]:
    return [(e.time, e.device) for e in world.events if isinstance(e, Uploaded)]


def test_jobs_that_end_together_are_handled_in_dispatch_order() -> None:
    world = relay([2.0, 1.0, 1.0], Limits(seconds=2.0))
    assert uploads(world) == [(1.0, 1), (1.0, 2), (2.0, 0), (2.0, 1), (2.0, 2)]


@given(
    times=st.lists(st.sampled_from([0.5, 1.0, 2.25, 100.0]), min_size=1, max_size=5),
    horizon=st.sampled_from([3.0, 7.25]),
)
def test_plain_jobs_go_as_by_the_general_rules(times: list[float], horizon: float) -> None:
    limits = Limits(seconds=horizon, max_dispatches=20)
    plain, general = (relay(times, limits, objective=each) for each in (PLAIN, Objective()))  # equal, not the same
    assert plain.events == general.events
    assert plain.engine.ledger == general.engine.ledger
    assert [job.number for job in plain.executor.trained] == [job.number for job in general.executor.trained]


def test_evaluations_are_at_fixed_times_and_include_what_happened_then() -> None:
    world = relay([1.0], Limits(seconds=3.5, evaluate_every=1.0))
    rows = [e for e in world.events if isinstance(e, Evaluated)]
    assert [(row.time, row.version) for row in rows] == [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3), (3.5, 3)]


def test_evaluation_after_every_nth_version() -> None:
    world = relay([1.0], Limits(seconds=5.0, evaluate_versions=2))
    rows = [e for e in world.events if isinstance(e, Evaluated)]
    assert [(row.time, row.version) for row in rows] == [(0.0, 0), (2.0, 2), (4.0, 4), (5.0, 5)]


def test_the_same_version_is_not_evaluated_twice() -> None:
    world = relay([3.0], Limits(seconds=5.0, evaluate_every=1.0))
    evaluated = [job for job in world.executor.jobs.values() if type(job).__name__ == "EvaluateJob"]
    assert len(evaluated) == 2


def test_max_dispatches_sends_no_more_and_waits_for_the_last() -> None:
    world = relay([1.0, 1.5], Limits(seconds=None, max_dispatches=5))
    assert world.engine.ledger.dispatches == 5
    assert world.engine.ledger.uploads == 5
    assert world.engine.now == 3.0


def test_a_last_partial_round_still_counts() -> None:
    from cabafl.methods.fedavg import FedAvg, FedAvgParameters

    for timeout in (None, 4.5):
        world = World(
            FedAvg(FedAvgParameters(round_timeout=timeout)),
            fleet([1.0, 2.0, 3.0]),
            lambda job: job.weights + 1,
            initial=vector(0),
            slots=3,
            limits=Limits(seconds=None, max_dispatches=5),
        ).run()
        assert world.engine.ledger.uploads == 5
        assert world.engine.version == 2


def test_jobs_that_end_after_the_run_are_never_trained() -> None:
    world = relay([1.0, 100.0], Limits(seconds=10.0))
    assert {job.device for job in world.executor.trained} == {0}
    assert all(getattr(job, "device", 0) == 0 for job in world.executor.jobs.values())


def test_timer() -> None:
    world = relay([1.0], Limits(seconds=5.0), timer=2.5)
    assert isinstance(world.engine.method, Relay)
    assert world.engine.method.timers == ["tick"]


def test_fewer_epochs_take_less_time() -> None:
    world = relay([4.0], Limits(seconds=4.0), objective=Objective(epochs=1))
    assert [t for t, _ in uploads(world)] == [1.0, 2.0, 3.0, 4.0]


def test_staleness_is_the_number_of_models_published_meanwhile() -> None:
    world = relay([1.0, 2.5], Limits(seconds=2.5))
    last = [e for e in world.events if isinstance(e, Uploaded)][-1]
    assert (last.device, last.staleness) == (1, 2)
    assert dict(world.engine.ledger.staleness) == {0: 2, 2: 1}


def test_dispatch_to_a_busy_device_is_a_bug() -> None:
    world = relay([1.0], Limits(seconds=0.5))
    with pytest.raises(RuntimeError, match="not idle"):
        world.engine.dispatch(0, vector(0))


def test_devices_without_samples_are_never_selected() -> None:
    result = simulate(load_experiment(None, [*SMALL, "data.partition=dirichlet", "data.beta=1.0"]))
    assert result.summary["uploads"] > 20
    world = World(
        Relay(),
        fleet([1.0, 1.0], [3, 0]),
        lambda j: j.weights,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=3.0),
    )
    assert list(world.engine.idle) == [0]


def read(folder: Path) -> tuple[bytes, bytes, bytes]:
    names = ("events.jsonl", "metrics.csv", "model.safetensors")
    first, second, third = ((folder / name).read_bytes() for name in names)
    return first, second, third


@pytest.mark.parametrize("method", ["cabafl", "fedavg"])
def test_two_runs_give_the_same_bytes_and_another_seed_does_not(method: str, tmp_path: Path) -> None:
    settings = [s for s in SMALL if method == "cabafl" or not s.startswith("method.")]
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(load_experiment(None, [*settings, f"method.name={method}", f"seed={seed}"]), out=tmp_path / name)
    assert read(tmp_path / "a") == read(tmp_path / "b")
    assert all(x != y for x, y in zip(read(tmp_path / "a"), read(tmp_path / "c"), strict=True))


def test_run_folder_is_complete_and_consistent(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = simulate(load_experiment(None, SMALL), out=folder)
    assert {path.name for path in folder.iterdir()} == {
        "experiment.toml",
        "environment.json",
        "events.jsonl",
        "metrics.csv",
        "model.safetensors",
        "curve.png",
        "summary.json",
        "task.json",
        "checkpoint.json",
        "checkpoint-1.safetensors",
    }
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kinds = {event["event"] for event in events}
    assert kinds == {"dispatch", "upload", "cache", "select", "publish", "collection", "evaluation"}
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == result.summary
    count = {kind: sum(event["event"] == kind for event in events) for kind in kinds}
    assert summary["downloads"] == count["dispatch"]
    assert summary["uploads"] == count["upload"]
    asked = sum(event["devices"] for event in events if event["event"] == "collection" and event["step"] == "start")
    assert summary["feature_downloads"] == asked
    assert summary["transfers"] == count["dispatch"] + count["upload"] + asked
    assert summary["versions"] == count["publish"]
    assert len(result.metrics) == count["evaluation"] == 13
    assert result.metrics["joules"].is_monotonic_increasing
    again = load_experiment(folder / "experiment.toml")
    assert again.run.virtual_time == 60
    assert simulate(again).summary["final_loss"] == summary["final_loss"]


def test_python_interface() -> None:
    from torch import nn

    experiment = Experiment(
        data={"dataset": "synthetic", "devices": 8},  # type: ignore[arg-type]
        model={"name": "mlp"},  # type: ignore[arg-type]
        method={"name": "fedavg"},  # type: ignore[arg-type]
        fleet={"slots": 2},  # type: ignore[arg-type]
        run={"virtual_time": 120.0, "evaluate_every": 40.0},  # type: ignore[arg-type]
    )
    result = simulate(experiment)
    assert isinstance(result.model, nn.Module)
    assert list(result.metrics["time"]) == [0.0, 40.0, 80.0, 120.0]
    assert result.summary["final_accuracy"] > 0.2
    assert np.isfinite(result.metrics.to_numpy(dtype=float)).all()
