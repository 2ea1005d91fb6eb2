"""The lines of the event log."""

import json

import pytest

from cabafl.recording.events import Dispatched, Evaluated, Uploaded


@pytest.mark.parametrize(
    ("event", "kind"),
    [(Dispatched(0.1 + 0.2, 1, 2, 3, 4, 1e22), "dispatch"), (Uploaded(1e-7, 1, 2, 3, 4, 5), "upload")],
)
def test_hand_formatted_lines_equal_those_of_the_json_encoder(event: Dispatched | Uploaded, kind: str) -> None:
    fields = event._asdict()
    expected = {"time": fields.pop("time"), "event": kind, **fields}
    assert event.line() == json.dumps(expected, separators=(",", ":"))


def test_the_columns_of_a_metrics_row_are_the_fields_in_order() -> None:
    row = Evaluated(10.0, 1, 0.1 + 0.2, 2.5, 3, 4, 5, 12, 480, 1e-7).row()
    assert row == "10.0,1,0.30000000000000004,2.5,3,4,5,12,480,1e-07"
