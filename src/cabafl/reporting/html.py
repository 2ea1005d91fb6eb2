"""The HTML page of a report: self-contained, and all content from run folders is escaped."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from cabafl.recording.metrics import WINDOW
from cabafl.recording.scale import MetricInfo
from cabafl.reporting.figures import RenderedFigure
from cabafl.reporting.runs import Run, by_label, clock_of, metric_of
from cabafl.reporting.series import AXES, Series, axis_names, series
from cabafl.reporting.settings import common_settings, differing_settings, format_value, method_settings
from cabafl.reporting.styles import Style
from cabafl.reporting.table import Table

MAX_SVG_BYTES = 400_000  # above this, the PNG is smaller

EXPLANATION = (
    f"{{metric}} is the best mean of {WINDOW} evaluated versions in a row ± the standard deviation in that window,"
    " both averaged over seeds{lower}; a version that is evaluated several times counts once. “Over seeds ±” is the"
    " standard deviation of that mean over seeds. The cost of a target is measured at the first evaluation that reaches"
    " it, and is the median over seeds; NA: not reached. Stability is the standard deviation of the moving mean in the"
    " second half of the run; “detrended” is its standard deviation around a straight line, without the learning trend."
    " Fairness is the variance of the devices' shares of all selections. Lower is better for all three. “Never heard”"
    " is the number of devices that lost every job. The best value of each column is marked."
)


class Look(NamedTuple):
    """What depends on the kind of report: notes, what a row is called, and the style of each curve that is shown."""

    notes: Sequence[str]
    noun: str
    styles: Mapping[str, Style]


def page(
    runs: Sequence[Run],
    tables: Sequence[Table],
    speedups: Sequence[Table],
    figures: Sequence[RenderedFigure],
    title: str,
    look: Look,
) -> str:
    """Returns the complete HTML document."""
    script, style = asset("page.js"), asset("page.css")
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(runs, look.noun))}</p>',
        _notes(look.notes),
        "<h2>Results</h2>",
        f'<p class="soft">{escape(_explanation(metric_of(runs)))}</p>',
        '<div class="row">' + "".join(map(table_section, tables)) + "</div>",
        "<h2>Learning curves</h2>",
        f'<p class="soft">Mean of the last {WINDOW} evaluated versions; with several seeds, the mean over seeds and a'
        " band from the lowest to the highest. Click a curve to hide it, drag to zoom, double-click to zoom out.</p>",
        '<div class="bar" id="axis-bar"></div><div class="bar" id="method-bar"></div>',
        '<div id="plot"><div id="tip"></div></div>',
        _speedups(speedups),
        "<h2>Figures</h2>",
        *map(figure_element, figures),
        "<h2>Settings</h2>",
        _settings(runs),
        "<h2>Runs</h2>",
        _runs(runs),
        f'<script type="application/json" id="data">{_json(_curve_data(runs, look.styles))}</script>',
        f"<script>{script}</script>",
    ]
    return document(title, style, script, "\n".join(body))


def _explanation(metric: MetricInfo) -> str:
    lower = "" if metric.more_is_better else " (lower is better)"
    return EXPLANATION.format(metric=metric.heading, lower=lower)


def document(title: str, style: str, script: str, body: str) -> str:
    """The security policy allows only this script and this style, by their hashes: injected ones would not run."""
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def asset(name: str) -> str:
    """A file of this package."""
    return files("cabafl.reporting").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(value: Any) -> str:
    """JSON without the characters that could end the script element around it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(runs: Sequence[Run], noun: str) -> str:
    groups = by_label(runs)
    seeds = sorted({run.seed for run in runs})
    counts = f"{len(groups)} {noun}{'s' * (len(groups) > 1)}, {len(runs)} run{'s' * (len(runs) > 1)}"
    return f"{counts}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def table_section(table: Table) -> str:
    """A table below its title; best values have the class ``best``."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    rows = "".join(
        "<tr>" + "".join(f"<td{' class=best' * cell.best}>{escape(cell.text)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<section><h3>{escape(table.title)}</h3><div class="scroll">{inner}</div></section>'


def _speedups(tables: Sequence[Table]) -> str:
    if not tables:
        return ""
    about = "Speed-up of row over column: the column's time to the target divided by the row's."
    inner = "".join(map(table_section, tables))
    return f'<h2>Speed-up</h2><p class="soft">{about}</p><div class="row">{inner}</div>'


def figure_element(figure: RenderedFigure) -> str:
    """A figure inside the page, as SVG or, if that is large, as PNG."""
    kind, content = ("svg+xml", figure.svg) if len(figure.svg) <= MAX_SVG_BYTES else ("png", figure.png)
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    caption = f"<b>{escape(figure.title)}.</b> {escape(figure.caption)}"
    return f'<figure><figcaption>{caption}</figcaption><img alt="{escape(figure.title)}" src="{source}"></figure>'


def _settings(runs: Sequence[Run]) -> str:
    groups = by_label(runs)
    differing = differing_settings(groups)
    parts = ["<h3>Methods</h3>", _plain_table(["method", "keys"], list(method_settings(groups).items()))]
    if differing:
        rows = [[key, *values] for key, values in differing.items()]
        parts += ["<h3>Differing</h3>", _plain_table(["setting", *groups], rows)]
    common = "".join(
        f"<div><code>{escape(key)}</code><span>{escape(value)}</span></div>"
        for key, value in common_settings(groups).items()
    )
    return "".join([*parts, f'<h3>Common to all</h3><div class="columns">{common}</div>'])


def _runs(runs: Sequence[Run]) -> str:
    rows = [
        [
            run.label,
            str(run.seed),
            f"{len(run.metrics):,}",
            f"{run.metrics[-1].time:,.0f}",
            format_value(run.summary["wall_seconds"]),
            str(run.folder),
        ]
        for run in runs
    ]
    headings = ["method", "seed", "evaluations", f"{clock_of(runs)} [s]", "wall time of the computation [s]", "folder"]
    return f"<details><summary>{len(runs)} run folders</summary>{_plain_table(headings, rows)}</details>"


def _plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    table = f'<table class="settings"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _curve_data(runs: Sequence[Run], styles: Mapping[str, Style]) -> dict[str, Any]:
    methods: list[Mapping[str, Any]] = []
    found = {label: {axis: series(group, axis) for axis in AXES} for label, group in by_label(runs).items()}
    digits = _digits([curve for label in styles for curve in found[label].values()])
    for label, group in by_label(runs).items():
        if label not in styles:
            continue
        style = styles[label]
        dashes = " ".join(f"{2.2 * length:g}" for length in style.dashes)
        curves = {axis: _points(curve, digits) for axis, curve in found[label].items()}
        methods.append({"label": label, "colour": style.colour, "dashes": dashes, "seeds": len(group), **curves})
    metric = metric_of(runs)
    shown = {"label": f"test {metric.label}", "unit": metric.unit, "percent": metric.percent}
    shown["better"] = 1 if metric.more_is_better else -1
    return {"axes": axis_names(runs), "metric": shown, "methods": methods}


def _digits(curves: Sequence[Series]) -> int:
    """How many digits of a value show a difference: more, if all values are close to each other."""
    values = np.concatenate([np.concatenate([curve.low, curve.high]) for curve in curves])
    span, largest = (float(np.ptp(values)), float(np.abs(values).max())) if len(values) else (0.0, 0.0)
    return min(12, 5 + math.floor(math.log10(largest / span))) if 0 < span < largest else 5


def _points(curve: Series, digits: int) -> dict[str, list[float]]:
    """Rounded to keep the page small; the error is less than a pixel."""
    values = {"mean": curve.mean, "low": curve.low, "high": curve.high}
    short = {name: [float(f"{y:.{digits}g}") for y in column] for name, column in values.items()}
    return {"x": [float(f"{x:.7g}") for x in curve.x], **short}
