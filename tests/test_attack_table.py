"""The attack table: its cells, and that a second call repeats nothing."""

import argparse
from pathlib import Path

import pytest

from cabafl.errors import UserError
from tools.attack_table import DEFENCE, KINDS, carry_out, make_table

SMALL = ["data.dataset=synthetic", "data.devices=10", "model.name=mlp", "run.evaluate_every=2"]


def given(out: Path, **changes: object) -> argparse.Namespace:
    defaults = {
        "settings": SMALL,
        "out": out,
        "seconds": 80.0,  # ten versions of every method
        "seeds": 1,
        "defended_seeds": None,
        "jobs": 2,
        "methods": "fedavg",
        "attacks": "scale",
        "shares": "0,0.3",
        "defence": DEFENCE,
    }
    return argparse.Namespace(**{**defaults, **changes})


def test_the_whole_table_has_every_cell(tmp_path: Path) -> None:
    table = make_table(given(tmp_path, attacks=",".join(KINDS), methods="cabafl,fedbuff,fedavg", shares="0,0.1,0.3"))
    assert len(table.all()) == (1 + 2 * 5) * 3 * 2
    run = table.runs[table.rows[-1], "fedbuff", True][0]
    assert run.experiment.fleet.faults.attack == "claim"
    assert run.experiment.fleet.faults.attack_share == 0.3
    assert run.experiment.run.defence.sample_quantile == 0.5
    assert [*table.lines()][2] == "| none | 0 % | – | – | – | – | – | – |"
    with pytest.raises(UserError, match=r"run.defence.clip = 2: unknown key"):
        make_table(given(tmp_path, defence="clip=2"))


def test_the_defended_columns_can_have_more_seeds(tmp_path: Path) -> None:
    table = make_table(given(tmp_path, shares="0.3", defended_seeds=3))
    assert [run.seed for run in table.runs[table.rows[0], "fedavg", False]] == [1]
    defended = table.runs[table.rows[0], "fedavg", True]
    assert [run.seed for run in defended] == [1, 2, 3]
    for run, mean in zip(defended, (0.5, 0.6, 0.7), strict=True):
        run.folder.mkdir(parents=True)
        (run.folder / "summary.json").write_text(f'{{"best_window_mean": {mean}}}')
    assert [*table.lines()][2] == "| scale | 30 % | – | 60.0 ± 10.0 |"


def test_a_table_is_carried_out_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert carry_out(given(tmp_path, shares="0.3")) == 0
    first = (tmp_path / "table.md").read_text()
    assert "–" not in first
    assert "failed" not in first
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")}
    assert len(written) == 2
    capsys.readouterr()
    assert carry_out(given(tmp_path, shares="0.3")) == 0
    assert capsys.readouterr().out.startswith("2 of 2 runs\n| attack | share | fedavg | fedavg, defended |")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/summary.json")} == written
