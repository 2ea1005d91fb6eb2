"""The benchmarks run with tiny sizes and give complete results; speed is not tested here."""

import json
from pathlib import Path
from typing import Any

import pytest

from cabafl.bench import bare, engine, memory, selection, simulator, toolkits
from cabafl.bench.flute import Flute
from cabafl.bench.report import BenchSection, BenchTable, Check, machine, write
from cabafl.bench.startup import FirstDispatch
from cabafl.bench.timing import Spread, in_turns, ratio
from cabafl.bench.workload import images
from cabafl.methods.cabafl import CaBaFL
from tests.cli.program import cabafl_here

TINY = simulator.Size(jobs=4, devices=6, samples=10, epochs=1, batch=5, slots=2)


def test_measurements_are_taken_in_turns() -> None:
    order: list[str] = []

    def recorded(name: str, value: float) -> float:
        order.append(name)
        return value

    taken = in_turns({"a": lambda: recorded("a", 2.0), "b": lambda: recorded("b", 4.0)}, 3)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert ratio(taken["b"], taken["a"]) == Spread(2.0, 2.0, 2.0)


def test_spread_is_the_median_with_the_extremes() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)
    assert Spread.of([3.0, 1.0, 10.0]).text(1) == "3.0 (1.0 to 10.0)"


def test_a_check_compares_with_a_minimum_or_a_maximum() -> None:
    assert Check("speed", 1.0, 0.97).met
    assert not Check("speed", 0.9, 0.97).met
    assert Check("cost", 2.0, 3.0, above=False).met
    assert not Check("cost", 4.0, 3.0, above=False).met


def test_report_files_hold_all_sections(tmp_path: Path) -> None:
    section = BenchSection(
        "one", "One", [BenchTable("t", ("a", "b"), [("1", "2")])], ["a note"], {"x": 1}, [Check("c", 2.0, 1.0)]
    )
    write(tmp_path / "new", [section], machine())
    figures = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert figures["sections"]["one"]["x"] == 1
    assert figures["sections"]["one"]["checks"][0]["met"] is True
    assert {"cores", "processor", "torch", "started"} <= figures["machine"].keys()
    text = (tmp_path / "new" / "bench.md").read_text()
    assert "| 1 | 2 |" in text
    assert "* a note" in text


@pytest.mark.parametrize("make", [bare.usual_cnn, bare.tuned_cnn])
def test_bare_loops_do_the_given_number_of_steps(make: Any) -> None:
    data = images(20)
    clients = [(data.inputs(data.train.x[:10]), data.train.y[:10]), (data.inputs(data.train.x[10:]), data.train.y[10:])]
    assert bare.train(make(), clients, jobs=3, epochs=2, batch=4) == 3 * 2 * 3


def test_simulator_against_bare_loops() -> None:
    section = simulator.measure(TINY, repetitions=1, cores=2, launches=0)
    assert section.figures["steps"] == 8
    assert section.figures["seconds"].keys() == {"bare", "tuned", "one", "all", "collection"}
    assert len(section.checks) == 3
    assert "cabafl, 2 workers" in section.markdown()


def test_engine_alone() -> None:
    section = engine.measure(events=50, repetitions=1, fleets=(20, 40, 60))
    assert [(row["devices"], row["slots"], row["publishes"]) for row in section.figures["rows"]][:2] == [
        (20, 10, False),
        (20, 2, False),
    ]
    assert len(section.checks) == 3


def test_selection_and_aggregation() -> None:
    section = selection.section([(50, 8, 5)], [(1000, 3)], repetitions=2)
    assert section.figures["selection"][0]["N"] == 50
    assert section.figures["aggregation"][0]["K"] == 3


@pytest.mark.skipif(not memory.available(), reason="this system has no /proc")
def test_memory_of_one_point() -> None:
    section = memory.measure([memory.Point(50, 8, 3, 1000)])
    (point,) = section.figures["points"]
    assert point["uploads"] == 24
    described = memory._data(memory.Point(50, 8, 3, 1000))
    assert point["allowed"] == 2.5 * 3 * 4000 + 4 * 50 * 8 + described + memory.SLACK


def test_flute_row_on_cabafl_beside_a_missing_and_a_broken_toolkit() -> None:
    missing = toolkits.Toolkit("missing", ("no_such_package",), "no.such.module")
    broken = toolkits.Toolkit("broken", ("json",), "cabafl.bench.no_such_module")
    section = toolkits.measure(Flute(rounds=2, clients=20), 1, [toolkits.TOOLKITS[0], missing, broken])
    assert section.figures["steps"] == 2 * 10 * 6
    assert section.figures["seconds"].keys() == {toolkits.ONE}
    assert section.figures["not_installed"] == ["missing"]
    assert "no_such_module" in section.figures["failed"]["broken"]
    assert [row[1] for row in section.tables[0].rows][1] == "not installed"


def test_start_up_is_measured_at_the_hook_cabafl_dispatches_through() -> None:
    assert FirstDispatch._dispatch_waiting is not CaBaFL._dispatch_waiting
    assert FirstDispatch.on_features is CaBaFL.on_features


def test_other_toolkits_need_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolkits, "REPOSITORY", tmp_path)
    with pytest.raises(RuntimeError, match="clone of the repository"):
        toolkits.measure_one(next(t for t in toolkits.TOOLKITS if t.in_clone), Flute(rounds=2, clients=20))


@pytest.mark.deploy
@pytest.mark.parametrize("toolkit", [t for t in toolkits.TOOLKITS if t.needs], ids=lambda toolkit: toolkit.label)
def test_flute_row_on_other_toolkits(toolkit: toolkits.Toolkit) -> None:
    if not toolkit.installed:
        pytest.skip(f"{' and '.join(toolkit.needs)} not installed (cabafl[bench])")
    assert toolkits.measure_one(toolkit, Flute(rounds=2, clients=20))["steps"] == 2 * 10 * 6


def test_command_writes_what_it_prints(tmp_path: Path) -> None:
    words = ["bench", "selection", "--devices", "30", "--repetitions", "2", "--out", "out"]
    done = cabafl_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "One device selection" in done.stdout
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["sections"]["selection"]["selection"][0]["N"] == 30
