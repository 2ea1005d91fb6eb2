"""Lines become events; what is none is left out."""

import json

import pytest

from cabafl.watch import lines
from cabafl.watch.lines import parse, parse_line

GOOD = b'{"time":1.5,"event":"cache","slot":1}'


@pytest.fixture(autouse=True, params=[0, 1 << 20], ids=["read at once", "decoded"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SMALL", request.param)


def test_places_of_the_lines() -> None:
    content = GOOD + b"\n" + GOOD + b"\n"
    piece = parse(content, 100)
    assert {kind: places.tolist() for kind, places in piece.groups.items()} == {"cache": [0, 1]}
    assert piece.begin.tolist() == [100, 101 + len(GOOD)]
    assert piece.size.tolist() == [len(GOOD)] * 2
    assert piece.time.tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"[1,2]",
        b"null",
        b'{"time":1.0}',
        b'{"event":"x"}',
        b'{"time":"soon","event":"x"}',
        b'{"time":null,"event":"x"}',
        b'{"time":NaN,"event":"x"}',
        b'{"time":1e999,"event":"x"}',
        b'{"time":1.0,"event":7}',
        b'{"time":1.0,"event":["x"]}',
        b'{"time":1.0,"event":"' + b"x" * 101 + b'"}',
        b'{"time":1.0,"event":"x"},{"time":2.0,"event":"x"}',
        b'{"time":1.0,"event":"\xff"}',
        b"[" * 100_000,
        b'{"time":1.0,"event":"x"',
    ],
)
def test_a_line_that_is_no_event_does_not_stop_the_others(line: bytes) -> None:
    piece = parse(GOOD + b"\n" + line + b"\n" + GOOD + b"\n", 0)
    assert {kind: len(places) for kind, places in piece.groups.items()} == {"cache": 2}
    assert len(piece.time) == 2
    assert piece.begin[:2].tolist() == [0, len(GOOD) + len(line) + 2]
    assert len(piece.begin) == 3


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "inf", "nan"])
def test_numbers_that_are_not_finite_are_unknown(number: str) -> None:
    line = f'{{"time":1.0,"event":"x","value":{number},"more":[{number},1]}}'.encode()
    for event in (parse(line + b"\n", 0).events["x"][0], parse_line(line)):
        assert event == {"time": 1.0, "event": "x", "value": None, "more": [None, 1]}


def test_the_names_of_version_0_1() -> None:
    line = json.dumps({"t": 2.0, "event": "aggregation", "version": 3}).encode()
    piece = parse(line + b"\n", 0)
    assert piece.events == {"publish": [{"time": 2.0, "event": "publish", "version": 3}]}
