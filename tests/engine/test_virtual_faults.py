"""Simulated faults: exact counts, no slot lost, availability, traces."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabafl import methods
from cabafl.engine.core import Limits
from cabafl.errors import UserError
from cabafl.fleet import FINE, Absence, Faults, read_trace
from cabafl.methods.base import Method
from cabafl.methods.cabafl import CaBaFL, CaBaFLParameters
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from cabafl.methods.safa import SAFA, SAFAParameters
from cabafl.recording.events import Dispatched, Lost, Uploaded
from tests.scripted import World, fleet, vector

ALL = [*methods.NAMES, "safa-all"]


def make(name: str) -> Method:
    if name == "cabafl":
        return CaBaFL(CaBaFLParameters(k=4, m=5))
    if name == "safa-all":
        return SAFA(SAFAParameters(population="all"))
    cls = methods.find(name)
    return cls(cls.Parameters())


def world(name: str, faults: Faults, limits: Limits, devices: int = 30, slots: int = 6) -> World:
    draw = np.random.default_rng(3)
    return World(
        make(name),
        fleet(draw.uniform(1, 4, devices).tolist(), draw.integers(5, 50, devices).tolist()),
        lambda job: job.weights + 1,
        initial=vector(0, 0),
        slots=slots,
        limits=limits,
        features=draw.random((devices, 4)),
        faults=faults,
    )


def check_log(made: World, slots: int) -> None:
    """No device in two jobs at once, never more than the slots in flight, counts equal the log."""
    flying: dict[int, int] = {}
    given_up: set[int] = set()
    for event in made.events:
        if isinstance(event, Dispatched):
            assert event.device not in flying.values()
            flying[event.job] = event.device
        elif isinstance(event, Uploaded):
            del flying[event.job]
        elif isinstance(event, Lost):
            if event.reason == "timeout":
                given_up.add(event.job)  # its device stays busy
            del flying[event.job]
        assert len(flying) <= slots
    ledger = made.engine.ledger
    reasons = [event.reason for event in made.events if isinstance(event, Lost)]
    assert dict(ledger.losses) == {reason: reasons.count(reason) for reason in set(reasons)}
    dispatched = sum(isinstance(event, Dispatched) for event in made.events)
    received = sum(isinstance(event, Uploaded) for event in made.events)
    vectors = 2 if made.engine.method.name in ("scaffold", "fedac") else 1  # with a correction
    assert vectors * dispatched == ledger.downloads
    assert dispatched == ledger.dispatches == received + len(reasons) + len(flying)
    assert ledger.uploads == received + ledger.losses["rejected"] + ledger.losses["stale"]


@pytest.mark.parametrize("name", ALL)
def test_thousands_of_uploads_with_every_fault(name: str) -> None:
    faults = Faults(seed=1, loss=0.2, corrupt=0.05, slowdown=0.1)
    jobs = 15_000 if name == "safa-all" else 4000  # in which each kind of fault occurs
    limits = Limits(seconds=None, max_dispatches=jobs, slot_timeout=5.0, evaluate_every=500.0)
    made = world(name, faults, limits).run()
    check_log(made, 30 if name == "safa-all" else 6)
    ledger = made.engine.ledger
    assert ledger.uploads >= 2 / 3 * jobs
    fates = [faults.fate(job) for job in range(jobs)]
    crashes = sum(fate.crash_at is not None for fate in fates)
    assert ledger.slowed == sum(fate.stretch != 1.0 for fate in fates)
    assert ledger.losses["timeout"] > 0
    assert crashes - ledger.losses["timeout"] - ledger.losses["cancelled"] <= ledger.losses["crash"] <= crashes
    assert ledger.losses["rejected"] > jobs / 50
    assert np.isfinite(made.engine.model).all()
    for event in made.publications():
        weights = event.facts.get("weights")
        if weights is not None and name != "fedsa":  # FedSA's are the shares of the arrivals, the rest stays
            assert sum(weights) == pytest.approx(1.0)
            assert min(weights) >= 0.0
    assert not [flight for flight in made.engine.flights.values() if not flight.abandoned]  # every slot is free again
    assert made.engine.version > jobs / 50


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from([0.0, 0.3]),
    corrupt=st.sampled_from([0.0, 0.3]),
    away=st.sampled_from([None, 3.0, 30.0]),
    timeout=st.sampled_from([None, 2.0, 3.5]),
    slots=st.integers(1, 8),
)
def test_no_slot_is_lost_for_ever(
    name: str, seed: int, loss: float, corrupt: float, away: float | None, timeout: float | None, slots: int
) -> None:
    present = None if away is None else 20.0
    faults = Faults(seed, loss, corrupt, 0.2, 3.0, present, away)
    limits = Limits(seconds=120.0, slot_timeout=timeout, evaluate_every=50.0)
    made = world(name, faults, limits, devices=8, slots=slots).run()
    check_log(made, 8 if name == "safa-all" else slots)
    last = max((event.time for event in made.events if isinstance(event, Dispatched)), default=0.0)
    assert last > 60.0  # still dispatching late in the run
    if name == "cabafl":
        method = made.engine.method
        assert isinstance(method, CaBaFL)
        flying = [flight.slot for flight in made.engine.flights.values() if not flight.abandoned]
        assert sorted([*flying, *method.waiting]) == list(range(slots))


def test_fates_depend_on_the_job_only() -> None:
    faults = Faults(seed=5, loss=0.3, corrupt=0.3, slowdown=0.3)
    assert [faults.fate(n) for n in (3, 1, 3)] == [faults.fate(3), faults.fate(1), faults.fate(3)]
    fates = [faults.fate(n) for n in range(5000)]
    assert np.mean([fate.crash_at is not None for fate in fates]) == pytest.approx(0.3, abs=0.03)
    assert np.mean([fate.corrupt is not None for fate in fates]) == pytest.approx(0.3, abs=0.03)
    assert np.mean([fate.stretch == 2.0 for fate in fates]) == pytest.approx(0.3, abs=0.03)
    assert Faults().fate(1) is FINE


def test_absences_have_the_configured_means() -> None:
    faults = Faults(seed=2, present_seconds=50.0, absent_seconds=10.0)
    present, absent, since = [], [], 0.0
    for number in range(3000):
        absence = faults.absence(4, number, since)
        assert absence is not None
        present.append(absence.leave - since)
        absent.append(absence.back - absence.leave)
        since = absence.back
    assert np.mean(present) == pytest.approx(50, rel=0.1)
    assert np.mean(absent) == pytest.approx(10, rel=0.1)


def test_a_device_that_leaves_loses_its_job_and_gets_new_ones_when_it_is_back() -> None:
    faults = Faults(trace={0: [Absence(1.5, 4.0)], 1: [Absence(0.5, 100.0)]})
    made = World(
        FedAvg(FedAvgParameters()),
        fleet([1.0, 1.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=6.0),
        faults=faults,
    )
    made.run()
    assert made.losses == [(0.5, 1, "left"), (1.5, 0, "left")]
    assert [t for t, device, _ in made.dispatches if device == 0] == [0.0, 1.0, 4.0, 5.0, 6.0]


def test_absent_devices_do_not_answer_a_collection() -> None:
    made = world("cabafl", Faults(trace={0: [Absence(0.0, 1000.0)]}), Limits(seconds=60.0))
    made.run()
    method = made.engine.method
    assert isinstance(method, CaBaFL)
    assert not method.features.rows[0].any()
    assert method.features.rows[1].any()


def test_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("device,leave,back\n3,10,20.5\n0,1,2\n3,30,31\n")
    assert read_trace(path, 4) == {3: [Absence(10, 20.5), Absence(30, 31)], 0: [Absence(1, 2)]}


@pytest.mark.parametrize(
    "rows",
    ["device,leave\n1,2\n", "device,leave,back\n9,1,2\n", "device,leave,back\n1,5,2\n", "device,leave,back\n1,a,2\n"],
)
def test_bad_trace_file(rows: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(rows)
    with pytest.raises(UserError, match="line 2: accepted"):
        read_trace(path, 4)
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", 4)
