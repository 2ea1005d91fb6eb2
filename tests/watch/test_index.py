"""The index of an event log has the figures of the events in it, however they arrive."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.watch.index import EventIndex
from cabafl.watch.jobs import OUTCOMES
from tests.watch.reference import replay


def indexed(content: bytes, cuts: list[int] | None = None) -> EventIndex:
    """The index of a log that arrives in pieces, cut after the given numbers of lines."""
    index = EventIndex(lambda start, size: content[start : start + size])
    lines, position = content.splitlines(keepends=True), 0
    bounds = [0, *(cuts or []), len(lines)]
    for first, last in itertools.pairwise(bounds):
        piece = b"".join(lines[first:last])
        if piece:
            index.take(piece, position)
            position += len(piece)
    return index


def test_figures_of_a_run(finished: Path) -> None:
    index, plain = indexed((finished / "events.jsonl").read_bytes()), replay(finished)
    assert index.counts == plain.kinds
    assert index.losses == plain.reasons
    assert set(plain.reasons) >= {"crash", "timeout", "rejected", "left"}
    assert index.jobs.in_flight == len(plain.busy)
    assert dict(enumerate(np.trim_zeros(index.staleness, "b").tolist())) == {
        stale: plain.staleness[stale] for stale in range(max(plain.staleness) + 1)
    }
    assert index.staleness_max == max(plain.staleness)
    assert index.events == plain.kinds.total()
    assert index.damaged == 0
    assert index.nbytes > 0


@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_do_not_matter(finished: Path, seed: int) -> None:
    content = (finished / "events.jsonl").read_bytes()
    whole, count = indexed(content), content.count(b"\n")
    pieces = indexed(content, sorted(random.Random(seed).sample(range(count), 30)))
    for name in whole.jobs.rows.names:
        np.testing.assert_array_equal(whole.jobs[name], pieces.jobs[name])
    assert whole.counts == pieces.counts
    for kind, log in whole.kinds.items():
        for name in ("time", "number", "offset", "size"):
            np.testing.assert_array_equal(log.rows[name], pieces.kinds[kind].rows[name])
    assert whole.kinds["cache"].fields == pieces.kinds["cache"].fields


def test_events_are_found_again_in_the_file(finished: Path) -> None:
    content = (finished / "events.jsonl").read_bytes()
    log = indexed(content, [7, 100, 101]).kinds["cache"]
    lines = content.splitlines()
    similarity = log.values("similarity")
    assert similarity is not None
    for place in range(len(log)):
        offset, size = int(log.rows["offset"][place]), int(log.rows["size"][place])
        event = json.loads(content[offset : offset + size])
        assert event["similarity"] == similarity[place]
        assert lines[int(log.rows["number"][place])] == content[offset : offset + size]
    assert log.values("nothing") is None


def sent(job: Any = 0, device: Any = 0, **more: Any) -> dict[str, Any]:
    return {"time": 1.0, "event": "dispatch", "job": job, "device": device, "slot": 0, "version": 0, "due": 2.0, **more}


def log(*events: dict[str, Any]) -> EventIndex:
    return indexed("".join(f"{json.dumps(event)}\n" for event in events).encode())


@pytest.mark.parametrize(
    "bad",
    [
        sent(job=-1),
        sent(job=10**18),
        sent(job=2**70),
        sent(job="x"),
        sent(job=None),
        sent(device=-5),
        sent(device=10**12),
        sent(device=[1]),
        sent(slot=2**40),
        sent(version="new"),
        {"time": 1.0, "event": "dispatch"},
        {"time": 1.0, "event": "upload"},
        {"time": 1.0, "event": "upload", "job": 7, "staleness": 0},
        {"time": 1.0, "event": "upload", "job": -1, "staleness": 0},
        {"time": 1.0, "event": "upload", "job": 0, "staleness": "old"},
        {"time": 1.0, "event": "loss", "job": {}, "reason": "crash"},
    ],
)
def test_an_event_with_absurd_numbers_is_counted_and_left_out(bad: dict[str, Any]) -> None:
    index = log(sent(), bad, sent(job=1, device=3))
    assert index.damaged == 1
    assert index.jobs["device"].tolist() == [0, 3]
    assert index.jobs.in_flight == 2
    assert index.nbytes < 1 << 20


def test_strange_values_in_other_events() -> None:
    index = log(
        {"time": 1.0, "event": "loss", "job": 0, "reason": ["x"]},
        {"time": 1.0, "event": "collection", "step": "start", "devices": "many"},
        {"time": 1.0, "event": "auto", "setting": 3, "value": "x"},
        {"time": 2.0, "event": "own", "a": 1, "b": "text", "c": [1], "d": True, "e": None},
        {"time": 3.0, "event": "own", "a": "now text", "f": 2**80},
        {"time": 4.0, "event": "own"},
    )
    own = index.kinds["own"]
    assert own.fields == {"a": "number", "b": "text", "c": "list", "d": "flag", "e": "other"}
    values = own.values("a")
    assert values is not None
    np.testing.assert_array_equal(values, [1.0, np.nan, np.nan])
    assert index.losses == {OUTCOMES[-1]: 1}
    assert index.collections == []
    assert index.tuned == []


def test_jobs_that_are_missing_leave_a_gap() -> None:
    index = log(sent(job=0, time=1.0), sent(job=3, device=5, time=4.0), sent(job=2, device=4, time=2.0))
    assert index.jobs["device"].tolist() == [0, -1, 4, 5]
    assert index.jobs.in_flight == 3
    start = index.jobs["start"]
    assert (np.diff(start) >= 0).all()


def test_a_million_kinds_and_fields_take_no_memory() -> None:
    events = [{"time": 1.0, "event": f"kind {number}", "x": 1.0} for number in range(5000)]
    wide = {"time": 1.0, "event": "wide", **{f"field {number}": 1.0 for number in range(5000)}}
    index = log(wide, *events)
    assert len(index.kinds) <= 64
    assert len(index.counts) <= 66
    assert index.counts.total() == 5001
    assert len(index.kinds["wide"].fields) <= 48


def test_the_files_of_version_0_1() -> None:
    folder = Path(__file__).parents[1] / "folders" / "0.1"
    index = indexed((folder / "deployed" / "events.jsonl").read_bytes())
    assert index.damaged == 0
    assert index.counts["publish"] > 0
    assert np.isfinite(index.jobs["joules"]).any()
