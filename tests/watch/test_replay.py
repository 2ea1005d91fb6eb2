"""The page at any time of a run shows what the events up to then say."""

import json
from pathlib import Path

import numpy as np
import pytest

from cabafl.config import load_experiment
from cabafl.engine.virtual import VirtualEngine
from cabafl.lifecycle.simulate import simulate
from cabafl.recording.events import Event
from cabafl.watch.fleet_views import FleetView
from cabafl.watch.locks import Locks
from cabafl.watch.method_page import MethodView
from cabafl.watch.moment import FIELDS, STATES
from cabafl.watch.places import Place
from cabafl.watch.watched import WatchedRun
from tests.runs import AUTO, settings
from tests.watch.reference import replay
from tests.watch.site import unpacked

TIMES = (0.0, 0.5, 7.0, 13.37, 30.0, 44.4, 59.9, 1e9)


def watched(folder: Path) -> WatchedRun:
    run = WatchedRun(Place(folder.parent, (folder.name,)))
    run.follow(Locks())
    while run.read_events():
        pass
    assert run.indexed == 1
    return run


@pytest.mark.parametrize("time", TIMES)
def test_the_fleet_at_any_time(finished: Path, time: float) -> None:
    run, plain = watched(finished), replay(finished, time)
    header, arrays = unpacked(FleetView(run, time, None).packed(FIELDS))
    assert header["devices"] == 12
    assert header["time"] == min(time, 60.0)
    for device in range(12):
        job = plain.busy.get(device)
        assert arrays["slot"][device] == (job["slot"] if job else -1)
        assert arrays["job"][device] == (job["job"] if job else -1)
        assert (STATES[arrays["state"][device]] == "training") == (job is not None)
        np.testing.assert_allclose(arrays["due"][device], job["due"] if job else np.nan, rtol=1e-6)
        np.testing.assert_allclose(arrays["seen"][device], plain.seen.get(device, np.nan), rtol=1e-6)
        if plain.last_lost.get(device) and job is None:
            assert STATES[arrays["state"][device]] in ("lost", "away")
    assert arrays["selections"].tolist() == [plain.selections[device] for device in range(12)]
    assert arrays["lost"].tolist() == [plain.lost[device] for device in range(12)]
    assert sum(header["counts"].values()) == 12
    assert header["by_tier"] == [list(header["counts"].values())]


@pytest.mark.parametrize("time", TIMES)
def test_counts_at_any_time(finished: Path, time: float) -> None:
    plain, found = replay(finished, time), FleetView(watched(finished), time, None).at()
    assert found["uploads"] == plain.uploads + plain.reasons["rejected"] + plain.reasons["stale"]
    assert found["dispatches"] == plain.selections.total()
    assert found["in_flight"] == len(plain.busy)
    assert found["losses"] == plain.reasons
    assert found["version"] == plain.version
    assert found["row"] == plain.row


def test_devices_are_away_when_the_engine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absences are not recorded; they follow from the seed."""
    seen: list[tuple[float, set[int]]] = []
    engines: list[VirtualEngine] = []
    start = VirtualEngine.start

    def remember(self: VirtualEngine) -> None:
        engines.append(self)
        start(self)

    def listen(event: Event) -> None:
        if engines and not engines[0].outbox.waiting:
            seen.append((engines[0].now, set(engines[0].away)))

    monkeypatch.setattr(VirtualEngine, "start", remember)
    simulate(
        load_experiment(None, settings("fedasync", "fleet.faults.present_seconds=20", "run.workers=0")),
        tmp_path / "run",
        listen,
    )
    run = watched(tmp_path / "run")
    last = dict(seen)  # after the last event of each time
    assert any(last.values())
    for time, away in list(last.items())[5::7]:
        _, arrays = unpacked(FleetView(run, time, None).packed(["state"]))
        shown = {device for device, state in enumerate(arrays["state"]) if STATES[state] == "away"}
        assert shown == away, time


@pytest.mark.parametrize("time", TIMES)
def test_the_page_of_cabafl_at_any_time(finished: Path, time: float) -> None:
    plain, page = replay(finished, time), MethodView(watched(finished), time).page()
    assert page["page"] == "cabafl"
    assert page["version"] == plain.version
    assert page["since_published"]["devices"].tolist() == plain.since_published
    slots, cabafl = page["slots"], page["cabafl"]
    count = len(slots["slot"])
    assert count == 4
    in_flight = {job["slot"]: device for device, job in plain.busy.items()}
    assert slots["device"].tolist() == [in_flight.get(slot, -1) for slot in range(count)]
    assert [each.tolist() for each in slots["visited"]] == [plain.visited[slot] for slot in range(count)]
    for slot in range(count):
        event = plain.cache.get(slot)
        assert cabafl["trained"][slot] == (event["trained"] if event else 0)
        assert cabafl["accepted"][slot] == (event["accepted"] if event else None)
        np.testing.assert_equal(cabafl["similarity"][slot], event["similarity"] if event else np.nan)
        np.testing.assert_equal(cabafl["l1"][slot], plain.l1.get(slot, np.nan))
        assert cabafl["why"][slot] == (None if event is None else expected_reason(event))
    if plain.published is None:
        assert page["published"] is None
        assert cabafl["weight"] == [None] * count
    else:
        assert cabafl["weight"] == plain.published["weights"]
        assert cabafl["aggregation"] == {key: plain.published[key] for key in ("time", "version", "slot")}


def expected_reason(event: dict[str, object]) -> str:
    """k is 3, gamma 0.2."""
    rank, length, trained = (int(str(event[key])) for key in ("rank", "length", "trained"))
    late, similar = trained > 1.5, rank / length > 0.2
    assert event["accepted"] == (late or similar)
    return "late" if late else "similar" if similar else "dissimilar"


def test_settings_that_tune_themselves_are_those_of_the_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("cabafl", *AUTO, "run.workers=0")), folder)
    run = watched(folder)
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    tuned = [event for event in lines if event["event"] == "auto" and event["setting"] == "k"]
    assert tuned
    assert MethodView(run, None).settings()["k"] == tuned[-1]["value"]
    assert MethodView(run, None).page()["cabafl"]["k"] == tuned[-1]["value"]
    before = MethodView(run, tuned[0]["time"] - 1e-9).settings()["k"]
    assert before is None


@pytest.mark.parametrize("method", ["fedavg", "fedbuff", "fedat", "gitfl", "evenkeel"])
def test_every_method_has_a_page(tmp_path: Path, method: str) -> None:
    simulate(load_experiment(None, settings(method, "run.workers=0")), tmp_path / "run")
    run, plain = watched(tmp_path / "run"), replay_versions(tmp_path / "run")
    page = MethodView(run, None).page()
    assert page["page"] == "generic"
    assert page["cabafl"] is None
    assert page["version"] == len(plain)
    assert page["per_version"].tolist() == plain[-50:]
    assert {kind["kind"] for kind in page["kinds"]} >= {"publish"}


def replay_versions(folder: Path) -> list[int]:
    """Uploads before each publication, since the one before."""
    found, uploads = [], 0
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)["event"]
        uploads += event == "upload"
        if event == "publish":
            found.append(uploads)
            uploads = 0
    return found


def test_energy_of_the_devices_is_that_of_the_run(tmp_path: Path) -> None:
    """Of jobs alone, by a method that collects nothing, and with tiers of different power."""
    more = ["fleet.tiers=config1", "fleet.tier_compute_watts={ low = 3.0 }"]
    plain = ["data.dataset=synthetic", "data.devices=20", "model.name=mlp", "method.name=fedasync"]
    for number, words in enumerate([[], more, ["fleet.bandwidth_mbps=5"], ["fleet.extra_latency=3"]]):
        folder = tmp_path / str(number)
        simulate(load_experiment(None, [*plain, "run.virtual_time=200", "run.workers=0", *words]), folder)
        run = watched(folder)
        header, arrays = unpacked(FleetView(run, None, None).packed(FIELDS))
        total = run.evaluations.last("joules")
        assert header["joules"] == pytest.approx(total, rel=1e-4)
        if words == more:
            assert header["tiers"][0] == "excellent"
            assert np.bincount(arrays["tier"]).tolist() == [8, 6, 2, 2, 2]
            assert np.array(header["by_tier"]).sum(axis=1).tolist() == [8, 6, 2, 2, 2]
