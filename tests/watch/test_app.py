"""What the addresses answer."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from cabafl.watch import stream
from cabafl.watch.overview import as_json
from tests.watch.reference import replay
from tests.watch.site import Visit, append, make_run, visit

NASTY = '<img src=x onerror=alert(1)>"&\u202e'


def test_curves_have_the_rows_of_the_file(visited: Visit, run: Path) -> None:
    lines = (run / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), map(float, line.split(",")), strict=True)) for line in lines[1:]]
    found = visited.of_run("/curves")
    columns = found["columns"]
    assert found["rows"] == len(rows) == 13
    assert columns["time"] == [row["time"] for row in rows]
    assert columns["value"] == [row["accuracy"] for row in rows]
    assert columns["averaged_value"] == [row["averaged_accuracy"] for row in rows]
    assert columns["averaged_loss"] == [row["averaged_loss"] for row in rows]
    assert columns["joules"] == [row["joules"] for row in rows]
    assert columns["transfers"] == [int(row["transfers"]) for row in rows]
    wall = columns["wall"]
    assert found["wall"] == "estimated"
    assert wall[0] == 0.0
    assert wall[-1] == pytest.approx(json.loads((run / "summary.json").read_text())["wall_seconds"])
    assert wall == sorted(wall)


def test_thinned_curves_end_with_the_last_row(visited: Visit) -> None:
    columns = visited.of_run("/curves", points=5)["columns"]
    assert len(columns["time"]) == 5
    assert (columns["time"][0], columns["time"][-1]) == (0.0, 60.0)
    assert visited.of_run("/curves", since=13)["columns"]["time"] == []
    assert visited.of_run("/curves", since=99)["since"] == 13


def test_wall_time_is_measured_where_it_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", metrics="time,version,accuracy,loss,downloads,uploads\n0.0,0,0.1,1.0,0,0\n")
    (folder / "environment.json").write_text('{"started": "2026-01-01T00:00:00+00:00"}')
    now = 1767225600.0
    monkeypatch.setattr("cabafl.watch.watched.time.time", lambda: now)
    monkeypatch.setattr("cabafl.watch.locks.Locks.holds", lambda *_: True)
    with visit([tmp_path]) as visited:
        visited.look()
        for row in range(1, 6):
            now += 10.0 * row
            with (folder / "metrics.csv").open("a") as file:
                file.write(f"{row}.0,{row},0.1,1.0,{row},{row}\n")
            visited.look()
        found = visited.of_run("/curves")
    assert found["wall"] == "measured"
    assert found["columns"]["wall"] == pytest.approx([0.0, 10.0, 30.0, 60.0, 100.0, 150.0], abs=0.1)


def test_activity_adds_up(visited: Visit, run: Path) -> None:
    plain, found = replay(run), visited.of_run("/activity", points=7)
    assert len(found["edges"]) == 8
    assert sum(found["uploads"]) == plain.uploads
    assert sum(found["dispatches"]) == plain.selections.total()
    assert sum(found["published"]) == plain.version
    assert {reason: sum(counts) for reason, counts in found["losses"].items()} == plain.reasons
    assert found["in_flight"][-1] == len(plain.busy)
    stale = sum(mean * count for mean, count in zip(found["staleness"], found["uploads"], strict=True) if count)
    assert stale == pytest.approx(sum(stale * count for stale, count in plain.staleness.items()))


def test_events_are_listed_newest_first_page_by_page(visited: Visit, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    unlisted = ("dispatch", "upload", "answer", "evaluation", "ready", "fetch", "finish")
    expected = [event | {"number": number} for number, event in enumerate(lines) if event["event"] not in unlisted]
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 10}
    while True:
        answer = visited.of_run("/events", **query)
        found += answer["events"]
        if not answer["more"]:
            break
        query["before"] = found[-1]["number"]
    assert found == expected[::-1]
    losses = visited.of_run("/events", kind="loss", limit=3)["events"]
    assert losses == [event for event in expected if event["event"] == "loss"][::-1][:3]


def test_the_timeline_has_the_jobs_of_the_last_seconds(visited: Visit, run: Path) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    sent = {event["job"]: event for event in events if event["event"] == "dispatch"}
    ended = {event["job"]: event for event in events if event["event"] in ("upload", "loss")}
    found = visited.of_run("/timeline", time=30, seconds=10)
    expected = [
        job
        for job, event in sent.items()
        if event["time"] <= 30 and (job not in ended or ended[job]["time"] > 30 or ended[job]["time"] >= 20)
    ]
    assert (found["from"], found["to"], found["total"]) == (20.0, 30.0, len(expected))
    assert found["job"] == expected
    for place, job in enumerate(found["job"]):
        over = job in ended and ended[job]["time"] <= 30
        assert found["device"][place] == sent[job]["device"]
        assert found["start"][place] == sent[job]["time"]
        assert found["end"][place] == (ended[job]["time"] if over else sent[job]["due"])
        outcome = found["outcomes"][found["outcome"][place]]
        assert outcome == ((ended[job].get("reason") or "upload") if over else "under way")
    part = visited.of_run("/timeline", time=30, seconds=10, first=3, devices=2, limit=2)
    assert set(part["device"]) <= {3, 4}
    assert len(part["job"]) <= 2 <= part["total"]


def test_one_device(visited: Visit, run: Path) -> None:
    plain = replay(run, 40.0)
    device = max(plain.lost, key=lambda device: plain.lost[device])
    found = visited.of_run(f"/device/{device}", time=40)
    assert (found["selections"], found["lost"]) == (plain.selections[device], plain.lost[device])
    assert found["seen"] == plain.seen[device]
    assert len(found["jobs"]["job"]) == plain.selections[device]
    assert found["status"] is None
    assert visited.client.get(f"/api/runs/{visited.id}/device/12").status_code == 404
    assert visited.client.get(f"/api/runs/{visited.id}/device/-1").status_code == 404


def test_series(visited: Visit, run: Path) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    cache = [event for event in events if event["event"] == "cache"]
    found = visited.of_run("/series", kind="cache", field="similarity", by="slot")
    assert found["value"] == [event["similarity"] for event in cache]
    assert found["by"] == [event["slot"] for event in cache]
    assert found["time"] == [event["time"] for event in cache]
    until = visited.of_run("/series", kind="cache", field="similarity", time=20, points=3)
    assert until["total"] == sum(event["time"] <= 20 for event in cache)
    assert len(until["time"]) == 3
    for query in ({"kind": "cache", "field": "nothing"}, {"kind": "nothing", "field": "x"}):
        assert visited.client.get(f"/api/runs/{visited.id}/series", params=query).status_code == 404


def test_only_the_fields_asked_for(visited: Visit) -> None:
    header, arrays = visited.fleet(fields="state,selections")
    assert set(arrays) == {"state", "selections"}
    assert header["joules"] is None


@pytest.mark.parametrize(
    ("what", "query"),
    [
        ("/curves", {"since": "-1"}),
        ("/curves", {"since": "x"}),
        ("/curves", {"points": "1"}),
        ("/curves", {"points": "1e9"}),
        ("/curves", {"points": "９"}),
        ("/activity", {"points": "0"}),
        ("/activity", {"points": "99999999999999999999999"}),
        ("/events", {"limit": "501"}),
        ("/events", {"before": "1.5"}),
        ("/at", {"time": "nan"}),
        ("/at", {"time": "-1"}),
        ("/at", {"time": "inf"}),
        ("/at", {"time": "soon"}),
        ("/fleet", {"fields": "state,passwords"}),
        ("/timeline", {"seconds": "-5"}),
        ("/timeline", {"limit": "0"}),
        ("/series", {}),
        ("/series", {"kind": "x" * 300, "field": "y"}),
    ],
)
def test_a_bad_parameter_is_one_line(visited: Visit, what: str, query: dict[str, str]) -> None:
    response = visited.client.get(f"/api/runs/{visited.id}{what}", params=query)
    assert response.status_code == 400
    text = response.json()["error"]
    assert "accepted: " in text
    assert "\n" not in text


@pytest.mark.parametrize("name", ["nothing", "..", "%2e%2e", "..%2f..%2fetc", "0" * 16, "x" * 4000])
def test_a_run_that_is_not_there(visited: Visit, name: str) -> None:
    assert visited.client.get(f"/api/runs/{name}/curves").status_code == 404


def test_names_are_text(tmp_path: Path) -> None:
    """In JSON nothing is markup; a line break in a name begins no second event of the stream."""
    name = NASTY.replace("/", "") + "\nevent: runs"
    settings = f"seed = 1\n[method]\nname = {json.dumps(NASTY)}\n[data]\ndataset = {json.dumps(NASTY)}\n"
    folder = make_run(tmp_path / name, {"time": 1.0, "event": NASTY, NASTY: NASTY, "x": "\udc80"}, settings=settings)
    append(folder / "events.jsonl", '{"time":2.0,"event":"own","text":"\\ud800"}')
    with visit([tmp_path]) as visited:
        [row] = visited.runs()
        assert (row["name"], row["method"], row["dataset"]) == (name, NASTY, NASTY)
        page = visited.of_run("/method")
        assert NASTY in [kind["kind"] for kind in page["kinds"]]
        assert visited.of_run("/events")["events"][1][NASTY] == NASTY
        response = visited.client.get("/api/runs")
        assert response.headers["content-type"] == "application/json"
        assert b"\n" not in stream.message("runs", {"name": name}).split(b"data: ")[1].rstrip(b"\n")


def test_json_of_strange_values() -> None:
    strange = {"big": 2**80, "nan": float("nan"), "text": "\udc80", 3: [np.float64("inf")], "array": np.arange(6)[::2]}
    found = json.loads(as_json(strange))
    assert found["big"] == str(2**80)
    assert (found["nan"], found["3"], found["array"]) == (None, [None], [0, 2, 4])


def test_the_overview_says_what_changed(visited: Visit, run: Path) -> None:
    overview = visited.site.overview
    first = overview.refresh()
    assert len(overview.changes(-1)["runs"]) == 1
    assert overview.changes(first)["runs"] == []
    (run / "summary.json").unlink()
    visited.look()
    second = overview.refresh()
    assert second == first + 1
    assert len(overview.changes(first)["runs"]) == 1
    for file in run.iterdir():
        file.unlink()
    run.rmdir()
    visited.look()
    overview.refresh()
    assert len(overview.changes(second)["removed"]) == 1


def test_the_stream_tells_of_changes(visited: Visit, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "INTERVAL", 0.0)
    monkeypatch.setattr(stream, "SILENCE", -1.0)
    rounds = iter([True] * 5 + [False])

    async def collect() -> list[str]:
        found = []
        async for piece in stream.changes(visited.site.overview, [visited.id], lambda: next(rounds)):
            found.append(piece.decode())
            if len(found) == 2:
                append(run / "events.jsonl", {"time": 61.0, "event": "own", "x": 1})
                visited.look()
        return found

    pieces = asyncio.run(collect())
    assert pieces[0].startswith("event: hello\ndata: {")
    assert any("event: run\n" in piece for piece in pieces[1:2])
    assert any('"time":61.0' in piece for piece in pieces[2:])
    assert pieces[-1] == ": still here\n\n"


def test_streams_are_limited(visited: Visit) -> None:
    visited.site.streams = 100
    assert visited.client.get("/api/stream").status_code == 503


def test_a_mistake_of_the_server_is_one_line(visited: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("details that nobody outside should see")

    monkeypatch.setattr("cabafl.watch.views.run_page", broken)
    from starlette.testclient import TestClient

    quiet = TestClient(visited.client.app, base_url="http://localhost", raise_server_exceptions=False)
    response = quiet.get(f"/api/runs/{visited.id}")
    assert response.status_code == 500
    assert "details" not in response.text


def test_every_address_is_documented(visited: Visit) -> None:
    text = (Path(__file__).parents[2] / "docs" / "watch-api.md").read_text(encoding="utf-8")
    app = visited.client.app
    assert isinstance(app, Starlette)
    for route in app.routes:
        if isinstance(route, Route):
            path = route.path.replace("{run}", "ID").replace("{fleet}", "ID").replace("{device:int}", "N")
            last = f"/{path.rpartition('/')[2]}"
            assert path in text or (path.startswith("/api/runs/ID/") and last in text), path
