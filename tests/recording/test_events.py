"""The lines of the event log."""

import json
import math
from typing import Any

import numpy as np
import pytest

from cabafl.errors import UserError
from cabafl.recording.events import Collection, Dispatched, Evaluated, Event, Lost, Noted, Published, Uploaded


@pytest.mark.parametrize(
    ("event", "kind"),
    [(Dispatched(0.1 + 0.2, 1, 2, 3, 4, 1e22), "dispatch"), (Uploaded(1e-7, 1, 2, 3, 4, 5), "upload")],
)
def test_hand_formatted_lines_equal_those_of_the_json_encoder(event: Dispatched | Uploaded, kind: str) -> None:
    fields = event._asdict()
    expected = {"time": fields.pop("time"), "event": kind, **fields}
    assert event.line() == json.dumps(expected, separators=(",", ":"))


@pytest.mark.parametrize("time", [0.0, 0.1 + 0.2, 1e22, 1e-7, 3600, np.float64(0.1)])
@pytest.mark.parametrize("facts", [{}, {"slot": 1, "weights": [0.1, 1 / 3], "why": 'a "quoted" ü', "none": None}])
def test_lines_that_share_the_text_of_their_time_equal_those_of_the_json_encoder(
    time: float, facts: dict[str, Any]
) -> None:
    lines: list[tuple[Event, dict[str, Any]]] = [
        (
            Uploaded(time, 1, 2, 3, 4, 5),
            {"event": "upload", "job": 1, "device": 2, "slot": 3, "version": 4, "staleness": 5},
        ),
        (Published(time, 7, facts), {"event": "publish", "version": 7, **facts}),
        (Noted(time, 'own "kind"', facts), {"event": 'own "kind"', **facts}),
        (Noted(time + 1.0, "later", facts), {"time": time + 1.0, "event": "later", **facts}),
        (Lost(time, 1, 2, 3, "crash"), {"event": "loss", "job": 1, "device": 2, "slot": 3, "reason": "crash"}),
        (Collection(time, "end", 8, 2), {"event": "collection", "step": "end", "devices": 8, "missing": 2}),
    ]
    for event, expected in lines:
        assert event.line() == json.dumps({"time": time, **expected}, separators=(",", ":"))


def test_the_columns_of_a_metrics_row_are_the_fields_in_order() -> None:
    row = Evaluated(10.0, 1, 0.1 + 0.2, 2.5, 3, 4, 5, 12, 480, 1e-7).row()
    assert row == "10.0,1,0.30000000000000004,2.5,3,4,5,12,480,1e-07"


def strict(line: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_are_null(value: float) -> None:
    assert strict(Noted(1.0, "own", {"rank": value, "all": [{"x": (value, 0.5)}]}).line()) == {
        "time": 1.0,
        "event": "own",
        "rank": None,
        "all": [{"x": [None, 0.5]}],
    }
    assert strict(Published(1.0, 2, {"weights": [value, 0.5]}).line())["weights"] == [None, 0.5]
    row = Evaluated(10.0, 1, value, value, 3, 4, 5, 12, 480, 1.0, value, value, (("devices_mean", value),))
    event = strict(row.line())
    names = ("accuracy", "loss", "averaged_accuracy", "averaged_loss", "devices_mean")
    assert [event[name] for name in names] == [None] * 5
    assert row.row() == f"10.0,1,{value!r},{value!r},3,4,5,12,480,1.0,{value!r},{value!r},{value!r}"


@pytest.mark.parametrize("value", [np.ones(1), np.int64(3), {1, 2}, object(), [math.nan, {1}]])
def test_what_is_no_json_is_one_line_that_names_the_event(value: object) -> None:
    for event, kind in ((Noted(1.0, "own", {"x": value}), "own"), (Published(1.0, 2, {"x": value}), "publish")):
        with pytest.raises(
            UserError, match=f"^event '{kind}' cannot be recorded: .* not JSON .*accepted: numbers"
        ) as no:
            event.line()
        assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Published(1.0, 2, {"version": 3}), "event 'publish' cannot be recorded: its fact 'version' has the name of a"),
        (Published(1.0, 2, {"time": 3}), "its fact 'time'"),
        (Noted(1.0, "own", {"event": 3}), "event 'own' cannot be recorded: its fact 'event'"),
        (Noted(1.0, "dispatch", {"job": 3}), "event 'dispatch' cannot be recorded: accepted: a name that no other"),
        (Noted(1.0, 3, {}), "event 3 cannot be recorded"),  # type: ignore[arg-type]
    ],
)
def test_names_that_the_record_has_already_are_one_line(event: Event, line: str) -> None:
    with pytest.raises(UserError, match=line):
        event.line()
    assert '"version":3' in Noted(1.0, "own", {"version": 3}).line()
