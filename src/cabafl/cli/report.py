"""`cabafl report`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cabafl.cli.arguments import Quiet, Targets
from cabafl.cli.console import console, print_notice, print_table
from cabafl.errors import UserError
from cabafl.recording.scale import ACCURACY, MetricInfo

if TYPE_CHECKING:
    from cabafl.reporting.report import ReportPaths
    from cabafl.reporting.runs import Judged
    from cabafl.reporting.sweep import Sweep


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that contain some at any depth.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    targets: Targets = None,
    by: Annotated[
        str | None,
        typer.Option(help="raw: figures of the published models | averaged: of their average (run.average)."),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Include interrupted and running runs, with what they have so far.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Compare finished runs in tables, figures and a self-contained HTML page."""
    from cabafl.reporting.report import build_report
    from cabafl.reporting.runs import load_runs, metric_of

    left_out: list[str] = []
    judged = parse_by(by)
    runs = load_runs(folders, None, left_out.append, unfinished)
    _print(build_report(runs, out, parse_targets(targets, metric_of(runs)), notes=left_out, by=judged), left_out, quiet)


def write_report(
    labels: Mapping[Path, str],
    out: Path,
    targets: Sequence[float] | None,
    quiet: bool,
    notes: Sequence[str] = (),
    sweep: "Sweep | None" = None,
) -> None:
    """Reports on run folders whose labels (run folder -> label) are known, with ``notes`` shown on the page."""
    from cabafl.reporting.report import build_report
    from cabafl.reporting.runs import load_runs

    left_out: list[str] = []
    runs = load_runs(list(labels), labels, left_out.append)
    written = build_report(runs, out, targets, notes=[*notes, *left_out], sweep=sweep)
    _print(written, left_out, quiet)


_EXAMPLES = {"perplexity": "40,30"}  # of targets, for metrics that 0.5 is none of


def parse_targets(text: str | None, metric: MetricInfo = ACCURACY) -> list[float] | None:
    """Parses ``40,45``; None stays None. Raises `UserError` unless all are values of the metric."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if values and all(metric.possible(value / metric.factor) for value in values):
        return values
    if metric.percent:
        raise UserError(f"--targets = {text!r}: accepted: percentages separated by commas, e.g. 40,45")
    accepted = f"values of {metric.name} separated by commas{metric.bound}"
    raise UserError(f"--targets = {text!r}: accepted: {accepted}, e.g. {_EXAMPLES.get(metric.name, '0.5,0.2')}")


def parse_by(text: str | None) -> "Judged | None":
    """Checks the value of ``--by``; None stays None."""
    choices: dict[str | None, Judged | None] = {None: None, "raw": "raw", "averaged": "averaged"}
    if text not in choices:
        raise UserError(f"--by = {text!r}: accepted: raw, averaged")
    return choices[text]


def _print(written: "ReportPaths", left_out: Sequence[str], quiet: bool) -> None:
    from cabafl.reporting.formats import terminal

    for text in left_out:
        print_notice("warning", text)
    if quiet:
        return
    for table in written.tables:
        print_table(terminal(table))
    console.print(f"Report: {written.html}", soft_wrap=True)
