"""Tables as CSV, Markdown, LaTeX and for the terminal."""

import csv
import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from cabafl.reporting.measures import Measures, speedups
from cabafl.reporting.table import Cell, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # after a line end it would start an option
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_|[]"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def measures_csv(measures: Measures) -> str:
    """Raw numbers, units as in the run folder; an empty field is a figure that does not exist."""
    names = list(measures.rows[0].values)
    rows = [[row.label, *(_raw(row.values[name]) for name in names)] for row in measures.rows]
    return _csv([["method", *names], *rows])


def speedups_csv(measures: Measures) -> str:
    """One line per target and pair of methods."""
    labels = [row.label for row in measures.rows]
    lines = [["target_percent", "method", "against", "speedup"]]
    for target in measures.targets:
        for label, ratios in zip(labels, speedups(measures, target), strict=True):
            lines += [
                [f"{target:g}", label, other, _raw(ratio)]
                for other, ratio in zip(labels, ratios, strict=True)
                if other != label
            ]
    return _csv(lines)


def _raw(value: float | None) -> str:
    return "" if value is None else repr(value)


def _csv(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def markdown(tables: Sequence[Table]) -> str:
    """Headings and pipe tables, the best values in bold."""
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


def latex(tables: Sequence[Table]) -> str:
    """A document that compiles by itself; with ``\\usepackage{standalone}`` another one can take it in."""
    head = [
        "% Compiles by itself. To take it into a paper: \\usepackage{standalone,booktabs,graphicx}, then \\input.",
        r"\documentclass{article}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage{booktabs,graphicx}",
        r"\begin{document}",
    ]
    return "\n".join([*head, *(_latex_table(table) for table in tables), r"\end{document}", ""])


def _latex_table(table: Table) -> str:
    def cell(cell: Cell) -> str:
        text = _replaced(cell.text, _LATEX)
        return rf"{{\boldmath\textbf{{{text}}}}}" if cell.best else text

    rows = [" & ".join(map(cell, row)) + r" \\" for row in table.rows]
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{_replaced(table.title, _LATEX)}}}",
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
    """For rich, the best values starred and bold; labels are plain text, never markup."""
    shown = _numbered(table) if sum(len(heading) + 2 for heading in table.headings) > 66 else table
    made = RichTable(title=shown.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.collapse_padding, made.pad_edge = True, False
    crowded = sum(len(heading) + 2 for heading in shown.headings) > 76  # then each word has a line of its own
    for place, heading in enumerate(shown.headings):
        texts = [row[place].text for row in shown.rows]
        words = [word for text in [heading, *([] if place else texts)] for word in text.split()]
        widest = max(map(len, [*words, *(texts if place else [])]), default=1)  # names may break, numbers may not
        title = heading.replace(" ", "\n") if crowded else heading
        made.add_column(Text(title), justify="right" if place else "left", min_width=min(widest, 30))
    for row in shown.rows:
        made.add_row(*(Text(f"{cell.text} *", "bold green") if cell.best else Text(cell.text) for cell in row))
    return made


def _numbered(table: Table) -> Table:
    """Method against method, where that is wide: numbers instead of names as headings, or it does not fit."""
    names = [row[0].text for row in table.rows]
    if table.headings[1:] != names:
        return table
    rows = [[Cell(f"{place} {row[0].text}"), *row[1:]] for place, row in enumerate(table.rows, 1)]
    return Table(table.title, [table.headings[0], *map(str, range(1, len(names) + 1))], rows)
