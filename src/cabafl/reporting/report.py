"""Turns finished runs into a report: tables, pictures and a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cabafl.errors import UserError
from cabafl.files import write_atomic
from cabafl.reporting.figures import draw_pictures
from cabafl.reporting.formats import latex, markdown, measures_csv, speedups_csv
from cabafl.reporting.html import page
from cabafl.reporting.measures import Measures, measure
from cabafl.reporting.runs import Run, by_label
from cabafl.reporting.settings import differing_settings, title_of
from cabafl.reporting.table import Table, speedup_tables, tables

CIFAR100_NOTE = (
    "The published CIFAR-100 accuracies look like those of its 20 coarse classes (data.labels = coarse);"
    " runs with data.labels = fine learn 100 classes."
)


@dataclass(frozen=True)
class ReportPaths:
    """What was written, and the tables for showing them again."""

    html: Path
    files: list[Path]  # all of them, the page last
    tables: list[Table]


def build_report(
    runs: Sequence[Run],
    out: Path,
    targets: Sequence[float] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> ReportPaths:
    """Writes the report of ``runs`` to the folder ``out``; each file is complete or as it was before.

    ``targets`` are accuracies in percent; without them a few that some method reaches.
    """
    if not runs:
        raise UserError("report: there is no finished run to report on")
    measures = measure(runs, targets)
    made, speedups, pictures = tables(measures), speedup_tables(measures), draw_pictures(runs)
    heading = title or title_of(by_label(runs))
    document = page(runs, made, speedups, pictures, heading, [*notes, *_own_notes(runs, measures)])
    contents = {
        "table.csv": measures_csv(measures).encode(),
        "table.md": markdown(made).encode(),
        "table.tex": latex([*made, *speedups]).encode(),
        "speedup.csv": speedups_csv(measures).encode(),
        "speedup.md": markdown(speedups).encode(),
    }
    for picture in pictures:
        contents[f"figures/{picture.name}.png"] = picture.png
        contents[f"figures/{picture.name}.svg"] = picture.svg
    contents["report.html"] = document.encode()
    _write(out, contents)
    return ReportPaths(out / "report.html", [out / name for name in contents], [*made, *speedups])


def _own_notes(runs: Sequence[Run], measures: Measures) -> list[str]:
    published = any(row.values["published_mean"] is not None for row in measures.rows)
    fine = any(run.experiment.data.dataset == "cifar100" and run.experiment.data.labels == "fine" for run in runs)
    notes = [CIFAR100_NOTE] if published and fine else []
    if any(run.summary["best_window_mean"] is None for run in runs):
        notes.append("Some runs have fewer than 10 evaluations: they have no best window and no stability.")
    differing = differing_settings(by_label(runs))
    if differing:
        notes.append(f"The runs differ in more than method and seed: {', '.join(differing)} (see Settings).")
    seeds = {tuple(run.seed for run in group) for group in by_label(runs).values()}
    if len(seeds) > 1:
        notes.append("The methods were not run with the same seeds: their averages do not compare like with like.")
    return notes


def _write(out: Path, contents: dict[str, bytes]) -> None:
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(out / name, content)
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror or error}") from None
