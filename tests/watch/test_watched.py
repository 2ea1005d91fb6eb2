"""A run folder is followed whatever becomes of it."""

import json
import shutil
import time
from pathlib import Path

import pytest

from cabafl.files import lock
from cabafl.lifecycle.simulate import resume
from cabafl.watch import watched as module
from cabafl.watch.pace import Pace, PaceSample
from tests.watch.site import Visit, age, append, make_run, visit


def test_a_finished_run(visited: Visit) -> None:
    [run] = visited.runs()
    assert (run["state"], run["progress"], run["left"], run["in_flight"]) == ("finished", 1.0, None, 0)
    assert (run["name"], run["method"], run["dataset"], run["devices"]) == ("one", "cabafl", "synthetic", 12)
    assert (run["time"], run["end"], run["rows"]) == (60.0, 60.0, 13)
    assert run["jobs_per_second"] > 0
    assert run["best"] == max(run["spark"])
    assert run["indexed"] == 0.0  # nobody has looked at it yet
    assert visited.of_run()["indexed"] == 1.0


def test_figures_are_those_of_the_summary(visited: Visit, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    page = visited.of_run()
    for key, name in (("uploads", "uploads"), ("transfers", "transfers"), ("version", "versions"), ("bytes", "bytes")):
        assert page[key] == summary[name]
    assert page["losses"] == summary["losses"]
    assert page["joules"] == summary["joules"]
    assert page["value"] == summary["final_accuracy"]
    assert page["averaged_value"] == summary["averaged"]["final_accuracy"] == page["spark"][-1]
    assert page["best"] == summary["averaged"]["best_accuracy"]  # of the same models as the value that is shown
    assert page["staleness"]["mean"] == pytest.approx(summary["mean_staleness"])
    assert page["staleness"]["max"] == summary["max_staleness"]
    assert page["settings"]["method.k"] == 3
    assert page["damaged"] == 0


def test_running_failed_and_stalled_are_told_apart(visited: Visit, run: Path) -> None:
    (run / "summary.json").unlink()
    assert visited.runs()[0]["state"] == "running"  # written just now
    age(run, 30.0)
    [found] = visited.runs()
    assert (found["state"], found["detail"]) == ("failed", "no process writes it; cabafl resume continues it")
    with (run / "events.jsonl").open("r+b") as held:
        lock(held, "")
        assert visited.runs()[0]["state"] == "running"
        age(run, 7 * 24 * 3600.0)
        [found] = visited.runs()
        assert found["state"] == "stalled"
        assert found["detail"].startswith("nothing written for ")
    assert visited.runs()[0]["state"] == "failed"


def test_the_lock_of_a_run_is_never_taken(visited: Visit, run: Path) -> None:
    """A run that begins at the same moment would be refused."""
    (run / "summary.json").unlink()
    with (run / "events.jsonl").open("r+b") as file:
        for _ in range(20):
            visited.look()
        lock(file, "somebody else has it")


def test_why_a_run_of_a_comparison_failed(visited: Visit, run: Path) -> None:
    (run / "summary.json").unlink()
    age(run, 30.0)
    run.with_name("one.log").write_text("loading\nerror: data.root: missing\n\n")
    assert visited.runs()[0]["detail"] == "error: data.root: missing"


def test_a_system_without_a_table_of_locks(
    visited: Visit, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cabafl.watch.locks.LOCKS", tmp_path / "nothing")
    (run / "summary.json").unlink()
    age(run, 30.0)
    assert visited.runs()[0]["state"] == "running"
    age(run, 60.0)
    assert visited.runs()[0]["state"] == "failed"


def test_a_run_that_grows(visited: Visit, run: Path) -> None:
    whole = {name: (run / name).read_bytes() for name in ("events.jsonl", "metrics.csv")}
    (run / "summary.json").unlink()
    for name, content in whole.items():
        (run / name).write_bytes(content[: len(content) // 3])
    page = visited.of_run()
    generation = page["generation"]
    before, rows = page["events"], page["rows"]
    for name, content in whole.items():
        with (run / name).open("ab") as file:
            file.write(content[len(content) // 3 : -20])
    page = visited.of_run()
    assert page["generation"] == generation
    assert page["events"] > before
    assert page["rows"] > rows
    new = visited.of_run("/curves", since=rows)
    everything = visited.of_run("/curves")
    assert new["columns"]["time"] == everything["columns"]["time"][rows:]
    assert 0 < page["progress"] < 1
    assert page["left"] is not None


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_a_truncated_run_is_read_again(visited: Visit, run: Path, share: float) -> None:
    before = visited.of_run()
    (run / "summary.json").unlink()
    for name in ("events.jsonl", "metrics.csv"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(len(content) * share)])
    page = visited.of_run()
    assert page["generation"] != before["generation"]
    assert page["events"] == (run / "events.jsonl").read_bytes().count(b"\n")
    assert page["events"] < before["events"]
    visited.of_run("/curves")
    visited.of_run("/method")


def test_a_run_that_is_extended_while_it_is_watched(visited: Visit, run: Path) -> None:
    """`cabafl resume` rewinds to the checkpoint and goes on."""
    before = visited.of_run()
    resume(run, settings=["run.virtual_time=90", "run.workers=0"])
    page = visited.of_run()
    assert page["state"] == "finished"
    assert (page["time"], page["end"]) == (90.0, 90.0)
    assert page["events"] == (run / "events.jsonl").read_bytes().count(b"\n")
    assert page["events"] > before["events"]
    uploads = sum(b'"event":"upload"' in line for line in (run / "events.jsonl").read_bytes().splitlines())
    assert page["kinds"]["upload"] == uploads
    assert page["uploads"] == json.loads((run / "summary.json").read_text())["uploads"]


def test_a_deleted_run_is_gone_and_may_come_back(visited: Visit, run: Path, finished: Path) -> None:
    before = visited.of_run()
    shutil.rmtree(run)
    response = visited.client.get(f"/api/runs/{before['id']}/curves")
    assert response.status_code in (200, 404)  # not looked yet
    assert visited.runs() == []
    assert visited.client.get(f"/api/runs/{before['id']}").status_code == 404
    shutil.copytree(finished, run)
    assert [found["id"] for found in visited.runs()] == [before["id"]]
    assert visited.of_run()["generation"] != before["generation"]


def test_the_root_itself_is_deleted(visited: Visit, run: Path) -> None:
    shutil.rmtree(run.parent)
    assert visited.runs() == []


@pytest.mark.parametrize("name", ["experiment.toml", "environment.json", "metrics.csv", "events.jsonl", "summary.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[[[[", b"{}", b'{"clock": 7, "started": [], "metric": 3}\n']
)
def test_damaged_files_are_shown_as_far_as_they_go(visited: Visit, run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    assert len(visited.runs()) == 1
    for what in ("", "/curves", "/activity", "/events", "/at", "/timeline", "/method"):
        visited.of_run(what)
    visited.fleet()
    assert visited.client.get("/metrics").status_code == 200


def test_links_in_place_of_files_are_not_followed(visited: Visit, run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"method": "stolen"}')
    for name in ("summary.json", "environment.json"):
        (run / name).unlink()
        (run / name).symlink_to(secret)
    page = visited.of_run()
    assert page["summary"] is None
    assert page["environment"] == {}
    (run.parent / "two").symlink_to(tmp_path.parent)
    assert len(visited.runs()) == 1


def test_runs_below_any_folder_but_hidden_ones(tmp_path: Path) -> None:
    for name in ("a/b/c", ".hidden/run", "x/journal", "a/b/c/inner"):
        make_run(tmp_path / name, settings="seed = 1\n")
    with visit([tmp_path, tmp_path / "a"]) as visited:
        assert [run["name"] for run in visited.runs()] == ["a/b/c"]  # once, although it is below both


def test_the_lines_of_an_old_version(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "folders" / "0.1"
    shutil.copytree(source, tmp_path / "old")
    with visit([tmp_path / "old"]) as visited:
        runs = {run["name"]: run for run in visited.runs()}
        assert {name: run["state"] for name, run in runs.items() if name != "interrupted"} == {
            "deployed": "finished",
            "finished": "finished",
        }
        assert runs["finished"]["time"] > 0
        assert runs["finished"]["value"] > 0


def test_runs_that_are_over_are_looked_at_less_often(visited: Visit, run: Path) -> None:
    [watched] = visited.site.shelf.runs.values()
    visited.site.shelf.look()
    looks = watched.looks
    visited.site.shelf.look()
    assert watched.looks == looks
    visited.site.shelf.open(watched)
    visited.site.shelf.look()
    assert watched.looks == looks + 1
    (run / "summary.json").unlink()
    visited.look()
    watched.asked = float("-inf")
    looks = watched.looks
    visited.site.shelf.look()
    assert (watched.state, watched.looks) == ("running", looks + 1)


@pytest.mark.parametrize("what", ["follow", "read_events"])
def test_a_run_that_cannot_be_shown_does_not_hide_the_others(
    visited: Visit, run: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    shutil.copytree(run, run.with_name("two"))
    visited.look()
    one, two = visited.site.shelf.runs.values()

    def fails(*_: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(one, what, fails)
    for each in (one, two):
        visited.site.shelf.open(each)
    found = {row["name"]: row for row in visited.runs()}
    assert found["one"]["state"] == ("failed" if what == "follow" else found["one"]["state"])
    assert one.detail == "cannot be shown: ZeroDivisionError: by accident"
    assert found["two"]["indexed"] == 1.0


def test_memory_of_runs_nobody_looks_at_is_given_back(
    visited: Visit, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cabafl.watch.shelf.INDEX_BYTES", 1)
    shutil.copytree(run, run.with_name("two"))
    visited.look()
    one, two = visited.site.shelf.runs.values()
    for looked_at in (one, two):
        visited.site.shelf.open(looked_at)
        visited.look()
    assert one.index.events == 0
    assert two.index.events > 0
    visited.site.shelf.open(one)
    visited.look()
    assert one.index.events > 0


def test_events_that_nobody_has_ended_with_a_newline(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", {"time": 1.0, "event": "own", "x": 1})
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"time":2.0,"event":"own"')
    with visit([tmp_path]) as visited:
        assert visited.of_run()["kinds"] == {"own": 1}
        append(folder / "events.jsonl", "}")
        assert visited.of_run()["kinds"] == {"own": 2}


def test_pace() -> None:
    pace = Pace()
    assert pace.rates() == (None, None)
    assert pace.left() is None
    for second in range(100):
        pace.see(PaceSample(float(second), 3 * second, 10 * second, second / 200))
    assert pace.rates() == (3.0, 10.0)
    assert pace.left() == pytest.approx(101.0)
    pace.see(PaceSample(100.0, 0, 0, 0.0))  # rewound
    assert pace.rates() == (None, None)


def test_quiet_runs_are_judged_by_their_own_rhythm(monkeypatch: pytest.MonkeyPatch, visited: Visit, run: Path) -> None:
    """A run that writes every hour is not stalled after a minute."""
    (run / "summary.json").unlink()
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - 13 * 3600))
    environment = json.loads((run / "environment.json").read_text()) | {"started": started}
    (run / "environment.json").write_text(json.dumps(environment))
    age(run, 2 * 3600.0)
    with (run / "events.jsonl").open("r+b") as held:
        lock(held, "")
        assert visited.runs()[0]["state"] == "running"
        monkeypatch.setattr(module, "QUIET_GAPS", 1.0)
        assert visited.runs()[0]["state"] == "stalled"
