"""One finished artefact: built from the runs that are there, written as files, read back for the page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cabafl.files import as_json, write_atomic
from cabafl.paper.artefact import Artefact
from cabafl.paper.definitions import ArtefactLayout
from cabafl.reporting.figures import RenderedFigure
from cabafl.reporting.formats import latex, markdown, table_csv
from cabafl.reporting.table import Cell, Table
from cabafl.reproduction import figures
from cabafl.reproduction.captions import caption
from cabafl.reproduction.plan import RUNS
from cabafl.reproduction.pool import RunPool
from cabafl.reproduction.similarities import (
    judge_similarities,
    load_similarities,
    observation_path,
    similarity_table,
)
from cabafl.reproduction.tables import artefact_table, facts_table, our_facts
from cabafl.reproduction.values import MeasuredArtefact, measure_cells
from cabafl.reproduction.verdicts import Verdict, judge

RESULT = "result.json"
SMOKE = "At smoke scale the numbers say nothing about the paper: they show that the command works."


@dataclass(frozen=True)
class ArtefactResult:
    """A table or figure with its caption and verdicts."""

    name: str
    scale: str
    table: Table
    caption: list[str]
    verdicts: list[Verdict]
    cells: int
    gaps: int
    figure: RenderedFigure | None = None

    @property
    def notes(self) -> list[str]:
        """Caption and verdicts, one line each."""
        warning = [SMOKE] if self.scale == "smoke" and self.cells else []
        return [*self.caption, *(verdict.line() for verdict in self.verdicts), *warning]


def build(table: ArtefactLayout, pool: RunPool, out: Path, roots: Mapping[str, str]) -> ArtefactResult:
    """Makes the artefact from the finished runs; what is missing is a gap."""
    artefact = table.artefact
    measured = measure_cells(table, pool)
    if artefact.kind == "facts":
        return _facts(artefact, table.scale)
    if artefact.kind == "similarities":
        return _similarities(measured, out, roots)
    drawn = None
    if measured.runs and artefact.kind in ("curves", "selections"):
        drawn = figures.curves(measured) if artefact.kind == "curves" else figures.selections(measured)
    verdicts = [judge(claim, measured) for claim in artefact.claims]
    content = artefact_table(measured)
    return ArtefactResult(
        artefact.name, table.scale, content, caption(measured), verdicts, len(table.cells), measured.gaps, drawn
    )


def _facts(artefact: Artefact, scale: str) -> ArtefactResult:
    verdicts = []
    if artefact.facts != "testbed":
        same = our_facts(artefact) == artefact.paper
        verdicts = [Verdict("The simulated devices are the paper's", "the table", "the table", same)]
    about = f"{artefact.about} No run is needed."
    return ArtefactResult(artefact.name, scale, facts_table(artefact), [about], verdicts, 0, 0)


def _similarities(measured: MeasuredArtefact, out: Path, roots: Mapping[str, str]) -> ArtefactResult:
    artefact, scale = measured.table.artefact, measured.table.scale
    splits = load_similarities(observation_path(artefact, scale, out / RUNS, roots))
    verdicts = [judge_similarities(claim, splits, scale) for claim in artefact.claims]
    drawn = None
    if splits and artefact.observe is not None:
        title = f"{artefact.number}: {artefact.title}"
        drawn = figures.similarities(title, splits, with_unions=not artefact.observe.coarse)
    content = similarity_table(artefact, splits)
    lines = caption(measured)
    if artefact.observe is not None:
        lines.append(f"Means of {artefact.observe.draws} random splits; bars: ± one standard deviation over them.")
    return ArtefactResult(artefact.name, scale, content, lines, verdicts, 1, int(not splits), drawn)


def write_result(result: ArtefactResult, folder: Path) -> None:
    """Writes table.md, table.tex, table.csv, the figure, and result.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = "".join(f"\n* {line}" for line in result.notes)
    contents = {
        "table.md": f"{markdown([result.table])}{notes}\n".encode(),
        "table.tex": latex([result.table], result.caption).encode(),
        "table.csv": table_csv(result.table).encode(),
    }
    if result.figure is not None:
        contents |= {"figure.png": result.figure.png, "figure.svg": result.figure.svg}
    else:  # one of an earlier call, e.g. at another scale, would be taken for this one's
        for name in ("figure.png", "figure.svg"):
            (folder / name).unlink(missing_ok=True)
    contents[RESULT] = as_json(_plain(result))
    for name, content in contents.items():
        write_atomic(folder / name, content)


def _plain(result: ArtefactResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "scale": result.scale,
        "title": result.table.title,
        "headings": result.table.headings,
        "rows": [[[cell.text, cell.best] for cell in row] for row in result.table.rows],
        "caption": result.caption,
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
        "cells": result.cells,
        "gaps": result.gaps,
    }


def read_results(out: Path, names: Sequence[str]) -> list[ArtefactResult]:
    """The artefacts that were written into ``out`` by this and earlier calls, in the order of ``names``."""
    found = []
    for name in names:
        path = out / name / RESULT
        try:
            found.append(_read(json.loads(path.read_text(encoding="utf-8")), out / name))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not written yet
    return found


def _read(plain: Mapping[str, Any], folder: Path) -> ArtefactResult:
    rows = [[Cell(text, best) for text, best in row] for row in plain["rows"]]
    table = Table(plain["title"], plain["headings"], rows)
    drawn = None
    if (folder / "figure.svg").exists():
        images = ((folder / f"figure.{kind}").read_bytes() for kind in ("png", "svg"))
        drawn = RenderedFigure("figure", plain["title"], " ".join(plain["caption"]), *images)
    verdicts = [Verdict(**verdict) for verdict in plain["verdicts"]]
    name, scale, counts = plain["name"], plain["scale"], (plain["cells"], plain["gaps"])
    return ArtefactResult(name, scale, table, plain["caption"], verdicts, *counts, drawn)
