"""Idle energy: exact at every row, for methods that wait and methods that do not, with faults, after a resume."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl import methods, simulate
from cabafl.config import load_experiment
from cabafl.engine.core import Limits
from cabafl.engine.idle import IdleMeter
from cabafl.fleet import Absence, Faults, Fleet
from cabafl.methods.cabafl import CaBaFL, CaBaFLParameters
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from cabafl.recording.events import Dispatched, Evaluated, Event, Lost, Noted, Uploaded
from tests.runs import settings
from tests.scripted import World, fleet, vector


def powered(devices: int, idle: float | None = None, latency: float = 0.0) -> Fleet:
    """Devices with different idle power, or the same for all."""
    draw = np.random.default_rng(3)
    plain = fleet(draw.uniform(1, 4, devices).tolist(), draw.integers(5, 50, devices).tolist())
    watts = draw.uniform(1, 3, devices) if idle is None else np.full(devices, idle)
    return replace(plain, idle_watts=watts, latency=latency)


def world(name: str, devices: Fleet, limits: Limits, slots: int = 4, faults: Faults | None = None) -> World:
    cls = methods.find(name)
    own: dict[str, Any] = {"k": 4, "m": 10**6} if name == "cabafl" else {}
    return World(
        cls(cls.Parameters(**own)),
        devices,
        lambda job: job.weights + 1,
        initial=vector(0, 0),
        slots=slots,
        limits=limits,
        features=np.random.default_rng(1).random((len(devices), 4)),
        faults=faults,
    ).run()


def naive_idle(made: World, until: float, absences: dict[int, list[Absence]] | None = None) -> float:
    """Idle watts x (time present - time in jobs), from the event log."""
    given_up = {e.job for e in made.events if isinstance(e, Lost) and e.reason == "timeout"}
    jobs: dict[int, list[float]] = {}
    device_of: dict[int, int] = {}
    waits: dict[int, list[float]] = {}  # while a device holds a result it idles
    for event in made.events:
        if isinstance(event, Noted) and event.kind in ("ready", "fetch") and event.time <= until:
            waits.setdefault(event.facts["job"], []).append(event.time)
        if isinstance(event, Dispatched) and event.time <= until:
            jobs[event.job] = [event.time, event.due if event.job in given_up else np.inf]
            device_of[event.job] = event.device
        elif isinstance(event, Uploaded | Lost) and event.job not in given_up and event.time <= until:
            jobs[event.job][1] = event.time
    busy = np.zeros(len(made.engine.fleet))
    for job, (start, end) in jobs.items():
        held = waits.get(job, [end])
        busy[device_of[job]] += (
            min(end, until) - start - (min([*held, end, until][1:]) - held[0] if job in waits else 0.0)
        )
    for device, times in (absences or {}).items():
        busy[device] += sum(max(0.0, min(back, until) - leave) for leave, back in times if leave <= until)
    return float((made.engine.fleet.idle_watts * (until - busy)).sum())


def rows(events: list[Event]) -> list[Evaluated]:
    return [event for event in events if isinstance(event, Evaluated)]


@pytest.mark.parametrize("name", list(methods.NAMES))
def test_idle_energy_is_exact_at_every_row_for_every_method(name: str) -> None:
    made = world(name, powered(12), Limits(seconds=40.3, evaluate_every=3.7))
    found = rows(made.events)
    assert len(found) == 12
    for row in found:
        assert row.joules == pytest.approx(naive_idle(made, row.time))  # computing and sending cost nothing here
    assert found[-1].joules < 40.3 * made.engine.fleet.idle_watts.sum()


def test_absent_devices_draw_nothing_and_lost_jobs_count() -> None:
    absences = {device: [Absence(3.3 + device, 9.1 + device), Absence(20.0, 31.5)] for device in range(0, 12, 2)}
    leaving = Faults(seed=2, loss=0.1, trace=absences), Limits(seconds=38.0, evaluate_every=1.9)
    slow = Faults(seed=2, slowdown=0.4), Limits(seconds=38.0, evaluate_every=1.9, slot_timeout=4.0)
    for name in ("cabafl", "fedavg", "safa"):
        for (faults, limits), reasons in ((leaving, {"crash", "left"}), (slow, {"timeout"})):
            made = world(name, powered(12), limits, faults=faults)
            assert reasons <= set(made.engine.ledger.losses)
            joules = [row.joules for row in rows(made.events)]
            expected = [naive_idle(made, row.time, dict(faults.trace)) for row in rows(made.events)]
            np.testing.assert_allclose(joules, expected, atol=1e-9)
            assert all(a <= b + 1e-9 for a, b in pairwise(joules))


def test_waiting_for_the_network_is_idle() -> None:
    """Of a job of 4 + 6 seconds, the 6 seconds of latency draw idle power, counted when the job ends."""
    devices = replace(fleet([4.0]), idle_watts=np.array([2.0]), latency=6.0)
    made = world("fedavg", devices, Limits(seconds=20.0, evaluate_every=5.0), slots=1)
    assert [row.joules for row in rows(made.events)] == [0.0, 0.0, 12.0, 12.0, 24.0]


def test_a_collection_adds_what_it_draws_above_idle_power() -> None:
    """One device trains, three wait; the second collection takes all of them 2 + 1 seconds."""
    n = 4
    devices = Fleet(
        sizes=np.ones(n, dtype=np.int64),
        compute_seconds=np.full(n, 9.0),
        link_seconds=np.full(n, 1.0),
        latency=0.0,
        answer_seconds=np.full(n, 2.0),
        compute_watts=np.full(n, 10.0),
        radio_watts=np.full(n, 5.0),
        idle_watts=np.full(n, 1.0),
    )
    made = World(
        CaBaFL(CaBaFLParameters(k=1, m=1)),
        devices,
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=14.0, evaluate_every=1.0),
        features=np.eye(n),
    ).run()
    joules = {row.time: row.joules for row in rows(made.events)}
    first = n * (2 * 10.0 + 1 * 5.0)  # takes no time
    job = 9 * 10.0 + 1 * 5.0
    assert joules[9.0] == first + 3 * 9.0
    assert joules[10.0] == first + 3 * 10.0 + job
    assert joules[12.0] == first + 3 * 12.0 + job
    assert joules[13.0] == first + 3 * 13.0 + job + n * (2 * 9.0 + 1 * 4.0)


def test_the_meter_does_no_work_per_device() -> None:
    meter = IdleMeter(np.full(1_000_000, 0.5))
    meter.exclude(3, 10.0)
    assert meter.joules(20.0, [(7, 15.0)]) == 0.5 * (20.0 * 1_000_000 - 10.0 - 5.0)


def test_devices_without_samples_draw_nothing() -> None:
    devices = replace(fleet([1.0, 1.0, 1.0], [5, 0, 5]), idle_watts=np.full(3, 2.0))
    made = world("fedavg", devices, Limits(seconds=2.0, evaluate_every=1.0), slots=1)
    assert rows(made.events)[-1].joules == 2 * 2.0


def test_default_of_zero_changes_nothing_and_the_summary_names_the_share(tmp_path: Path) -> None:
    plain = simulate(load_experiment(None, settings("fedavg", "run.workers=0")))
    assert plain.summary["idle_joules"] == 0.0
    idle = simulate(load_experiment(None, settings("fedavg", "fleet.idle_watts=2", "run.workers=0")))
    assert idle.summary["idle_joules"] > 100
    assert idle.summary["joules"] == pytest.approx(plain.summary["joules"] + idle.summary["idle_joules"])
    assert idle.summary["final_loss"] == plain.summary["final_loss"]


def test_synchronous_devices_wait_and_pay_for_it() -> None:
    """FedAvg on devices of different speed: everybody waits for the slowest."""
    devices = replace(fleet([1.0, 4.0]), idle_watts=np.array([1.0, 1.0]))
    made = World(
        FedAvg(FedAvgParameters()),
        devices,
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=8.0, evaluate_every=4.0),
    ).run()
    assert [row.joules for row in rows(made.events)] == [0.0, 3.0, 6.0]
