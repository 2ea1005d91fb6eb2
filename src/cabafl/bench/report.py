"""Results of a benchmark: tables, figures as JSON, and whether the targets are met."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cabafl.execution.starting import worker_count
from cabafl.files import as_json, write_atomic
from cabafl.recording.environment import environment


@dataclass(frozen=True)
class BenchTable:
    """A table of formatted cells."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Check:
    """A measured value and its target: a minimum if ``above``, else a maximum."""

    name: str
    value: float
    target: float
    above: bool = True

    @property
    def met(self) -> bool:
        """Whether the value reaches the target."""
        return self.value >= self.target if self.above else self.value <= self.target

    def cells(self) -> tuple[str, ...]:
        """One row of the table of targets."""
        sign = "≥" if self.above else "≤"
        return self.name, f"{self.value:,.3g}", f"{sign} {self.target:,.3g}", "yes" if self.met else "NO"

    def figures(self) -> dict[str, Any]:
        """The fields of one entry of ``checks`` in bench.json."""
        return {"name": self.name, "value": self.value, "target": self.target, "above": self.above, "met": self.met}


@dataclass(frozen=True)
class BenchSection:
    """The result of one section of `cabafl bench`; ``notes`` say what is measured and what is not."""

    name: str
    title: str
    tables: list[BenchTable]
    notes: list[str]
    figures: dict[str, Any]
    checks: list[Check] = field(default_factory=list)

    def all_tables(self) -> list[BenchTable]:
        """The tables, with the table of targets last."""
        if not self.checks:
            return self.tables
        headings = ("target", "measured", "required", "met")
        return [*self.tables, BenchTable("Targets", headings, [check.cells() for check in self.checks])]

    def markdown(self) -> str:
        """The section as a chapter of bench.md."""
        parts = [f"## {self.title}"]
        for table in self.all_tables():
            parts += [f"**{table.title}**", _markdown_table(table)]
        return "\n\n".join([*parts, "\n".join(f"* {note}" for note in self.notes)])


def machine() -> dict[str, Any]:
    """The machine, software versions and date."""
    return {"cores": worker_count("auto"), **environment()}


def write(folder: Path, sections: Iterable[BenchSection], where: dict[str, Any]) -> None:
    """Writes ``bench.json`` and ``bench.md`` to ``folder``."""
    sections = list(sections)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        section.name: {**section.figures, "checks": [check.figures() for check in section.checks]}
        for section in sections
    }
    write_atomic(folder / "bench.json", as_json({"machine": where, "sections": figures}))
    text = "\n\n".join(["# Measurements", describe(where), *(section.markdown() for section in sections)])
    write_atomic(folder / "bench.md", (text + "\n").encode())


def describe(where: dict[str, Any]) -> str:
    """Date, machine and versions in one line."""
    return (
        f"{where['started']}, {where['processor']}, {where['cores']} cores, Python {where['python']}, "
        f"torch {where['torch']}, cabafl {where['cabafl']}"
    )


def _markdown_table(table: BenchTable) -> str:
    rows = [table.headings, tuple("---" for _ in table.headings), *table.rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
