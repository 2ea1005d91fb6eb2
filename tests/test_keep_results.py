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
    first = keep(tmp_path / "made", tmp_path / "results", "0123abc")
    assert len(first) == 6
    assert keep(tmp_path / "made", tmp_path / "results", "later") == []
    files = {path.name for path in (tmp_path / "results" / first[0]).iterdir()}
    assert files == {"commit", "environment.json", "experiment.toml", "metrics.csv", "summary.json"}
    assert "folder" not in json.loads((tmp_path / "results" / first[0] / "environment.json").read_text())
    work = Reproduction(Request([artefacts()["table3"]], "smoke", tmp_path / "out"), [tmp_path / "results"])
    assert len(work.runs(work.pool())[0]) == 1
