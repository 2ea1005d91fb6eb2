"""Corrections, jobs that finish early and results that are held, in virtual time: results, times, bytes and energy."""

from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from cabafl import simulate
from cabafl.assembly import assemble
from cabafl.config import load_experiment
from cabafl.engine.core import Limits
from cabafl.engine.handed import UnusableModel
from cabafl.engine.virtual import VirtualEngine
from cabafl.execution.base import TrainJob
from cabafl.fleet import Absence, Faults, Fleet
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import Objective, Server, Upload
from cabafl.recording.events import Dispatched, Evaluated, Lost
from cabafl.state import Decoder, Encoder
from tests.engine.orders_method import Told
from tests.scripted import World, fleet, vector

HOLD = Objective(hold=True)
LATE = Limits(seconds=100.0, evaluate_every=1000.0)


def powered(seconds: list[float], link: float, latency: float = 0.0) -> Fleet:
    """Devices that draw 10 W computing, 5 W sending and 1 W idling."""
    n = len(seconds)
    plain = replace(fleet(seconds), link_seconds=np.full(n, link), latency=latency)
    compute, radio, idle = (np.full(n, watts) for watts in (10.0, 5.0, 1.0))
    return replace(plain, compute_watts=compute, radio_watts=radio, idle_watts=idle)


def world(method: Told, devices: Fleet, limits: Limits = LATE, faults: Faults | None = None, epochs: int = 4) -> World:
    """A job adds the number of its epochs to the model."""

    def train(job: TrainJob) -> TrainingResult:
        done = epochs if job.objective.epochs is None else job.objective.epochs
        return TrainingResult(job.weights + done, steps=3 * done, epochs=done)

    return World(
        method,
        devices,
        train,
        initial=vector(0),
        slots=len(devices),
        limits=limits,
        epochs=epochs,
        faults=faults,
    )


def joules(made: World) -> float:
    return made.engine.ledger.joules


# Finish


@pytest.mark.parametrize(
    ("now", "epochs", "end"),
    [
        (0.0, 1, 5.0),  # before the download is over
        (2.5, 1, 5.0),
        (4.0, 1, 5.0),
        (4.5, 2, 7.0),
        (8.1, 4, 11.0),  # in the last one
        (10.5, 4, 11.0),  # it uploads
        (12.0, 4, 11.0),  # it has ended
    ],
)
def test_a_job_stops_after_the_running_epoch(now: float, epochs: int, end: float) -> None:
    """1 s latency, 1 s download, 4 epochs of 2 s, 1 s upload."""
    method = Told(orders=[(now, "finish 0")])
    made = world(method, powered([8.0], 2.0, 1.0)).run()
    assert method.heard == ["upload 0"]
    assert method.uploads == [(0, 3 * epochs, epochs, end)]
    assert [job.objective.epochs for job in made.executor.trained] == [None if epochs == 4 else epochs]
    assert joules(made) == pytest.approx(10.0 * 2 * epochs + 5.0 * 2)
    assert made.engine.ledger.idle_joules == pytest.approx(100.0 - (end - 1.0))


@pytest.mark.parametrize(("now", "epochs", "end"), [(2.5, 1, 4.0), (3.5, 2, 6.0), (5.5, None, 7.0)])
def test_a_job_may_end_within_an_epoch(now: float, epochs: int | None, end: float) -> None:
    """1 s download, 2.5 of 4 epochs of 2 s, 1 s upload: it ends at 7 s, if it is not told to finish."""
    method = Told(orders=[(now, "finish 0")])
    made = world(method, replace(powered([8.0], 2.0), most_passes=np.array([2.5]))).run()
    assert [job.objective.epochs for job in made.executor.trained] == [epochs]
    assert method.uploads[0][3] == end


def test_a_corrected_job_has_two_downloads_before_its_first_epoch() -> None:
    method = Told(orders=[(3.9, "finish 0")], correction=vector(2))
    world(method, powered([8.0], 2.0)).run()
    assert method.uploads == [(0, 3, 1, 5.0)]


@pytest.mark.parametrize("hold", [False, True])
def test_time_never_goes_back(hold: bool) -> None:
    """Orders at the very ends of epochs, whose times are rounded."""
    for epochs in range(2, 11):
        for tenths in range(10, 100, 7):
            seconds = 0.1 * tenths
            orders = [(seconds * epoch / epochs, f"finish {epoch}") for epoch in range(epochs)]
            method = Told(Objective(hold=hold), orders, at_once=True)
            made = world(method, fleet([seconds] * epochs), epochs=epochs).run()
            times = [event.time for event in made.events if not isinstance(event, Evaluated)]
            assert times == sorted(times)
            assert len(method.uploads) == epochs


def test_an_order_to_finish_is_given_once() -> None:
    method = Told(orders=[(1.0, "finish 0"), (1.5, "finish 0"), (1.6, "finish 7")])
    made = world(method, fleet([8.0])).run()
    assert [note["job"] for note in made.notes("finish")] == [0]
    assert method.uploads == [(0, 3, 1, 2.0)]


def test_a_job_that_finishes_before_its_timeout_is_not_lost() -> None:
    for now, heard in ((1.0, ["upload 0"]), (2.5, ["timeout 0", "idle 0"])):
        method = Told(orders=[(now, "finish 0")])
        made = world(method, fleet([8.0]), replace(LATE, slot_timeout=3.0)).run()
        assert method.heard == heard
        assert len(made.executor.trained) == (1 if now == 1.0 else 0)


def test_a_job_that_finishes_at_its_timeout_is_in_time() -> None:
    method = Told(orders=[(1.0, "finish 0")])
    world(method, fleet([8.0]), replace(LATE, slot_timeout=2.0)).run()
    assert method.heard == ["upload 0"]


@pytest.mark.parametrize("hold", [False, True])
def test_a_crash_after_the_end_does_not_happen(hold: bool) -> None:
    faults = Faults(seed=3, loss=1.0)
    share = faults.fate(0).crash_at
    assert share is not None
    crash = 8.0 * share
    early = Told(Objective(hold=hold), [(0.0, "finish 0")], at_once=True)
    late = Told(Objective(hold=hold), [(crash - 0.1, "finish 0")], at_once=True)
    assert crash > 2.0
    assert world(early, fleet([8.0]), faults=faults).run().losses == []
    assert world(late, fleet([8.0]), faults=faults).run().losses == [(crash, 0, "crash")]
    assert early.heard == (["ready 0", "upload 0"] if hold else ["upload 0"])


# Results that are held


def test_a_held_result_waits_until_it_is_fetched() -> None:
    """1 s download, 8 s training, ready at 9 s; fetched at 20 s, 1 s upload."""
    method = Told(HOLD, [(20.0, "fetch 0")])
    made = world(method, powered([8.0], 2.0)).run()
    assert method.heard == ["ready 0", "upload 0"]
    assert method.uploads == [(0, 12, 4, 21.0)]
    ledger = made.engine.ledger
    assert (ledger.downloads, ledger.uploads, ledger.bytes) == (1, 1, 8)
    assert ledger.joules == pytest.approx(10.0 * 8 + 5.0 * 2)
    assert ledger.idle_joules == pytest.approx(100.0 - 10.0), "it idles while it holds the result"
    assert [note["job"] for note in (*made.notes("ready"), *made.notes("fetch"))] == [0, 0]


def test_a_cancelled_result_does_not_travel_and_is_never_computed() -> None:
    method = Told(HOLD, [(20.0, "cancel 0"), (21.0, "fetch 0"), (22.0, "cancel 0")])
    made = world(method, powered([8.0], 2.0)).run()
    ledger = made.engine.ledger
    assert method.heard == ["ready 0"]
    assert (ledger.downloads, ledger.uploads, ledger.bytes) == (1, 0, 4)
    assert ledger.joules == pytest.approx(10.0 * 8 + 5.0)
    assert ledger.idle_joules == pytest.approx(100.0 - 9.0)
    assert made.executor.trained == []
    assert made.losses == [(20.0, 0, "cancelled")]
    assert 0 in made.engine.idle


def test_costs_are_counted_as_they_happen() -> None:
    method = Told(HOLD, [(20.0, "fetch 0")])
    made = world(method, powered([8.0], 2.0), replace(LATE, evaluate_every=4.75)).run()
    rows = {event.time: event.joules for event in made.events if isinstance(event, Evaluated)}
    assert rows[9.5] == pytest.approx(85.0 + 0.5)
    assert rows[19.0] == pytest.approx(85.0 + 10.0)
    assert rows[23.75] == pytest.approx(90.0 + 23.75 - 10.0)


def test_a_held_job_may_be_told_to_finish() -> None:
    method = Told(HOLD, [(3.0, "finish 0"), (5.5, "finish 0"), (9.0, "fetch 0")])
    made = world(method, powered([8.0], 2.0)).run()
    assert method.uploads == [(0, 3, 1, 10.0)]
    assert made.engine.ledger.joules == pytest.approx(10.0 * 2 + 5.0 * 2)


def test_only_what_is_ready_can_be_fetched() -> None:
    with pytest.raises(RuntimeError, match="job 0 is not ready"):
        world(Told(HOLD, [(3.0, "fetch 0")]), fleet([8.0])).run()


def test_a_device_that_leaves_with_its_result() -> None:
    faults = Faults(trace={0: [Absence(10.0, 30.0)], 1: [Absence(12.5, 30.0)], 2: [Absence(2.0, 3.0)]})
    method = Told(HOLD, [(12.0, "fetch 1"), (14.0, "fetch 0")])
    made = world(method, powered([8.0, 8.0, 8.0], 2.0), faults=faults).run()
    assert method.heard == ["left 2", "idle 2", "ready 0", "ready 1", "left 0", "left 1", "idle 0", "idle 1"]
    spent = (80.0 + 5.0) + (80.0 + 5.0 + 2.5) + (80.0 + 5.0) * 2.0 / 9.0
    assert joules(made) == pytest.approx(spent)


def test_the_timeout_does_not_run_while_a_result_is_held() -> None:
    short = replace(LATE, slot_timeout=9.5)
    method = Told(HOLD, [(50.0, "fetch 0")])
    world(method, powered([8.0], 2.0), short).run()
    assert method.heard == ["ready 0", "upload 0"]
    slow = Told(HOLD, [(50.0, "cancel 0")])
    made = world(slow, powered([8.0], 6.0), short).run()
    assert slow.heard == ["timeout 0", "idle 0"], "11 s until it is ready"
    assert 0 in made.engine.idle


class FastTraining(Fleet):
    """Devices whose training takes no time at all, though its upload does."""

    def job(self, device: int, work: float = 1.0, models: int = 2) -> tuple[float, float]:
        seconds, joules = self.transfer(device)
        return seconds + 0.5, joules


def test_the_upload_of_a_held_result_has_the_whole_timeout() -> None:
    plain = powered([1.0], 8.0)
    devices = FastTraining(**{f.name: getattr(plain, f.name) for f in fields(plain) if f.init})
    for timeout, heard in ((4.0, ["ready 0", "upload 0"]), (3.5, ["ready 0", "timeout 0", "idle 0"])):
        method = Told(HOLD, [(50.0, "fetch 0")])
        made = world(method, devices, replace(LATE, slot_timeout=timeout)).run()
        assert method.heard == heard
        assert len(made.executor.trained) == (1 if timeout == 4.0 else 0)


def test_a_corrupt_held_upload_is_rejected() -> None:
    method = Told(HOLD, [(50.0, "fetch 0")])
    made = world(method, fleet([8.0]), faults=Faults(seed=1, corrupt=1.0)).run()
    assert method.heard == ["ready 0", "rejected 0"]
    assert made.engine.ledger.uploads == 1


def test_max_dispatches_waits_for_held_results() -> None:
    limits = Limits(seconds=None, max_dispatches=1, evaluate_every=1000.0)
    method = Told(HOLD, [(50.0, "fetch 0")])
    made = world(method, fleet([8.0]), limits).run()
    assert method.heard == ["ready 0", "upload 0"]
    assert made.engine.now == 50.0


# Corrections


def test_a_correction_is_one_more_download_in_time_bytes_and_energy() -> None:
    made = world(Told(correction=vector(3)), powered([8.0], 2.0)).run()
    ledger = made.engine.ledger
    assert (ledger.dispatches, ledger.downloads, ledger.uploads, ledger.transfers, ledger.bytes) == (1, 2, 1, 3, 12)
    [sent] = [event for event in made.events if isinstance(event, Dispatched)]
    assert sent.due == 8.0 + 3.0
    assert ledger.joules == pytest.approx(80.0 + 15.0)
    [job] = made.executor.trained
    assert job.correction is not None
    assert job.correction.tolist() == [3.0]


@pytest.mark.parametrize("bad", [vector(1, 2), vector(float("nan")), np.zeros(1), vector(float("inf"))])
def test_a_correction_that_is_not_like_a_model_ends_the_run(bad: Any) -> None:
    with pytest.raises(
        UnusableModel, match=r"method.name = 'told': sends at 0 s a correction of shape .*accepted: fin"
    ):
        world(Told(correction=bad), fleet([8.0])).run()


# Checkpoints


@pytest.mark.parametrize("stop", range(0, 14))
def test_a_run_continues_from_any_moment(stop: int) -> None:
    """Jobs that train, are told to finish, are held, upload: taken apart and put together between any two events."""

    def make() -> World:
        orders = [(3.0, "finish 0"), (12.0, "fetch 0"), (13.0, "fetch 1"), (13.5, "cancel 2"), (13.6, "fetch 3")]
        devices = powered([8.0, 10.0, 9.0, 7.0], 2.0)
        return world(Told(HOLD, orders, vector(1)), devices, Limits(seconds=30.0, evaluate_every=7.0))

    whole = make().run()
    first, second = make(), make()
    first.engine.start()
    for _ in range(stop):
        first.engine.step()
    encoder = Encoder()
    tree = encoder.encode(first.engine.state())
    state = Decoder({name: np.array(a) for name, a in encoder.arrays.items()}).decode(tree)
    second.engine.restore(state)
    while second.engine.step():
        pass
    second.engine.conclude()
    assert [*map(repr, first.events), *map(repr, second.events)] == [*map(repr, whole.events)]
    assert second.engine.ledger == whole.engine.ledger
    assert second.engine.method.heard == whole.engine.method.heard  # type: ignore[attr-defined]


# Real training


class Keeper(Told):
    """Tells all devices to finish at one moment, and keeps the uploads."""

    name = "keeper"
    kept: ClassVar[dict[int, Upload]] = {}

    def __init__(self, parameters: Any = None) -> None:
        super().__init__(Objective(report_loss=True), [(3.2, f"finish {job}") for job in range(4)])
        self.parameters = parameters

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Keeps it."""
        Keeper.kept[upload.job.number] = upload


def test_the_result_of_a_job_that_finishes_early_is_that_of_so_many_epochs() -> None:
    """On real training: told to finish, and told from the beginning to do as many epochs."""
    words = ["data.dataset=synthetic", "data.devices=4", "model.name=mlp", "fleet.slots=4", "run.virtual_time=60"]
    words += ["method.name=tests.engine.test_virtual_orders:Keeper", "run.workers=0", "fleet.seconds_per_sample=0.1"]
    Keeper.kept.clear()
    simulate(load_experiment(None, words))
    task = assemble(load_experiment(None, words)).task
    start = task.model.save()
    assert len({upload.epochs for upload in Keeper.kept.values()} & {1, 2, 3, 4}) > 1, "some have stopped early"
    for job, upload in Keeper.kept.items():
        trained = task.train(job, job, start, Objective(epochs=upload.epochs, report_loss=True))
        np.testing.assert_array_equal(trained.weights, upload.weights)
        assert (trained.loss, trained.steps, trained.epochs) == (upload.loss, upload.steps, upload.epochs)


def test_an_engine_has_no_order_for_jobs_it_does_not_know() -> None:
    made = world(Told(), fleet([1.0]))
    made.run()
    engine: VirtualEngine = made.engine
    engine.finish(99)
    engine.fetch(99)
    engine.cancel(99)
    assert not [event for event in made.events if isinstance(event, Lost)]
