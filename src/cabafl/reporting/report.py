"""Writes the report on finished runs: tables, figures and an HTML page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from cabafl.errors import UserError
from cabafl.files import write_atomic
from cabafl.recording.metrics import WINDOW
from cabafl.recording.scale import MetricInfo
from cabafl.reporting.figures import RenderedFigure, render_figures
from cabafl.reporting.formats import latex, markdown, measures_csv, speedups_csv
from cabafl.reporting.html import Look, page
from cabafl.reporting.measures import Measures, measure
from cabafl.reporting.runs import Judged, Run, by_label, judged, metric_of
from cabafl.reporting.settings import differing_settings, title_of
from cabafl.reporting.styles import Style, styles
from cabafl.reporting.sweep import Sweep, sweep_csv, sweep_styles, value_figures
from cabafl.reporting.table import Table, speedup_tables, tables

MAX_EARLY = 10  # runs that are named in a note
MAX_CURVES = 40  # in figures and on the page


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report, and tables for printing."""

    html: Path
    """The page."""

    files: list[Path]
    """All files, the page last."""

    tables: list[Table]
    """The tables on the page; those of a sweep without the speed-ups."""


def build_report(
    runs: Sequence[Run],
    out: str | Path,
    targets: Sequence[float] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
    sweep: Sweep | None = None,
    by: Judged | None = None,
) -> ReportPaths:
    """Writes tables, figures and a page about finished runs.

    Args:
        runs: The runs, from `load_runs`.
        out: Folder for the report; created if needed. Every file is written atomically.
        targets: Values of the metric, for the cost to reach them, accuracies in percent; None: round ones that some
            method reaches.
        title: Heading of the page; None: what the runs have in common.
        notes: Remarks shown on the page.
        sweep: What the runs of a sweep vary; None: they are a comparison of methods.
        by: Whether figures are those of the published models (raw) or of their average (averaged); None: averaged if
            all runs have averaged models.

    Raises:
        UserError: If there are no runs, they have different metrics, one has no averaged model but is to be judged by
            it, or ``out`` cannot be written.
    """
    _check(runs, targets)
    which, (runs, _) = _judgement(runs, by), judged(runs, by)
    measures = measure(runs, targets, "method" if sweep is None else "setting")
    main, speedups = tables(measures), speedup_tables(measures)
    line_styles = _line_styles(runs, sweep)
    figures = [] if sweep is None else value_figures(sweep, measures)
    figures += render_figures([run for run in runs if run.label in line_styles], line_styles)
    look = Look([*notes, *which, *_caveats(runs, measures, sweep)], measures.noun, line_styles)
    title = title or title_of(by_label(runs), "Comparison" if sweep is None else f"Sweep of {', '.join(sweep.keys)}")
    contents = _table_files(measures, main, speedups, sweep) | _figure_files(figures)
    contents["report.html"] = page(runs, main, speedups, figures, title, look).encode()
    files = write_files(Path(out), contents)
    return ReportPaths(files[-1], files, [*main, *speedups] if sweep is None else main)


def _check(runs: Sequence[Run], targets: object) -> None:
    if not runs:
        raise UserError("report: no finished run given; accepted: at least one")
    if targets is not None:
        check_targets(targets, metric_of(runs))


def check_targets(targets: object, metric: MetricInfo) -> None:
    """Raises `UserError` unless they are numbers that the metric can reach."""
    listed = list(targets) if isinstance(targets, Sequence) and not isinstance(targets, str) else [None]
    numbers = [float(target) for target in listed if isinstance(target, Real)]
    if len(numbers) < len(listed):
        raise UserError(f"targets = {targets!r:.80}: accepted: a list of numbers, e.g. [40, 45], or None")
    if not all(metric.possible(number / metric.factor) for number in numbers):
        what = "percentages, above 0, at most 100" if metric.percent else f"values of {metric.name}{metric.bound}"
        raise UserError(f"targets = {targets!r:.80}: accepted: {what}")


def _line_styles(runs: Sequence[Run], sweep: Sweep | None) -> dict[str, Style]:
    """The style of each curve that is shown, by label."""
    labels = list(by_label(runs))
    all_styles = styles(labels) if sweep is None else sweep_styles(sweep)
    return {label: all_styles[label] for label in labels[:MAX_CURVES]}


def _table_files(
    measures: Measures, main: Sequence[Table], speedups: Sequence[Table], sweep: Sweep | None
) -> dict[str, bytes]:
    """File name -> content of the tables."""
    texts = {
        "table.csv": measures_csv(measures),
        "table.md": markdown(main),
        "table.tex": latex([*main, *speedups]),
        "speedup.csv": speedups_csv(measures),
        "speedup.md": markdown(speedups),
    }
    if sweep is not None:
        texts["sweep.csv"] = sweep_csv(sweep, measures)
    return {name: text.encode() for name, text in texts.items()}


def _judgement(runs: Sequence[Run], by: Judged | None) -> list[str]:
    """Says which models the figures are of, if some runs have averaged ones."""
    figures = "Accuracies" if metric_of(runs).name == "accuracy" else "Figures"
    some = any(run.metrics[0].averaged_value is not None for run in runs)
    if judged(runs, by)[1] == "averaged":
        return [
            f"{figures}, targets and curves are those of the averaged models (run.average); “raw” is the same figure of"
            " the models that the method published."
        ]
    return [f"{figures} are those of the published models, not of their averages."] if some else []


def _figure_files(figures: Sequence[RenderedFigure]) -> dict[str, bytes]:
    """File name -> content of the figures."""
    png = {f"figures/{figure.name}.png": figure.png for figure in figures}
    return png | {f"figures/{figure.name}.svg": figure.svg for figure in figures}


def _caveats(runs: Sequence[Run], measures: Measures, sweep: Sweep | None) -> list[str]:
    notes = []
    if any(run.summary["best_window_mean"] is None for run in runs):
        notes.append(
            f"Some runs have fewer than {WINDOW} evaluated versions, so they have no best window and no stability."
        )
    if not all(math.isfinite(row.value) for run in runs for row in run.metrics):
        notes.append(
            "Some values are not finite (NaN or infinite); curves leave them out, and none of them is the best."
        )
    early = [
        f"{run.label}, seed {run.seed}, at {run.metrics[-1].time:,.0f} s ({run.ended_by})"
        for run in runs
        if run.ended_by
    ]
    if early:
        more = f"; and {len(early) - MAX_EARLY} more" if len(early) > MAX_EARLY else ""
        notes.append(
            f"Runs that ended before their time, so that lengths differ: {'; '.join(early[:MAX_EARLY])}{more}."
        )
    if len(measures.rows) > MAX_CURVES:
        notes.append(f"Curves and figures show the first {MAX_CURVES} of {len(measures.rows)}; the tables have all.")
    swept = [] if sweep is None else sweep.keys.values()
    differing = [key for key in differing_settings(by_label(runs)) if key not in swept]
    if differing:
        notes.append(f"The runs differ in more than method and seed: {', '.join(differing)} (see Settings).")
    seeds = {tuple(run.seed for run in group) for group in by_label(runs).values()}
    if len(seeds) > 1:
        notes.append(
            f"The {measures.noun}s were not run with the same seeds, so their averages are not directly comparable."
        )
    return notes


def write_files(out: Path, contents: dict[str, bytes]) -> list[Path]:
    """Writes file name -> content into ``out`` and its folder ``figures``, each file atomically; returns the paths."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(out / name, content)
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror or error}") from None
    return [out / name for name in contents]
