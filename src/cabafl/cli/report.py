"""`cabafl report`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cabafl.cli.arguments import Quiet, Targets
from cabafl.cli.console import console, print_notice
from cabafl.errors import UserError


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that contain some at any depth.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    targets: Targets = None,
    quiet: Quiet = False,
) -> None:
    """Compare finished runs in tables, figures and a self-contained HTML page."""
    _report(folders, None, out, parse_targets(targets), quiet, ())


def write_report(
    labels: Mapping[Path, str], out: Path, targets: Sequence[float] | None, quiet: bool, notes: Sequence[str] = ()
) -> None:
    """Reports on run folders whose labels (run folder -> label) are known, with ``notes`` shown on the page."""
    _report(list(labels), labels, out, targets, quiet, notes)


def parse_targets(text: str | None) -> list[float] | None:
    """Parses ``40,45``; None stays None. Raises `UserError` unless all are in (0, 100]."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 100 for value in values):
        raise UserError(f"--targets = {text!r}: accepted: percentages separated by commas, e.g. 40,45")
    return values


def _report(
    folders: Sequence[Path],
    labels: Mapping[Path, str] | None,
    out: Path,
    targets: Sequence[float] | None,
    quiet: bool,
    notes: Sequence[str],
) -> None:
    from cabafl.reporting.formats import terminal
    from cabafl.reporting.report import build_report
    from cabafl.reporting.runs import load_runs

    left_out: list[str] = []
    runs = load_runs(folders, labels, left_out.append)
    for text in left_out:
        print_notice("warning", text)
    written = build_report(runs, out, targets, notes=[*notes, *left_out])
    if quiet:
        return
    for table in written.tables:
        console.print(terminal(table))
    console.print(f"Report: {written.html}", soft_wrap=True)
