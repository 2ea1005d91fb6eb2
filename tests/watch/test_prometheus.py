"""Metrics for machines."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'cabafl[watch]'")

from prometheus_client.parser import text_string_to_metric_families

from cabafl.files import lock
from tests.watch.reference import replay
from tests.watch.site import Visit, make_run, visit


def samples(visited: Visit) -> dict[tuple[str, ...], float]:
    """Name and further labels -> value."""
    response = visited.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            more = [sample.labels[key] for key in ("state", "reason") if key in sample.labels]
            found[sample.name, sample.labels["run"], *more] = sample.value
    return found


def test_figures_of_a_run_that_goes_on(visited: Visit, run: Path) -> None:
    (run / "summary.json").unlink()
    plain = replay(run)
    with (run / "events.jsonl").open("r+b") as held:
        lock(held, "")
        visited.of_run()
        found = samples(visited)
    assert found["cabafl_run_state", "one", "running"] == 1
    assert found["cabafl_run_state", "one", "finished"] == 0
    assert found["cabafl_losses_total", "one", "crash"] == plain.reasons["crash"]
    assert found["cabafl_version", "one"] == plain.version
    assert found["cabafl_jobs_in_flight", "one"] == len(plain.busy)
    assert sum(value for (name, *_), value in found.items() if name == "cabafl_devices") == 12
    assert found["cabafl_devices", "one", "training"] == len(plain.busy)
    assert 0 < found["cabafl_metric", "one"] <= 1
    for name in ("transferred_bytes_total", "joules_total", "uploads_total", "transfers_total"):
        assert found[f"cabafl_{name}", "one"] > 0


def test_names_are_escaped_and_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    name = 'a"b\\c\nd{e="f"}'
    for root in ("one", "two"):
        make_run(tmp_path / root / name)
    with visit([tmp_path / "one", tmp_path / "two"]) as visited:
        text = visited.client.get("/metrics").text
        families = list(text_string_to_metric_families(text))
        times = next(family for family in families if family.name == "cabafl_time_seconds")
        assert [sample.labels["run"] for sample in times.samples] == [name, name]
        assert len({sample.labels["id"] for sample in times.samples}) == 2


def test_the_dashboard_and_the_page_name_what_there_is(visited: Visit, run: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    (run / "summary.json").unlink()
    visited.of_run()
    served = {name for name, *_ in samples(visited)}
    dashboard = (docs / "examples" / "grafana-dashboard.json").read_text(encoding="utf-8")
    queries = [target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]]
    assert len(queries) >= 10
    assert set(re.findall(r"cabafl_\w+", " ".join(queries))) <= served
    page = (docs / "watch.md").read_text(encoding="utf-8")
    assert {name for name in served if f"`{name}`" not in page} == set()
