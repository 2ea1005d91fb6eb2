"""The report on a sweep: accuracy over values, colours, the table of combinations."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from cabafl.reporting.measures import measure
from cabafl.reporting.report import MAX_CURVES, build_report
from cabafl.reporting.runs import Run, load_runs
from cabafl.reporting.styles import COLOURS
from cabafl.reporting.sweep import Sweep, SweepPoint, lines_over, sweep_csv, sweep_styles, value_figures, value_text
from tests.reporting.sample_runs import write_run


def sweep_of(methods: dict[str, dict[str, list[object]]]) -> Sweep:
    """Every combination of up to two keys for each method."""
    points = {}
    for method, keys in methods.items():
        combinations: list[dict[str, object]] = [{}]
        for key, values in keys.items():
            combinations = [{**point, key: value} for point in combinations for value in values]
        for point in combinations:
            text = ", ".join(f"{key} = {value_text(value)}" for key, value in point.items())
            points[f"{method} ({text})" if text else method] = SweepPoint(method, point)
    names = dict.fromkeys(key for point in points.values() for key in point.values)
    return Sweep({name: f"section.{name}" for name in names}, points)


def runs_of(sweep: Sweep, folder: Path, seeds: int = 2) -> list[Run]:
    """The n-th combination reaches 30 + n %, and a point more with the second seed."""
    labels = {}
    for place, (label, point) in enumerate(sweep.points.items()):
        for seed in range(seeds):
            accuracy = np.full(12, 0.3 + 0.01 * (place + seed)).tolist()
            path = write_run(folder / f"{place}-{seed}", point.method, seed, accuracy, jobs=6)
            labels[path] = label
    return load_runs(list(labels), labels)


TWO_KEYS = sweep_of({"cabafl": {"k": [5, 10, 20], "beta": [0.1, 0.5]}, "fedavg": {"beta": [0.1, 0.5]}})


def test_different_values_have_different_texts() -> None:
    values = [1, 2.5, 1e-6, 3e-6, 0.1234567, 0.1234568, True, "a", None, {"high": 40, "low": 60}, [1, 2]]
    texts = [value_text(value) for value in values]
    assert len(set(texts)) == len(values)
    assert texts[:3] == ["1", "2.5", "1e-06"]
    assert value_text(1.0) == value_text(1)
    assert value_text({"high": 40, "low": 60}) == "{high = 40, low = 60}"


def test_other_keys_and_methods_are_separate_lines(tmp_path: Path) -> None:
    rows = {row.label: row.values for row in measure(runs_of(TWO_KEYS, tmp_path)).rows}
    over_k = {line.label: line for line in lines_over(TWO_KEYS, rows, "k")}
    assert list(over_k) == ["cabafl, beta = 0.1", "cabafl, beta = 0.5", "fedavg, beta = 0.1", "fedavg, beta = 0.5"]
    values, means, spreads = zip(*over_k["cabafl, beta = 0.1"].points, strict=True)
    assert values == (5, 10, 20)
    assert means == pytest.approx((30.5, 32.5, 34.5))  # combinations 0, 2 and 4
    assert spreads == pytest.approx([2**-0.5] * 3)
    assert over_k["fedavg, beta = 0.1"].points == []
    assert over_k["fedavg, beta = 0.1"].level == pytest.approx(36.5)  # it has no k: one level
    over_beta = lines_over(TWO_KEYS, rows, "beta")
    assert [line.label for line in over_beta] == ["cabafl, k = 5", "cabafl, k = 10", "cabafl, k = 20", "fedavg"]
    assert all(line.level is None for line in over_beta)


def test_combinations_without_accuracy_are_left_out(tmp_path: Path) -> None:
    sweep = sweep_of({"cabafl": {"k": [5, 10]}})
    one, two = write_run(tmp_path / "a", "cabafl", accuracy=[0.1, 0.2]), write_run(tmp_path / "b", "cabafl")
    runs = load_runs([one, two], {one: "cabafl (k = 5)", two: "cabafl (k = 10)"})
    measures = measure(runs)
    [line] = lines_over(sweep, {row.label: row.values for row in measures.rows}, "k")
    assert [value for value, _, _ in line.points] == [10]
    [figure] = value_figures(sweep, measures)
    assert "fewer than 10 evaluated versions" in figure.caption
    failed = measure(runs[:1])  # the other run failed
    assert value_figures(sweep, failed)[0].png.startswith(b"\x89PNG")


def test_every_value_has_its_own_colour() -> None:
    one = sweep_styles(sweep_of({"cabafl": {"k": list(range(len(COLOURS)))}}))
    assert [style.colour for style in one.values()] == list(COLOURS)
    many = sweep_styles(sweep_of({"cabafl": {"k": list(range(40))}}))
    assert len({(style.colour, style.dashes) for style in many.values()}) == 40
    two = sweep_styles(sweep_of({"cabafl": {"k": [5, 10]}, "fedasync": {"k": [5, 10]}}))
    assert two["cabafl (k = 5)"].colour == two["fedasync (k = 5)"].colour != two["cabafl (k = 10)"].colour
    assert two["cabafl (k = 5)"].dashes != two["fedasync (k = 5)"].dashes


def test_table_of_combinations_has_a_column_per_key(tmp_path: Path) -> None:
    measures = measure(runs_of(TWO_KEYS, tmp_path), [20])
    rows = list(csv.DictReader(io.StringIO(sweep_csv(TWO_KEYS, measures))))
    assert [(row["method"], row["section.k"], row["section.beta"]) for row in rows][4:] == [
        ("cabafl", "20", "0.1"),
        ("cabafl", "20", "0.5"),
        ("fedavg", "", "0.1"),
        ("fedavg", "", "0.5"),
    ]
    assert float(rows[0]["best_window_mean"]) == pytest.approx(0.305)


@pytest.mark.parametrize(
    "values", [[5, 10, 20], [1e-6, 1e-4], [True, False], ["iid", "$a$"], [{"low": 6}, None], [-1, 0]]
)
def test_any_kind_of_value_is_drawn(values: list[object], tmp_path: Path) -> None:
    sweep = sweep_of({"cabafl": {"k": values}, "fedavg": {}})
    [figure] = value_figures(sweep, measure(runs_of(sweep, tmp_path, seeds=1)))
    assert figure.name == "accuracy-over-k"
    assert figure.svg.startswith(b"<?xml")


def test_report_on_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.reporting.report.render_figures", lambda runs, line_styles: [])
    runs = runs_of(TWO_KEYS, tmp_path / "runs", seeds=1)
    written = build_report(runs, tmp_path / "out", sweep=TWO_KEYS)
    assert {"accuracy-over-k.png", "accuracy-over-beta.svg"} <= {p.name for p in written.files}
    assert (tmp_path / "out" / "sweep.csv").exists()
    text = written.html.read_text(encoding="utf-8")
    for expected in ("Sweep of k, beta: mnist5k", "8 settings, 8 runs", "Accuracy over beta"):
        assert expected in text
    assert (tmp_path / "out" / "table.md").read_text().splitlines()[2].startswith("| setting |")
    assert not any(table.title.startswith("Speed-up") for table in written.tables)


def test_swept_keys_are_no_surprise_but_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.reporting.report.render_figures", lambda runs, line_styles: [])
    labels = {}
    for beta, link in ((0.1, 4.0), (0.5, 9.0)):
        settings = f"[data]\nbeta = {beta}\n[fleet]\nlink_seconds = {link}"
        labels[write_run(tmp_path / str(beta), "cabafl", settings=settings)] = f"beta = {beta}"
    points = {label: SweepPoint("cabafl", {"beta": float(label[7:])}) for label in labels.values()}
    sweep = Sweep({"beta": "data.beta"}, points)
    text = build_report(load_runs(list(labels), labels), tmp_path / "out", sweep=sweep).html.read_text(encoding="utf-8")
    assert "differ in more than method and seed: fleet.link_seconds (see Settings)" in text


def test_a_large_sweep_shows_its_first_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Run] = []

    def draw(runs: list[Run], _: object) -> list[object]:
        drawn.extend(runs)
        return []

    monkeypatch.setattr("cabafl.reporting.report.render_figures", draw)
    sweep = sweep_of({"cabafl": {"k": list(range(MAX_CURVES + 5))}})
    written = build_report(runs_of(sweep, tmp_path / "runs", seeds=1), tmp_path / "out", sweep=sweep)
    assert len(drawn) == MAX_CURVES
    assert f"first {MAX_CURVES} of {MAX_CURVES + 5}" in written.html.read_text(encoding="utf-8")
    assert len((tmp_path / "out" / "table.csv").read_text().splitlines()) == MAX_CURVES + 6
    assert "Speed-up to" not in (tmp_path / "out" / "speedup.md").read_text()
    assert (tmp_path / "out" / "speedup.csv").read_text().count("\n") == 1
