"""Finished runs are kept without their large files, once, and still count."""

import json
from pathlib import Path

from cabafl.paper.definitions import artefacts
from cabafl.reproduction.plan import Request
from cabafl.reproduction.work import Reproduction
from tests.reproduction.made_up import write_artefact
from tools.keep_results import keep


def test_kept_runs_count_as_finished(tmp_path: Path) -> None:
    write_artefact(tmp_path / "made", "table3", lambda _, column: None if column == "safa" else 0.5)
    for path in (tmp_path / "made").rglob("environment.json"):
        path.write_text(json.dumps({"folder": str(tmp_path), **json.loads(path.read_text())}))
    for path in (tmp_path / "made").rglob("experiment.toml"):
        text = path.read_text()
        assert "\nroot = " not in text
        path.write_text(text.replace("[data]\n", f'[data]\nroot = "{tmp_path}/mine.npz"\n', 1))
    first = keep(tmp_path / "made", tmp_path / "results", "0123abc")
    assert len(first) == 6
    assert keep(tmp_path / "made", tmp_path / "results", "later") == []
    files = {path.name for path in (tmp_path / "results" / first[0]).iterdir()}
    assert files == {"commit", "environment.json", "experiment.toml", "metrics.csv", "summary.json"}
    assert "folder" not in json.loads((tmp_path / "results" / first[0] / "environment.json").read_text())
    kept = (tmp_path / "results" / first[0] / "experiment.toml").read_text()
    assert 'root = "mine.npz"' in kept
    work = Reproduction(Request([artefacts()["table3"]], "smoke", tmp_path / "out"), [tmp_path / "results"])
    assert len(work.runs(work.pool())[0]) == 1
