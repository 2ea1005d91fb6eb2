"""Writes the report on finished runs: tables, figures and an HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cabafl.errors import UserError
from cabafl.files import write_atomic
from cabafl.recording.metrics import WINDOW
from cabafl.reporting.figures import render_figures
from cabafl.reporting.formats import latex, markdown, measures_csv, speedups_csv
from cabafl.reporting.html import page
from cabafl.reporting.measures import measure
from cabafl.reporting.runs import Run, by_label
from cabafl.reporting.settings import differing_settings, title_of
from cabafl.reporting.table import Table, speedup_tables, tables


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report, and its tables for printing."""

    html: Path
    """The page."""

    files: list[Path]
    """All files, the page last."""

    tables: list[Table]
    """The tables on the page."""


def build_report(
    runs: Sequence[Run],
    out: str | Path,
    targets: Sequence[float] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> ReportPaths:
    """Writes tables, figures and a page about finished runs.

    Args:
        runs: The runs, from `load_runs`.
        out: Folder for the report; created if needed. Every file is written atomically.
        targets: Accuracies in percent, for the cost to reach them; None: round ones that some method reaches.
        title: Heading of the page; None: what the runs have in common.
        notes: Remarks shown on the page.

    Raises:
        UserError: If there are no runs, or ``out`` cannot be written.
    """
    if not runs:
        raise UserError("report: no finished run given; accepted: at least one")
    measures = measure(runs, targets)
    main, speedups, figures = tables(measures), speedup_tables(measures), render_figures(runs)
    heading = title or title_of(by_label(runs))
    document = page(runs, main, speedups, figures, heading, [*notes, *_caveats(runs)])
    contents = {
        "table.csv": measures_csv(measures).encode(),
        "table.md": markdown(main).encode(),
        "table.tex": latex([*main, *speedups]).encode(),
        "speedup.csv": speedups_csv(measures).encode(),
        "speedup.md": markdown(speedups).encode(),
    }
    for figure in figures:
        contents[f"figures/{figure.name}.png"] = figure.png
        contents[f"figures/{figure.name}.svg"] = figure.svg
    contents["report.html"] = document.encode()
    out = Path(out)
    _write(out, contents)
    return ReportPaths(out / "report.html", [out / name for name in contents], [*main, *speedups])


def _caveats(runs: Sequence[Run]) -> list[str]:
    notes = []
    if any(run.summary["best_window_mean"] is None for run in runs):
        notes.append(f"Some runs have fewer than {WINDOW} evaluations, so they have no best window and no stability.")
    differing = differing_settings(by_label(runs))
    if differing:
        notes.append(f"The runs differ in more than method and seed: {', '.join(differing)} (see Settings).")
    seeds = {tuple(run.seed for run in group) for group in by_label(runs).values()}
    if len(seeds) > 1:
        notes.append("The methods were not run with the same seeds, so their averages are not directly comparable.")
    return notes


def _write(out: Path, contents: dict[str, bytes]) -> None:
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(out / name, content)
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror or error}") from None
