"""The numbers of a comparison, checked by hand, and their formats."""

import csv
import io
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from cabafl.reporting.formats import latex, markdown, measures_csv, speedups_csv, terminal
from cabafl.reporting.measures import Measures, MethodRow, cost_to, default_targets, measure, speedups
from cabafl.reporting.runs import by_label, load_runs
from cabafl.reporting.table import Cell, Table, speedup_tables, tables
from tests.reporting.sample_runs import evaluations, two_methods, write_run


def test_cost_is_that_of_the_first_evaluation_at_or_above_the_target() -> None:
    rows = evaluations([0.1, 0.3, 0.4, 0.2, 0.5])
    assert [cost_to(rows, name, 40) for name in ("time", "transfers", "joules")] == [20, 38, 200]
    assert cost_to(rows, "time", 50.1) == float("inf")


def test_seeds_are_averaged_and_their_spread_is_a_separate_column(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[0.5] * 10, seed=1)
    write_run(tmp_path / "b", accuracy=[0.5, 0.7] * 5, seed=2)
    values = measure(load_runs([tmp_path]), [60]).rows[0].values
    assert values["best_window_mean"] == pytest.approx(0.55)
    assert values["best_window_deviation"] == pytest.approx(0.05)  # mean of 0 and 0.1
    assert values["seed_spread"] == pytest.approx(0.05 * 2**0.5)
    assert values["time_to_60"] is None  # one of two seeds: no finite median


def test_cost_over_seeds_is_the_median(tmp_path: Path) -> None:
    for seed, place in enumerate([2, 3, 9]):
        write_run(tmp_path / str(seed), accuracy=[0.1] * place + [0.9] * 3, seed=seed)
    assert measure(load_runs([tmp_path]), [50]).rows[0].values["time_to_50"] == 30


def test_default_targets_are_round_and_reached(tmp_path: Path) -> None:
    runs = two_methods(tmp_path)
    assert default_targets(by_label(runs)) == [40, 60]
    measures = measure(runs)
    assert all(any(row.values[f"time_to_{t:g}"] is not None for row in measures.rows) for t in measures.targets)


@pytest.mark.parametrize("accuracy", [[0.1], [0.1, 0.1], [0.5, 0.2], [0.1, 0.13]])
def test_default_targets_of_runs_that_hardly_learn(tmp_path: Path, accuracy: list[float]) -> None:
    write_run(tmp_path / "a", accuracy=accuracy)
    assert all(accuracy[0] * 100 < target <= max(accuracy) * 100 for target in measure(load_runs([tmp_path])).targets)


def test_speed_up_is_the_ratio_of_times() -> None:
    rows = [MethodRow(name, {"time_to_40": time}) for name, time in (("a", 10.0), ("b", 25.0), ("c", None))]
    assert speedups(Measures(rows, [40]), 40) == [[1, 2.5, None], [0.4, 1, None], [None, None, None]]
    table = speedup_tables(Measures(rows, [40]))[0]
    assert [cell.text for cell in table.rows[0]] == ["a", "1.00", "2.50", "NA"]


def test_speed_up_needs_two_methods_that_reach_the_target() -> None:
    assert (
        speedup_tables(Measures([MethodRow("a", {"time_to_40": 1.0}), MethodRow("b", {"time_to_40": None})], [40]))
        == []
    )


def test_best_value_of_each_column_is_marked(tmp_path: Path) -> None:
    by_title = {table.title: table for table in tables(measure(two_methods(tmp_path), [40]))}
    cabafl, fedavg = by_title["Accuracy"].rows
    best = {heading: cell.best for heading, cell in zip(by_title["Accuracy"].headings, cabafl, strict=True)}
    assert best["accuracy [%]"]
    assert best["at the end [%]"]
    assert not fedavg[2].best
    assert [cell.best for cell in by_title["To reach 40 % accuracy"].rows[0]] == [False, True, True, True]


def test_no_value_is_best_if_it_is_the_only_one_or_all_are_equal(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg")
    assert not any(cell.best for t in tables(measure(load_runs([tmp_path]))) for row in t.rows for cell in row)
    write_run(tmp_path / "b", "cabafl")
    assert not any(cell.best for t in tables(measure(load_runs([tmp_path]))) for row in t.rows for cell in row)


def test_few_evaluations_no_uploads_and_one_seed_leave_dashes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[0.1, 0.2], jobs=0)
    by_title = {t.title: [cell.text for cell in t.rows[0]] for t in tables(measure(load_runs([tmp_path]), [40]))}
    assert by_title["Accuracy"] == ["fedavg", "1", "-", "-", "20.00"]
    assert by_title["Behaviour"] == ["fedavg", "-", "-", "-", "-", "1", "0", "0"]
    assert by_title["To reach 40 % accuracy"] == ["fedavg", "NA", "NA", "NA"]


def test_csv_holds_raw_numbers(tmp_path: Path) -> None:
    measures = measure(two_methods(tmp_path), [40, 99.5])
    rows = list(csv.DictReader(io.StringIO(measures_csv(measures))))
    assert [row["method"] for row in rows] == ["cabafl", "fedavg"]
    assert float(rows[0]["final_accuracy"]) == measures.rows[0].values["final_accuracy"]
    assert rows[0]["time_to_99.5"] == ""
    pairs = list(csv.DictReader(io.StringIO(speedups_csv(measures))))
    assert len(pairs) == 4
    assert float(pairs[0]["speedup"]) > 1


HOSTILE = Table(r"T_1", ["m", "a [%]"], [[Cell("x_1 & 50 % | <b> \\ $^~#{} [red]"), Cell("1 ± 2", best=True)]])


def test_markdown_keeps_the_table_whole() -> None:
    line = markdown([HOSTILE]).splitlines()[-1]
    assert line.replace(r"\|", "").count("|") == 3
    assert "&lt;b&gt;" in line
    assert "**1 ± 2**" in line


def test_latex_is_escaped() -> None:
    text = latex([HOSTILE])
    escaped = r"x\_1 \& 50 \% | \textless{}b\textgreater{} \textbackslash{} \$\textasciicircum{}\textasciitilde{}\#\{\}"
    assert escaped in text
    assert r"\textbf{1 $\pm$ 2}" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text(latex([HOSTILE]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)


def test_terminal_does_not_read_labels_as_markup() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(terminal(HOSTILE))
    assert "[red]" in console.export_text()


def test_wide_speed_up_table_fits_a_small_terminal() -> None:
    rows = [MethodRow(f"method-{n}", {"time_to_40": 1.0 + n}) for n in range(10)]
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(terminal(speedup_tables(Measures(rows, [40]))[0]))
    text = console.export_text()
    assert "10 method-9" in text
    assert "10.00" in text


def test_every_column_fits_a_small_terminal(tmp_path: Path) -> None:
    measures = measure(two_methods(tmp_path), [40])
    many = {"fairness": 1.0, "versions": 6759.0, "jobs_lost": 10_942.0, "never_heard": 12.0}
    best = MethodRow("fedasync", {**measures.rows[0].values, **many, "stability": 0.0, "fairness": 0.0})
    for table in tables(Measures([best, MethodRow("cabafl", {**measures.rows[1].values, **many})], [40])):
        console = Console(file=io.StringIO(), width=80, record=True)
        console.print(terminal(table))
        lines = [line.replace(" *", "").split() for line in console.export_text().splitlines()]
        assert set(" ".join(table.headings).split()) <= {word for line in lines for word in line}
        for row in table.rows:
            assert " ".join(cell.text for cell in row).split() in lines


def test_published_column_appears_if_some_method_has_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedbuff", settings='[data]\ndataset = "cifar10"')
    assert "published [%]" not in tables(measure(load_runs([tmp_path])))[0].headings
    write_run(tmp_path / "b", "fedasync", settings='[data]\ndataset = "cifar10"')
    table = tables(measure(load_runs([tmp_path])))[0]
    place = table.headings.index("published [%]")
    assert [row[place].text for row in table.rows] == ["55.97 ± 0.66", "-"]
