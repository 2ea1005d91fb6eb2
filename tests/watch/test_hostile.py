"""Run folders and visitors that mean harm: the rest of the page still works, and memory stays bounded."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cabafl.watch import access, evaluations, shelf, tail, views
from cabafl.watch.absences import MOST
from cabafl.watch.access import FAILURES, Gate, Secret
from cabafl.watch.facts import LARGEST_JSON
from cabafl.watch.jobs import LARGEST_GAP
from cabafl.watch.kinds import LONGEST_NAME
from cabafl.watch.shelf import Shelf
from tests.watch.site import Visit, append, make_run, visit

VIEWS = ("", "/curves", "/activity", "/events", "/at", "/fleet", "/timeline", "/method", "/device/0")
CABAFL = '[method]\nname = "cabafl"\n'
NESTED = "[" * 600 + "]" * 600


def dispatch(**fields: Any) -> dict[str, Any]:
    return {"event": "dispatch", "time": 1.0, "job": 0, "device": 0, "slot": 0, "version": 0, "due": 2.0} | fields


CACHE = {"event": "cache", "time": 1, "slot": 0, "trained": 1, "similarity": 0.5, "rank": 1, "length": 2}


@pytest.mark.parametrize(
    ("files", "events"),
    [
        ({"summary.json": '{"losses": {"crash": "many"}}'}, []),
        ({"summary.json": '{"losses": {"crash": null}}'}, []),
        ({"experiment.toml": f"seed = 0x{'f' * 5000}\n{CABAFL}"}, []),
        ({"experiment.toml": f"{CABAFL}k = 1{'0' * 400}\n"}, [dispatch(), CACHE | {"accepted": True}]),
        ({"experiment.toml": f"x = {'[' * 300}{']' * 300}\n"}, []),
        ({"experiment.toml": f"{'a.' * 5000}a = 1\n"}, []),
        ({"environment.json": f'{{"x": {NESTED}}}'}, []),
        ({"summary.json": f'{{"x": {NESTED}}}'}, []),
        ({}, [f'{{"event": "note", "time": 1, "x": {NESTED}}}']),
        ({}, [{"event": "collection", "time": "12", "step": "start", "devices": 3, "missing": 0}]),
        ({}, [{"event": "auto", "time": "3", "setting": "k", "value": 3}]),
        ({}, [dispatch(slot=10**9)]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_one_bad_run_hides_no_other(tmp_path: Path, files: dict[str, str], events: list[Any]) -> None:
    bad = make_run(tmp_path / "bad", *events)
    make_run(tmp_path / "good", dispatch())
    for name, text in files.items():
        (bad / name).write_text(text)
    with visit([tmp_path]) as visited:
        for run in visited.site.shelf.runs.values():
            visited.site.shelf.open(run)
        assert {row["name"] for row in visited.runs()} == {"bad", "good"}
        assert visited.client.get("/metrics").status_code == 200
        for name in visited.site.shelf.runs:
            for view in VIEWS:
                assert visited.client.get(f"/api/runs/{name}{view}").status_code in (200, 404), view


def test_a_run_whose_figures_cannot_be_made_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "bad")
    make_run(tmp_path / "good")
    with visit([tmp_path]) as visited:
        bad = next(run for run in visited.site.shelf.runs.values() if run.place.name == "bad")

        def broken() -> dict[str, Any]:
            raise ValueError("an unforeseen one")

        monkeypatch.setattr(bad, "row", broken)
        assert [row["name"] for row in visited.runs()] == ["good"]
        text = visited.client.get("/metrics").text
        assert 'run="good"' in text
        assert 'run="bad"' not in text


def test_missing_jobs_take_only_so_much_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with visit([tmp_path]) as visited:
        watched = visited.site.shelf.runs[visited.id]
        visited.site.shelf.open(watched)
        for look in range(5):
            append(run / "events.jsonl", dispatch(job=(look + 1) * (LARGEST_GAP - 10)))
            visited.look()
        assert len(watched.index.jobs) <= LARGEST_GAP + 5
        assert watched.index.damaged == 4


def test_absences_of_very_many_devices_are_not_prepared(visited: Visit) -> None:
    run = visited.site.shelf.runs[visited.id]
    assert run.facts.faults is not None
    assert run.absences(MOST) is not None
    assert run.absences(MOST + 1) is None


def test_long_names_of_fields_and_large_files_are_not_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"event": "note", "time": 1, "x" * (LONGEST_NAME + 1): 1, "y": 2})
    (run / "environment.json").write_text(json.dumps({"x": "y" * LARGEST_JSON}))
    with visit([tmp_path]) as visited:
        assert visited.of_run()["environment"] == {}
        assert visited.of_run("/method")["kinds"][0]["fields"] == {"y": "number"}


def test_a_list_of_events_is_only_so_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_BYTES", 2500)
    make_run(tmp_path / "run", *({"event": "note", "time": n, "x": {"y": "z" * 1000}} for n in range(10)))
    with visit([tmp_path]) as visited:
        numbers, pages, more = [10], 0, True
        while more and pages < 20:
            found = visited.of_run("/events", before=numbers[-1])
            numbers += [event["number"] for event in found["events"]]
            pages, more = pages + 1, found["more"]
        assert numbers == list(reversed(range(11)))
        assert pages == 4


def test_a_huge_line_costs_no_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", dispatch())
    with (run / "events.jsonl").open("ab") as log:
        log.write(b'{"event":"note","time":2,"x":[')
        for _ in range(40):
            log.write(b"0," * (1 << 19))
        log.write(b"0]}\n")
    append(run / "events.jsonl", dispatch(job=1, time=3.0))
    sizes: list[int] = []
    with visit([tmp_path]) as visited:
        watched = visited.site.shelf.runs[visited.id]
        take = watched.index.take

        def measured(content: bytes, start: int) -> None:
            sizes.append(len(content))
            take(content, start)

        watched.index.take = measured  # type: ignore[method-assign]
        found = visited.of_run()
    assert found["kinds"] == {"dispatch": 2}
    assert found["indexed"] == 1
    assert found["damaged"] >= 1
    assert max(sizes) <= tail.CHUNK


def test_a_long_record_does_not_keep_the_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "READ_SECONDS", 0.0)
    monkeypatch.setattr(shelf, "LOOK_INTERVAL", 60.0)
    monkeypatch.setattr(tail, "CHUNK", 100)
    run = make_run(tmp_path / "run", *({"event": "note", "time": n} for n in range(100)))
    with visit([tmp_path]) as visited:
        watched = visited.site.shelf.runs[visited.id]
        visited.site.shelf.open(watched)
        visited.site.shelf.read_events()
        assert 0 < watched.index.events < 10
        assert visited.site.shelf._wake.is_set()  # and goes on at once
    followed = Shelf([run.parent])
    followed.start()
    try:
        [watched] = followed.runs.values()
        followed.open(watched)
        until = time.monotonic() + 30
        while watched.index.events < 100 and time.monotonic() < until:
            time.sleep(0.01)
        assert watched.index.events == 100
    finally:
        followed.close()


def test_endless_evaluations_do_not_keep_the_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHUNK", 100)
    rows = "".join(f"{n}.0,{n},0.5\n" for n in range(1000))
    make_run(tmp_path / "run", metrics=f"time,version,accuracy\n{rows}")
    with visit([tmp_path]) as visited:
        watched = visited.site.shelf.runs[visited.id]
        read = len(watched.evaluations)
        assert 0 < read <= 100 * evaluations.MOST_PIECES / 7
        while visited.runs()[0]["rows"] > read:
            read = len(watched.evaluations)
        assert read == 1000


def test_a_sparse_file_of_256_gigabytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "bad")
    make_run(tmp_path / "good")
    for name in ("events.jsonl", "metrics.csv"):
        os.truncate(run / name, 1 << 38)
    began = time.monotonic()
    with visit([tmp_path]) as visited:
        assert {row["name"] for row in visited.runs()} == {"bad", "good"}
    assert time.monotonic() - began < 30


def test_many_guesses_at_once_are_limited_and_checked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(Secret("right", password=False))
    at_once: list[int] = []
    checked: list[str] = []

    def slow(text: str) -> bool:
        at_once.append(len(at_once) + 1)
        checked.append(text)
        time.sleep(0.02)
        assert len(at_once) == 1
        at_once.pop()
        return False

    monkeypatch.setattr(gate._secret, "matches", slow)
    assert gate.wait("a") == 0
    threads = [threading.Thread(target=gate.knows, args=(f"guess {n}", "a")) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checked) == FAILURES
    assert not at_once
    assert 0 < gate.wait("a") <= access.FAILURE_SECONDS


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://evil.example"])
def test_odd_origins_are_refused(visited: Visit, origin: str) -> None:
    response = visited.client.post("/api/login", json={"secret": "x"}, headers={"Origin": origin})
    assert response.status_code == 403


def test_a_form_with_many_fields_is_refused(visited: Visit) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    response = visited.client.post("/login", content="a=1&" * 20, headers=form)
    assert response.status_code == 400
    assert response.json()["error"].startswith("body: ")


def test_a_password_with_any_letters_may_be_sent_by_a_script(visited: Visit) -> None:
    visited.site.gate._secret = Secret("pässwörd ☂", password=True)
    header = {b"Authorization": "Bearer pässwörd ☂".encode()}
    assert visited.client.get("/api/session", headers=header).json()["operator"]
    header = {b"Authorization": b"Bearer \xff\xfe"}
    assert not visited.client.get("/api/session", headers=header).json()["operator"]
