"""`cabafl report`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cabafl.cli.console import console, tell
from cabafl.errors import UserError


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some at any depth.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    targets: Annotated[str | None, typer.Option(help="Target accuracies in percent, e.g. 40,45.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Compare finished runs: tables, figures and one self-contained page."""
    _report(folders, None, out, parse_targets(targets), quiet, ())


def write_report(
    labels: Mapping[Path, str], out: Path, targets: Sequence[float] | None, quiet: bool, notes: Sequence[str] = ()
) -> None:
    """The report of labelled run folders, for commands that have just made them."""
    _report(list(labels), labels, out, targets, quiet, notes)


def parse_targets(text: str | None) -> list[float] | None:
    """``40,45`` as numbers; None stays None."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 100 for value in values):
        raise UserError(f"--targets = {text!r}: accepted: accuracies in percent with commas between, e.g. 40,45")
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
        tell("warning", text)
    made = build_report(runs, out, targets, notes=[*notes, *left_out])
    if quiet:
        return
    for table in made.tables:
        console.print(terminal(table))
    console.print(f"Report: {made.html}", soft_wrap=True)
