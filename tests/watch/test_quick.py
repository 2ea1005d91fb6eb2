"""Lines read many at once are what a JSON decoder makes of them."""

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.recording.events import Dispatched, Evaluated, Lost, Noted, Published, Uploaded
from cabafl.watch import lines, quick
from cabafl.watch.index import EventIndex

TIMES = st.floats(0, 1e6) | st.sampled_from([0.0, 5e-324, 1e-05, 3.0, 123456.789012345678, 1e14])
COUNTS = st.integers(0, 99) | st.sampled_from([7, 99_999_999, 100_000_000, 2**53, 10**17, 2**62])
JOBS = st.integers(0, 40)
EVENTS = st.one_of(
    st.builds(Dispatched, TIMES, JOBS, COUNTS, JOBS, JOBS, TIMES),
    st.builds(Uploaded, TIMES, JOBS, JOBS, JOBS, JOBS, COUNTS),
    st.builds(Lost, TIMES, JOBS, JOBS, JOBS, st.sampled_from(["crash", "timeout"])),
    st.builds(Published, TIMES, JOBS, st.fixed_dictionaries({}, optional={"slot": JOBS, "weights": st.lists(TIMES)})),
    st.builds(Noted, TIMES, st.sampled_from(["cache", "a", "a kind, 1", 'a "kind"', "ä", "dispatched", "uploads", ""]),
              st.fixed_dictionaries({}, optional={"x": TIMES, "text": st.text(), "flag": st.booleans()})),
    TIMES.map(lambda time: Evaluated(time, 1, 0.5, 2.0, 1, 1, 1, 1, 1, 0.5)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines are otherwise decoded."""
    monkeypatch.setattr(lines, "SMALL", 0)


def decoded(content: bytes, start: int) -> lines.Piece:
    """The naive twin of `lines.parse`."""
    return lines._decode(content, start)


def index_of(content: bytes, monkeypatch: pytest.MonkeyPatch, parse: Any = lines.parse) -> EventIndex:
    """An index that was filled by the given function."""
    index = EventIndex(lambda start, size: content[start : start + size])
    with monkeypatch.context() as patch:
        patch.setattr("cabafl.watch.index.parse", parse)
        index.take(content, 0)
    return index


def assert_same(index: EventIndex, twin: EventIndex) -> None:
    """All columns, counts and lists."""
    assert index.counts == twin.counts
    assert (index.losses, index.collections, index.tuned) == (twin.losses, twin.collections, twin.tuned)
    assert (index.events, index.damaged, index.time) == (twin.events, twin.damaged, twin.time)
    assert (index.staleness_sum, index.staleness_max) == (twin.staleness_sum, twin.staleness_max)
    np.testing.assert_array_equal(index.staleness, twin.staleness)
    assert index.jobs.rows.names == twin.jobs.rows.names
    for name in index.jobs.rows.names:
        np.testing.assert_array_equal(index.jobs[name], twin.jobs[name])
    np.testing.assert_array_equal(index.uploads_before["uploads"], twin.uploads_before["uploads"])
    assert index.kinds.keys() == twin.kinds.keys()
    for kind, log in index.kinds.items():
        assert log.fields == twin.kinds[kind].fields
        for column in ("time", "number", "offset", "size"):
            np.testing.assert_array_equal(log.rows[column], twin.kinds[kind].rows[column])
        for field in log.fields:
            found, expected = log.values(field), twin.kinds[kind].values(field)
            assert (found is None) == (expected is None)
            if found is not None:
                np.testing.assert_array_equal(found, expected)


@given(st.lists(EVENTS, min_size=1, max_size=30))
def test_the_same_as_decoding(events: list[Any]) -> None:
    content = "".join(f"{event.line()}\n" for event in sorted(events, key=itemgetter(0))).encode()
    with pytest.MonkeyPatch.context() as patch:
        assert_same(index_of(content, patch), index_of(content, patch, decoded))


def test_a_short_kind_with_and_without_facts() -> None:
    events = [Noted(1.0, "a", {"x": 1}), Noted(2.0, "a", {}), Noted(3.0, "a", {"x": 3})]
    found = quick.read("".join(f"{event.line()}\n" for event in events).encode())
    assert {kind: places.tolist() for kind, places in found.groups.items()} == {"a": [0, 1, 2]}


@given(st.data())
def test_a_changed_byte_in_a_job_is_noticed(data: st.DataObject) -> None:
    """Whatever it is, both make the same of it."""
    content = bytearray("".join(f"{event.line()}\n" for event in JOB).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'0123456789-.eE,:"{}[] \\\n'))
    with pytest.MonkeyPatch.context() as patch:
        assert_same(index_of(bytes(content), patch), index_of(bytes(content), patch, decoded))


JOB: list[Any] = [
    Dispatched(0.0, 0, 7, 1, 0, 12.5),
    Dispatched(0.0, 1, 12, 2, 0, 3.25),
    Uploaded(3.25, 1, 12, 2, 0, 0),
    Dispatched(3.25, 2, 7654321, 2, 1, 1e-05),
    Uploaded(12.5, 0, 7, 1, 0, 1),
]


def test_a_few_lines_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SMALL", 10_000)
    content = "".join(f"{event.line()}\n" for event in JOB).encode()
    assert not lines.parse(content, 0).columns
    assert lines.parse(content * 100, 0).columns.keys() == {"dispatch", "upload"}


def test_what_the_engine_writes_is_read_at_once() -> None:
    events: list[Any] = [
        *JOB,
        Noted(12.5, "cache", {"slot": 1, "similarity": 0.5}),
        Published(12.5, 2, {"weights": [0.5, 1e-9]}),
    ]
    content = "".join(f"{event.line()}\n" for event in events).encode()
    found = quick.read(content)
    assert {kind: places.tolist() for kind, places in found.groups.items()} == {
        "dispatch": [0, 1, 3],
        "upload": [2, 4],
        "cache": [5],
        "publish": [6],
    }
    assert found.time.tolist() == [event.time for event in events]
    assert found.columns["dispatch"]["device"].tolist() == [7, 12, 7654321]
    assert found.columns["dispatch"]["due"].tolist() == [12.5, 3.25, 1e-05]
    assert found.columns["upload"]["staleness"].tolist() == [0, 1]


def test_so_is_the_log_of_a_run(finished: Path) -> None:
    assert quick.read((finished / "events.jsonl").read_bytes()).columns["upload"]["job"].size > 30


def test_a_damaged_event_of_a_method_has_no_numbers() -> None:
    good = json.dumps({"time": 1.0, "event": "cache", "x": 1}, separators=(",", ":"))
    content = "".join(f"{line}\n" for line in (good, good.replace('"x"', '"x'), good, good)).encode()
    index = EventIndex(lambda start, size: content[start : start + size])
    index.take(content, 0)
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [1.0, np.nan, 1.0, 1.0])


def index_over(log: list[bytes]) -> EventIndex:
    """Reads its columns from what ``log`` has now."""
    return EventIndex(lambda start, size: b"".join(log)[start : start + size])


CACHE = b'{"time":1.0,"event":"cache","x":1}\n'


def test_a_file_that_is_away_for_a_moment_is_read_again() -> None:
    log: list[bytes] = []
    index = index_over(log)
    index.take(CACHE * 3, 0)
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [np.nan] * 3)
    log.append(CACHE * 2)
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [np.nan] * 3)
    log.append(CACHE)
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [1.0] * 3)
    index.take(CACHE, 3 * len(CACHE))
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [1.0, 1.0, 1.0, np.nan])


def test_a_file_written_anew_has_no_numbers() -> None:
    log = [CACHE * 3]
    index = index_over(log)
    index.take(CACHE * 3, 0)
    log[:] = [b'{"time":1,"event":"c"}', b"7", b'{"a":1}']
    log[:] = [each.ljust(len(CACHE) - 1) + b"\n" for each in log]
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [np.nan] * 3)


def test_one_event_over_several_lines_has_no_numbers() -> None:
    log = [CACHE * 3, b'{"time":1.0,"event":"cache"},[{}\n', CACHE, b'{"time":1.0,"event":"cache"}],{}\n', CACHE * 2]
    index = index_over(log)
    index.take(b"".join(log), 0)
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), [1, 1, 1, np.nan, 1, np.nan, 1, 1])


def test_a_text_is_no_number_whoever_asks_when() -> None:
    log = [CACHE, b'{"time":1.0,"event":"cache","x":"5"}\n', b'{"time":1.0,"event":"cache"}\n']
    whole, pieces, position = index_over(log), index_over(log), 0
    whole.take(b"".join(log), 0)
    for line in log:
        pieces.take(line, position)
        position += len(line)
        pieces.kinds["cache"].values("x")
    for index in (whole, pieces):
        np.testing.assert_array_equal(index.kinds["cache"].values("x"), [1.0, np.nan, np.nan])


def test_a_fact_named_t_keeps_its_column_beside_a_damaged_line() -> None:
    line = b'{"time":1.0,"event":"cache","t":5}\n'
    log = [line, b'{"time":1.0,"event":"cache","x:1}\n', line, line]
    index = index_over(log)
    index.take(b"".join(log), 0)
    np.testing.assert_array_equal(index.kinds["cache"].values("t"), [5, np.nan, 5, 5])
    assert index.time == 1.0


def test_kinds_that_begin_alike_and_very_many_kinds() -> None:
    names = [f"selected_{number % 3}" for number in range(30)]
    content = "".join(f'{{"time":1.0,"event":"{name}","x":1}}\n' for name in names).encode()
    groups = quick.read(content).groups
    assert {kind: places.tolist() for kind, places in groups.items()} == {
        f"selected_{number}": list(range(number, 30, 3)) for number in range(3)
    }
    many = "".join(f'{{"time":1.0,"event":"a","{number:04}":1}}\n' for number in range(5000)).encode()
    with pytest.raises(quick.Unusual):
        quick.read(many)


def test_what_lies_between_two_rare_events_is_not_read() -> None:
    rare, common = CACHE, b'{"time":1.0,"event":"own","text":"' + b"x" * 60_000 + b'"}\n'
    content = (rare + common * 2) * 4 + rare * 2
    asked: list[int] = []

    def again(start: int, size: int) -> bytes:
        asked.append(size)
        return content[start : start + size]

    index = EventIndex(again)
    index.take(content, 0)
    np.testing.assert_array_equal(index.kinds["cache"].values("x"), np.ones(6))
    assert sum(asked) < 10 * len(rare)
