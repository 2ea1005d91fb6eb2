"""Formats tables as CSV, Markdown and LaTeX, and for the terminal."""

import csv
import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from cabafl.reporting.measures import MAX_SPEEDUPS, Measures, speedups
from cabafl.reporting.table import Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    **{sign: rf"$\{name}$" for sign, name in zip("αβγσ…", ("alpha", "beta", "gamma", "sigma", "ldots"), strict=True)},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # after \\ a bracket would start an optional argument
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_|[]"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def measures_csv(measures: Measures) -> str:
    """Raw numbers in the units of the run folder; an empty field means not available."""
    names = list(measures.rows[0].values)
    rows = [[row.label, *(raw(row.values[name]) for name in names)] for row in measures.rows]
    return csv_text([[measures.noun, *names], *rows])


def speedups_csv(measures: Measures) -> str:
    """One line per target and ordered pair of methods; none if they are too many."""
    labels = [row.label for row in measures.rows]
    lines = [["target_percent" if measures.metric.percent else "target", "method", "against", "speedup"]]
    for target in measures.targets if len(labels) <= MAX_SPEEDUPS else []:
        for label, ratios in zip(labels, speedups(measures, target), strict=True):
            lines += [
                [f"{target:g}", label, other, raw(ratio)]
                for other, ratio in zip(labels, ratios, strict=True)
                if other != label
            ]
    return csv_text(lines)


def table_csv(table: Table) -> str:
    """A table as it is shown, without the marks of the best values."""
    return csv_text([table.headings, *([cell.text for cell in row] for row in table.rows)])


def raw(value: float | None) -> str:
    """A number with all its digits; empty: not available."""
    return "" if value is None else repr(value)


def csv_text(lines: Sequence[Sequence[str]]) -> str:
    """Lines of comma-separated fields, quoted where needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def markdown(tables: Sequence[Table]) -> str:
    """Pipe tables, each below its title, with the best values in bold."""
    return "\n".join(_markdown_table(table) for table in tables)


def _markdown_table(table: Table) -> str:
    def cell(cell: Cell) -> str:
        text = _replaced(cell.text, _MARKDOWN)
        return f"**{text}**" if cell.best else text

    lines = [f"### {_replaced(table.title, _MARKDOWN)}", ""]
    lines.append("| " + " | ".join(_replaced(heading, _MARKDOWN) for heading in table.headings) + " |")
    lines.append("|---" + "|---:" * (len(table.headings) - 1) + "|")
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def latex(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """A document that compiles by itself; with ``\\usepackage{standalone}`` another document can ``\\input`` it.

    ``notes`` follow the title in each caption.
    """
    head = [
        "% Compiles by itself. To take it into a paper: \\usepackage{standalone,booktabs,graphicx}, then \\input.",
        r"\documentclass{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage{booktabs,graphicx}",
        r"\begin{document}",
    ]
    return "\n".join([*head, *(_latex_table(table, notes) for table in tables), r"\end{document}", ""])


def _latex_table(table: Table, notes: Sequence[str]) -> str:
    def cell(cell: Cell) -> str:
        text = _replaced(cell.text, _LATEX)
        return rf"{{\boldmath\textbf{{{text}}}}}" if cell.best else text

    rows = [" & ".join(map(cell, row)) + r" \\" for row in table.rows]
    title = ". ".join([table.title, " ".join(notes)]) if notes else table.title
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{_replaced(title, _LATEX)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
        r"\toprule",
        " & ".join(_replaced(heading, _LATEX) for heading in table.headings) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _replaced(text: str, signs: dict[str, str]) -> str:
    return "".join(signs.get(sign, sign) for sign in " ".join(text.split()))


def terminal(table: Table) -> RichTable:
    """A rich table, with the best values starred and bold. Text is never read as markup."""
    shown = _numbered(table) if sum(len(heading) + 2 for heading in table.headings) > 66 else table
    rich_table = RichTable(title=shown.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    rich_table.collapse_padding, rich_table.pad_edge = True, False
    crowded = sum(len(heading) + 2 for heading in shown.headings) > 76  # put each word of a heading on its own line
    for place, heading in enumerate(shown.headings):
        texts = [row[place].text for row in shown.rows]
        words = [word for text in [heading, *([] if place else texts)] for word in text.split()]
        widest = max(map(len, [*words, *(texts if place else [])]), default=1)  # names may wrap, numbers may not
        title = heading.replace(" ", "\n") if crowded else heading
        rich_table.add_column(Text(title), justify="right" if place else "left", min_width=min(widest, 30))
    for row in shown.rows:
        rich_table.add_row(*(Text(f"{cell.text} *", "bold green") if cell.best else Text(cell.text) for cell in row))
    return rich_table


def _numbered(table: Table) -> Table:
    """Replaces the headings of a method-by-method table by numbers, so that a wide one fits the terminal."""
    names = [row[0].text for row in table.rows]
    if table.headings[1:] != names:
        return table
    rows = [[Cell(f"{place} {row[0].text}"), *row[1:]] for place, row in enumerate(table.rows, 1)]
    return Table(table.title, [table.headings[0], *map(str, range(1, len(names) + 1))], rows)
