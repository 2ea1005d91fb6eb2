"""The page with all artefacts: self-contained, like that of a report."""

from collections.abc import Sequence
from html import escape

from cabafl.paper.definitions import artefacts, settings
from cabafl.reporting.html import asset, document, figure_element, table_section
from cabafl.reproduction.claims import CLAIMS
from cabafl.reproduction.result import SMOKE, ArtefactResult
from cabafl.reproduction.verdicts import WORDS


def index_page(results: Sequence[ArtefactResult]) -> str:
    """Contents with the verdicts, then every table and figure."""
    title = "The CaBaFL paper, reproduced"
    scales = sorted({result.scale for result in results})
    about = "; ".join(f"scale {name}: {_about(name)}" for name in scales)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">Xia et al., arXiv 2404.12850. {escape(about)}. “…” marks a cell without a finished run; the'
        " best values are bold; “paper” rows are the published numbers.</p>",
        _contents(results),
        *map(_section, results),
    ]
    return document(title, asset("page.css"), "", "\n".join(body))


def _about(scale: str) -> str:
    return next((content.about for name, content in settings().scale.items() if name == scale), "")


def _contents(results: Sequence[ArtefactResult]) -> str:
    rows = []
    for result in results:
        link = f'<a href="#{escape(result.name)}">{escape(result.table.title)}</a>'
        state = "complete" if not result.gaps else f"{result.cells - result.gaps} of {result.cells} cells"
        claims = "<br>".join(f"{escape(v.text)}: <b>{WORDS[v.holds]}</b>" for v in result.verdicts)
        rows.append(f"<tr><td>{link}</td><td>{state}</td><td>{claims}</td></tr>")
    head = "<tr><th>table or figure</th><th>runs</th><th>claims of the paper</th></tr>"
    body = "".join(rows)
    table = f'<table class="settings"><thead>{head}</thead><tbody>{body}</tbody></table>'
    warning = f'<ul class="notes"><li>{escape(SMOKE)}</li></ul>' if any(r.scale == "smoke" for r in results) else ""
    return f'{warning}<div class="scroll">{table}</div>'


def _section(result: ArtefactResult) -> str:
    known = artefacts().get(result.name)
    parts = [f'<h2 id="{escape(result.name)}">{escape(known.number if known else result.table.title)}</h2>']
    if result.figure is not None:
        parts.append(figure_element(result.figure))
    notes = "".join(f"<li>{escape(line)}</li>" for line in result.notes)
    table = _claims(result) if result.name == CLAIMS else table_section(result.table)
    parts += [table, f"<ul>{notes}</ul>"]
    return "".join(parts)


def _claims(result: ArtefactResult) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in result.table.headings)
    rows = ["".join(f"<td>{escape(cell.text)}</td>" for cell in row) for row in result.table.rows]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="settings"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
