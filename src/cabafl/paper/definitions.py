"""Reads the definition files and turns every cell of a table or figure into an experiment at a scale."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cabafl.config import Experiment
from cabafl.paper.artefact import Artefact, Entry, Keys, PaperSettings, PublishedValue
from cabafl.validation import unknown, validated

SCALES = ("paper", "desk", "smoke")


class SettingName(NamedTuple):
    """The parts of a setting's name, e.g. ``cifar10-cnn-beta0.1``."""

    data: str
    network: str
    heterogeneity: str

    @classmethod
    def parse(cls, text: str) -> "SettingName":
        """Without a third part: natural."""
        data, network, *rest = text.split("-", 2)
        return cls(data, network, rest[0] if rest else "natural")


@dataclass(frozen=True)
class PaperCell:
    """One experiment of an artefact, with seed 1: row and column are positions in `ArtefactLayout`."""

    row: int
    column: int
    setting: str  # the paper's name of it
    experiment: Experiment


@dataclass(frozen=True)
class ArtefactLayout:
    """An artefact at a scale: its rows, columns and cells, and the paper's values."""

    artefact: Artefact
    scale: str
    rows: list[Entry]
    columns: list[Entry]
    cells: list[PaperCell]
    published: dict[tuple[str, str], PublishedValue]  # (id of the row, id of the column)


@cache
def settings() -> PaperSettings:
    """What all experiments of the paper have in common."""
    return PaperSettings.model_validate(_read("settings.toml"))


@cache
def artefacts() -> dict[str, Artefact]:
    """All tables, then all figures, in the order of the paper."""
    names = [file.name for file in files("cabafl.paper").iterdir() if re.fullmatch(r"(table|fig)\d+\.toml", file.name)]
    stems = sorted((name.removesuffix(".toml") for name in names), key=_place)
    return {stem: Artefact.model_validate({"name": stem, **_read(f"{stem}.toml")}) for stem in stems}


def _place(stem: str) -> tuple[bool, int]:
    return stem.startswith("fig"), int(re.sub(r"\D", "", stem))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("cabafl.paper").joinpath(name).read_text(encoding="utf-8"))


def find_artefact(name: str) -> Artefact:
    """Accepts ``table1``, ``Table 1``, ``fig8`` and ``figure8``. Raises `UserError` for an unknown name."""
    plain = re.sub(r"[\s._-]", "", name.lower())
    plain = re.sub(r"^(figure|fig)", "fig", re.sub(r"^(table|tab)", "table", plain))
    if plain not in artefacts():
        raise unknown("NAME", name, ["list", "all", "claims", *artefacts()])
    return artefacts()[plain]


def method_label(method: str) -> str:
    """FedAvg for fedavg; the class name of the user's own method."""
    return settings().labels.get(method, method.rpartition(":")[2])


def setting_label(setting: str) -> str:
    """``CIFAR-10, CNN, β = 0.1`` for ``cifar10-cnn-beta0.1``."""
    parts, s = SettingName.parse(setting), settings()
    labels = [s.data[parts.data].label, s.network[parts.network], s.heterogeneity[parts.heterogeneity].label]
    return ", ".join(labels)


def layout(
    artefact: Artefact,
    scale: str,
    methods: Sequence[str] | None = None,
    roots: Mapping[str, str] | None = None,
) -> ArtefactLayout:
    """The cells of an artefact at a scale.

    ``methods`` take the place of the paper's seven where it compares methods. ``roots`` (data set -> folder or file)
    say where data are; an .npz file takes the place of the data set.
    """
    chosen = list(methods or settings().methods)
    rows, columns = _entries(artefact.rows, chosen), _entries(artefact.columns, chosen)
    cells = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            name = row.setting or column.setting or artefact.setting
            assert name is not None, f"{artefact.name}: a cell without a setting"
            cells.append(PaperCell(i, j, name, _experiment(artefact, scale, name, (row, column), roots or {})))
    return ArtefactLayout(artefact, scale, rows, columns, cells, _published(artefact))


def narrowed(table: ArtefactLayout, text: str) -> ArtefactLayout:
    """Keeps the rows, or else the columns, whose name contains ``text``; nothing is left if none does."""

    def matches(entry: Entry) -> bool:
        names = [entry.id, entry.label, entry.setting or "", setting_label(entry.setting) if entry.setting else ""]
        return any(text.lower() in name.lower() for name in names)

    kept_rows = [i for i, row in enumerate(table.rows) if matches(row)]
    kept_columns = [j for j, column in enumerate(table.columns) if matches(column)]
    rows = kept_rows or (list(range(len(table.rows))) if kept_columns else [])
    columns = list(range(len(table.columns))) if kept_rows else kept_columns
    cells = [
        replace(cell, row=rows.index(cell.row), column=columns.index(cell.column))
        for cell in table.cells
        if cell.row in rows and cell.column in columns
    ]
    return replace(table, rows=[table.rows[i] for i in rows], columns=[table.columns[j] for j in columns], cells=cells)


def _entries(axis: Sequence[Entry] | str, methods: Sequence[str]) -> list[Entry]:
    if isinstance(axis, str):
        return [Entry.model_validate({"method": name, "label": method_label(name)}) for name in methods]
    return list(axis)


def _published(artefact: Artefact) -> dict[tuple[str, str], PublishedValue]:
    rows, columns = (_entries(axis, settings().methods) for axis in (artefact.rows, artefact.columns))
    texts = [(row.id, column.id, text) for row in rows for column, text in _aligned(artefact, row, columns)]
    texts += [(row.id, column.id, text) for column in columns for row, text in _aligned(artefact, column, rows)]
    found = {(row, column): PublishedValue.parse(text) for row, column, text in texts}
    return {place: value for place, value in found.items() if value is not None}


def _aligned(artefact: Artefact, entry: Entry, others: Sequence[Entry]) -> list[tuple[Entry, str]]:
    values = entry.paper.split()
    if values and len(values) != len(others):
        raise ValueError(f"{artefact.name}, {entry.id}: {len(values)} values of the paper for {len(others)} places")
    return list(zip(others, values, strict=False))


def replaced(artefact: Artefact, scale: str, setting: str) -> str:
    """The setting that takes the place of the paper's at a scale."""
    for old, new in [*artefact.at(scale).replace, *_scale(scale).replace]:
        setting = setting.replace(old, new)
    return setting


def setting_experiment(artefact: Artefact, scale: str, setting: str, roots: Mapping[str, str]) -> Experiment:
    """The experiment of a setting, without a row and a column."""
    return _experiment(artefact, scale, setting, (), roots)


def _experiment(
    artefact: Artefact, scale: str, setting: str, entries: Sequence[Entry], roots: Mapping[str, str]
) -> Experiment:
    """Later keys win: the paper's, those of row and column, the scale's, then row and column at the scale."""
    s, size = settings(), _scale(scale)
    parts = SettingName.parse(replaced(artefact, scale, setting))
    method = next((entry.method for entry in entries if entry.method), "cabafl")
    spread = s.heterogeneity[parts.heterogeneity]
    own = {**s.cabafl, **spread.cabafl, **artefact.cabafl} if method == "cabafl" else {}
    start = {
        "data": {"dataset": parts.data},
        "model": {"name": parts.network},
        "method": {"name": method, **own},
    }
    layers: list[Keys] = [start, s.keys, s.data[parts.data].keys, spread.keys, artefact.keys]
    layers += [entry.keys for entry in entries]
    layers += [size.keys, size.network.get(parts.network, {}), size.data.get(parts.data, {}), artefact.at(scale).keys]
    layers += [entry.scaled(scale).keys for entry in entries]
    if parts.data in roots:
        root = roots[parts.data]
        layers.append({"data": {"root": root, "dataset": "npz" if root.endswith(".npz") else parts.data}})
    values: dict[str, Any] = {}
    for layer in layers:
        merge(values, layer)
    return validated(Experiment, values)


def merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Sets the keys of ``more``, table by table; tables per tier are values."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict) and "tier" not in key:
            merge(values[key], value)
        else:
            values[key] = deepcopy(value)


def _scale(name: str) -> Any:
    for scale, content in settings().scale.items():
        if scale == name:
            return content
    raise unknown("--scale", name, SCALES)
