"""The report: its files, the safety of the page, and figures of unusual runs."""

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cabafl.errors import UserError
from cabafl.reporting.report import build_report
from cabafl.reporting.runs import load_runs
from cabafl.reporting.series import moving_mean, series
from cabafl.reporting.styles import KNOWN, styles
from cabafl.reporting.trace import count_events, read_first_seconds
from tests.reporting.sample_runs import events, two_methods, write_run

FIGURES = ["accuracy-joules", "accuracy-time", "accuracy-transfers", "selections", "staleness", "timeline"]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>$x_1$ & \"quotes\" 'here'"


class Page(HTMLParser):
    """The elements of a page and the addresses a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def references(self) -> list[str]:
        names = ("src", "href", "srcset", "action", "data", "poster", "background")
        return [str(given[name]) for _, given in self.elements for name in names if name in given]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    build_report(two_methods(folder / "runs"), folder / "out", [30, 40], notes=["a note & more"])
    return folder / "out"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the figures, which take most of the time of a report."""
    monkeypatch.setattr("cabafl.reporting.report.render_figures", lambda runs, line_styles: [])


def test_every_file_is_there_and_no_temporary_one(report: Path) -> None:
    files = sorted(str(path.relative_to(report)) for path in report.rglob("*") if path.is_file())
    figures = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "svg")]
    assert files == sorted(["report.html", "speedup.csv", "speedup.md", "table.csv", "table.md", "table.tex", *figures])
    assert all((report / name).read_bytes().startswith((b"\x89PNG", b"<?xml")) for name in figures)


def test_page_loads_nothing_from_outside(report: Path) -> None:
    text = (report / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.references()
    assert all(reference.startswith("data:") for reference in page.references())
    assert re.findall(r"url\((?!#)|@import", text) == []
    policy = next(str(given["content"]) for _, given in page.elements if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_page_shows_tables_notes_and_settings(report: Path) -> None:
    text = (report / "report.html").read_text(encoding="utf-8")
    for expected in ("a note &amp; more", "To reach 40 % accuracy", "data.dataset", "mnist5k", "Speed-up to 30 %"):
        assert expected in text


def test_hostile_label_stays_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    paths = build_report(load_runs([folder], {folder: HOSTILE}), tmp_path / "out", title=HOSTILE, notes=[HOSTILE])
    text = paths.html.read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert [given for tag, given in page.elements if tag == "img" and "onerror" in given] == []
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data[1])["methods"][0]["label"] == HOSTILE


def test_equal_runs_give_equal_bytes(report: Path, tmp_path: Path) -> None:
    runs = two_methods(tmp_path / "runs")
    build_report(runs, tmp_path / "out", [30, 40], notes=["a note & more"])
    for name in ("table.csv", "table.tex", "figures/accuracy-time.svg", "figures/timeline.png"):
        assert (tmp_path / "out" / name).read_bytes() == (report / name).read_bytes()


def test_report_on_runs_without_uploads(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", "fedavg", accuracy=[0.1], jobs=0)
    write_run(tmp_path / "runs/b", "cabafl", accuracy=[0.1, 0.2], jobs=0)
    paths = build_report(load_runs([tmp_path / "runs"]), tmp_path / "out")
    assert "fewer than 10 evaluated versions" in paths.html.read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_figures")
def test_notes_name_differences_between_the_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", "fedavg", seed=1)
    write_run(tmp_path / "runs/b", "cabafl", seed=2, settings="[fleet]\nlink_seconds = 9.0")
    text = build_report(load_runs([tmp_path / "runs"]), tmp_path / "out").html.read_text(encoding="utf-8")
    assert "not run with the same seeds" in text
    assert "differ in more than method and seed: fleet.link_seconds" in text


@pytest.mark.usefixtures("no_figures")
def test_the_output_folder_may_be_a_string(tmp_path: Path) -> None:
    paths = build_report(load_runs(str(write_run(tmp_path / "run"))), str(tmp_path / "out"))
    assert paths.html == tmp_path / "out" / "report.html"
    assert all(path.is_file() for path in paths.files)


@pytest.mark.usefixtures("no_figures")
def test_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        build_report(load_runs([write_run(tmp_path / "run")]), tmp_path / "file")


def test_long_event_log_takes_seconds(tmp_path: Path) -> None:
    lines = [event.line() for event in events(50_000, devices=100, slots=10)]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert len(lines) > 100_000
    started = time.perf_counter()
    assert sum(count_events(path).selections.values()) == 50_000
    assert len(read_first_seconds(path, 30).jobs) == 110
    assert time.perf_counter() - started < 10


def test_moving_mean_starts_with_shorter_windows() -> None:
    assert moving_mean(np.array([1.0, 3.0, 5.0]), 2).tolist() == [1, 2, 4]


def test_curve_stays_as_it_is_while_the_version_does(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", accuracy=[0.2, 0.4, 0.4, 0.4, 0.6], versions=[0, 1, 1, 1, 2])
    curve = series(load_runs(folder), "time")
    assert curve.x.tolist() == [0, 10, 20, 30, 40]
    assert curve.mean.tolist() == pytest.approx([20, 30, 30, 30, 40])


def test_curve_spans_the_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[0.2] * 5, seed=1)
    write_run(tmp_path / "b", accuracy=[0.4] * 4, seed=2)
    curve = series(load_runs([tmp_path]), "time")
    assert curve.x.tolist() == [0, 10, 20, 30]
    assert (curve.low[0], curve.mean[0], curve.high[0]) == pytest.approx((20, 30, 40))


def test_a_method_looks_the_same_in_every_report() -> None:
    assert styles(["fedavg", "cabafl"])["cabafl"] == styles(["cabafl"])["cabafl"] == KNOWN["cabafl"]
    assert styles(["Mine"]) == {"Mine": styles(["x", "Mine"])["Mine"]}
    found = styles(["cabafl (beta = 0.1)", "cabafl (beta = 0.5)"])
    one, two = found.values()
    assert one == KNOWN["cabafl"]
    assert (one.colour, one.dashes, one.marker) != (two.colour, two.dashes, two.marker)
    assert len({KNOWN[name].colour for name in list(KNOWN)[:10]}) == 10


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to show the page in")
def test_page_draws_its_curves_in_a_browser(report: Path, tmp_path: Path) -> None:
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    quiet += ["--host-resolver-rules=MAP * ~NOTFOUND"]
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={tmp_path}"]
    command += [
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        "--dump-dom",
        (report / "report.html").as_uri(),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    plot = shown.stdout.split('id="plot"', 1)[1].split('id="tip"', 1)[0]
    assert plot.count("<polygon") == 2  # a band of seeds each
    assert plot.count("<polyline") == 3  # two curves and the axes
    assert "CONSOLE" not in shown.stderr
