"""The text of summary.json: strict JSON, whatever a run ends with."""

import json
import math
from pathlib import Path

import pytest

from cabafl.cli.run import summary_table
from cabafl.config import load_experiment
from cabafl.lifecycle.finishing import finish
from cabafl.lifecycle.simulate import simulate
from cabafl.recording.summary_file import decoded, encoded

SUMMARY = {
    "metric": {"name": "mse"},
    "best_window_mean": None,
    "best_mse": math.inf,
    "final_mse": math.nan,
    "final_loss": -math.inf,
    "fairness": 0.5,
    "averaged": {"final_mse": math.nan, "stability": None},
    "devices": {"values": (1.0, math.nan)},
}


def strict(content: str | bytes) -> dict[str, object]:
    """As other programs read it."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    found: dict[str, object] = json.loads(content, parse_constant=refuse)
    return found


def test_numbers_that_are_not_finite_are_null_and_come_back_as_nan() -> None:
    written = strict(encoded(SUMMARY))
    assert (written["best_mse"], written["final_mse"], written["final_loss"]) == (None, None, None)
    assert (written["fairness"], written["devices"]) == (0.5, {"values": [1.0, None]})
    found = decoded(encoded(SUMMARY))
    assert all(math.isnan(found[key]) for key in ("best_mse", "final_mse", "final_loss"))
    assert found["best_window_mean"] is None  # too few versions
    assert found["averaged"]["stability"] is None
    assert math.isnan(found["averaged"]["final_mse"])
    assert found["devices"]["values"][0] == 1.0
    assert math.isnan(found["devices"]["values"][1])


@pytest.mark.parametrize("content", ["[1, null]", "3", "null"])
def test_other_values_are_returned_as_they_are(content: str) -> None:
    assert decoded(content) == json.loads(content)


def test_a_run_that_ends_with_an_infinite_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.learning.builtin_tasks.math.exp", lambda _: math.inf)  # of perplexity
    words = ["task.name=next-token", "data.dataset=synthetic", "data.devices=4", "data.partition=natural"]
    words += ["model.name=lstm", "model.width=0.05", "run.virtual_time=5", "run.workers=0"]
    result = simulate(load_experiment(None, words), tmp_path / "run", warn=lambda _: None)
    assert result.summary["final_perplexity"] == math.inf
    assert strict((tmp_path / "run/summary.json").read_bytes())["final_perplexity"] is None
    assert summary_table(finish(tmp_path / "run")).row_count == summary_table(result.summary).row_count
