"""The table of an artefact: the paper's rows and columns, each row of ours followed by the paper's."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from cabafl.paper.artefact import Artefact, Entry, PublishedValue
from cabafl.paper.definitions import SettingName, artefacts, settings
from cabafl.power import BOARDS
from cabafl.reporting.table import Cell, Table
from cabafl.reproduction.values import MeasuredArtefact, Place, better
from cabafl.tiers import CONFIGS, TIERS

GAP, NOT_REACHED, NO_VALUE = "…", "NA", "-"
OURS, PAPER = "ours", "paper"
Format = Callable[[float, float | None], str]


def artefact_table(measured: MeasuredArtefact) -> Table:
    """Rows and columns as in the paper. A gap is a cell whose run is not finished; the best values are marked."""
    table = measured.table
    stubs, names = _stubs(table.rows)
    headings = [*names, "", *(_label(column, table.scale) for column in table.columns)]
    ours = {place: value.mean for place, value in measured.values.items()}
    paper = {place: value.mean for place, value in table.published.items()}
    best_ours, best_paper = (_best(measured, numbers) for numbers in (ours, paper))
    rows: list[list[Cell]] = []
    for row, stub in zip(table.rows, stubs, strict=True):
        texts = [_own(measured, (row.id, column.id)) for column in table.columns]
        marks = [(row.id, column.id) in best_ours for column in table.columns]
        rows.append([*map(Cell, stub), Cell(_which(row, table.scale)), *map(Cell, texts, marks)])
        if table.artefact.kind == "stability":
            rows.append([*(Cell("") for _ in stub), Cell("without trend"), *map(Cell, _detrended(measured, row))])
        spread = _spreads(measured, row)
        if any(spread):
            rows.append([*(Cell("") for _ in stub), Cell("± over seeds"), *map(Cell, spread)])
        if any((row.id, column.id) in table.published for column in table.columns):
            texts = [_published(table.artefact, table.published.get((row.id, c.id))) for c in table.columns]
            marks = [(row.id, column.id) in best_paper for column in table.columns]
            which = PAPER if row.target is None else f"{PAPER}, to {row.target:g} %"
            rows.append([*(Cell("") for _ in stub), Cell(which), *map(Cell, texts, marks)])
    return Table(f"{table.artefact.number}: {table.artefact.title}", headings, rows)


def _which(row: Entry, scale: str) -> str:
    target = row.scaled(scale).target or row.target
    return OURS if target is None else f"{OURS}, to {target:g} %"


def _stubs(rows: Sequence[Entry]) -> tuple[list[list[str]], list[str]]:
    """The first cells of each row, with their headings: its label, or the parts of its setting that vary."""
    if not all(row.setting and not row.label for row in rows):
        return [[row.label or row.id] for row in rows], [""]
    s = settings()
    parts = [SettingName.parse(row.setting or "") for row in rows]
    labels = [(s.data[p.data].label, s.network[p.network], s.heterogeneity[p.heterogeneity].label) for p in parts]
    varying = [i for i in range(3) if len({label[i] for label in labels}) > 1] or [2]
    return [[label[i] for i in varying] for label in labels], [("data", "network", "setting")[i] for i in varying]


def _label(column: Entry, scale: str) -> str:
    text = column.scaled(scale).label or column.label
    return text or settings().heterogeneity[SettingName.parse(column.setting or "").heterogeneity].label


def _own(measured: MeasuredArtefact, place: Place) -> str:
    value = measured.values.get(place)
    if value is None:
        return GAP
    if value.mean is None:
        return NOT_REACHED if measured.table.artefact.kind == "transfers" else NO_VALUE
    return _formatted(measured.table.artefact.kind)(value.mean, value.deviation)


def _detrended(measured: MeasuredArtefact, row: Entry) -> list[str]:
    """Stability around the learning trend: a method that still learns fast is not unstable."""
    texts = []
    for column in measured.table.columns:
        runs = measured.runs.get((row.id, column.id), ())
        known = [r.summary["stability_detrended"] for r in runs if r.summary["stability_detrended"] is not None]
        texts.append(f"{100 * fmean(known):.2f}" if known else NO_VALUE if runs else GAP)
    return texts


def _spreads(measured: MeasuredArtefact, row: Entry) -> list[str]:
    values = [measured.values.get((row.id, column.id)) for column in measured.table.columns]
    show = _formatted(measured.table.artefact.kind)
    texts = []
    for value in values:
        known = value is not None and value.spread is not None
        texts.append(f"{show(value.spread or 0.0, None)} ({value.seeds})" if value is not None and known else "")
    return texts


def _published(artefact: Artefact, value: PublishedValue | None) -> str:
    if value is None:
        return NO_VALUE
    return NOT_REACHED if value.mean is None else _formatted(artefact.kind)(value.mean, value.deviation)


def _formatted(kind: str) -> Format:
    if kind == "transfers":
        return lambda mean, _: f"{mean:,.0f}"
    if kind == "selections":
        return lambda mean, _: f"{mean:.1e}" if mean else "0"
    return lambda mean, deviation: f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _best(measured: MeasuredArtefact, numbers: Mapping[Place, float | None]) -> set[Place]:
    """The places with the best value of their row or column, if at least two are known."""
    table, found = measured.table, set()
    choose = better(table.artefact.kind)
    lines = {"row": table.rows, "column": table.columns}.get(table.artefact.best or "", [])
    for line in lines:
        here = {
            place: number
            for place, number in numbers.items()
            if number is not None and line.id == place[0 if table.artefact.best == "row" else 1]
        }
        if len(here) > 1:
            found |= {place for place, number in here.items() if number == choose(list(here.values()))}
    return found


def facts_table(artefact: Artefact) -> Table:
    """A table without runs: what the paper states, and what this toolkit has built in."""
    rows: list[list[Cell]] = []
    for name, own, theirs in zip(_fact_names(artefact), our_facts(artefact), artefact.paper, strict=True):
        rows.append([Cell(f"{name} {OURS}".strip()), *map(Cell, own)])
        rows.append([Cell(f"{name} {PAPER}".strip()), *map(Cell, theirs)])
    return Table(f"{artefact.number}: {artefact.title}", artefact.headings, rows)


def _fact_names(artefact: Artefact) -> list[str]:
    return [name.capitalize() + "," for name in CONFIGS] if artefact.facts == "configs" else [""]


def our_facts(artefact: Artefact) -> list[list[str]]:
    """The values built into this toolkit, in the order of the paper's."""
    if artefact.facts == "tiers":
        return [[f"N({mean:g},{deviation:g})" for mean, deviation in TIERS.values()]]
    if artefact.facts == "configs":
        return [[str(count) for count in counts] for counts in CONFIGS.values()]
    fleet = artefacts()["fig13"].keys["fleet"]
    watts = {tier: BOARDS[board].compute for tier, board in fleet["tier_power"].items()}
    devices = [
        f"{count} simulated devices of tier {tier}: {TIERS[tier][0]:g} s per job, {watts[tier]:g} W while training"
        for tier, count in fleet["tiers"].items()
    ]
    return [["this machine", *devices]]
