"""What differs from the paper: found by comparing the settings, not written by hand."""

from collections.abc import Iterable, Sequence

from cabafl.config import Experiment
from cabafl.paper.definitions import ArtefactLayout, layout, setting_experiment, settings
from cabafl.paper.identity import identity
from cabafl.reporting.settings import format_value
from cabafl.reproduction.values import MeasuredArtefact

NAMES = {
    "data.dataset": "data",
    "data.file": "file",
    "data.train_limit": "training samples",
    "data.test_limit": "test samples",
    "data.devices": "devices",
    "data.min_samples": "samples of a device, at least",
    "data.partition": "partition",
    "model.name": "network",
    "model.width": "width of the network",
    "training.learning_rate": "learning rate",
    "run.virtual_time": "virtual seconds",
    "run.evaluate_every": "seconds between evaluations",
    "fleet.slots": "devices at the same time",
}
# The paper does not state these; `settings.toml` says what is taken at paper scale.
UNSTATED = ("run.virtual_time", "run.evaluate_every")
# These follow from another partition or network, which is named itself.
FOLLOWING = ("model.feature_layer", "data.beta", "data.shards", "data.labels", "method.")


def differences(table: ArtefactLayout) -> list[str]:
    """One text per setting that differs from the paper's in some cell."""
    theirs = layout(table.artefact, "paper", _methods(table))
    rows, columns = ({entry.id: i for i, entry in enumerate(axis)} for axis in (theirs.rows, theirs.columns))
    cells = {(cell.row, cell.column): cell.experiment for cell in theirs.cells}
    pairs = []
    for cell in table.cells:
        place = rows[table.rows[cell.row].id], columns[table.columns[cell.column].id]
        pairs.append((cell.experiment, cells[place]))
    if table.artefact.observe is not None:
        setting = table.artefact.observe.setting
        own, other = (setting_experiment(table.artefact, scale, setting, {}) for scale in (table.scale, "paper"))
        pairs.append((own, other))
    return _texts(pairs)


def _methods(table: ArtefactLayout) -> list[str]:
    found = [entry.method for entry in (*table.rows, *table.columns) if entry.method]
    return found or settings().methods


def _texts(pairs: Iterable[tuple[Experiment, Experiment]]) -> list[str]:
    changes: dict[str, dict[str, None]] = {}  # key -> texts, in order
    for own, theirs in pairs:
        ours, other = identity(own), identity(theirs)
        for key in ours:
            if ours[key] != other.get(key) and not key.startswith(FOLLOWING):
                whose = "scale paper" if key in UNSTATED else "paper"
                text = f"{_shown(key, ours[key])} ({whose}: {_shown(key, other.get(key))})"
                changes.setdefault(key, {})[text] = None
    ordered = sorted(changes, key=lambda key: list(NAMES).index(key) if key in NAMES else len(NAMES))
    return [f"{NAMES.get(key, key)}: {', '.join(changes[key])}" for key in ordered]


def _shown(key: str, value: object) -> str:
    s = settings()
    if key == "data.dataset" and value in s.data:
        return s.data[str(value)].label
    if key == "model.name" and value in s.network:
        return s.network[str(value)]
    if value is None:
        return "all" if key.endswith("_limit") else "none"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return format_value(value)


def caption(measured: MeasuredArtefact) -> list[str]:
    """The sentences below a table or figure: what it shows, what differs from the paper, seeds and gaps."""
    table = measured.table
    artefact, seeds = table.artefact, {value.seeds for value in measured.values.values()}
    lines = [artefact.about] if artefact.about else []
    differing = differences(table)
    if differing:
        lines.append(f"Scale {table.scale}; differs from the paper in {'; '.join(differing)}.")
    else:
        lines.append(f"Scale {table.scale}.")
    lines += artefact.at(table.scale).notes
    if seeds:
        lines.append(_seeds(sorted(seeds), artefact.kind))
    if measured.gaps:
        lines.append(f"{measured.gaps} of {len(table.cells)} cells have no finished run (…).")
    return lines


def _seeds(counts: Sequence[int], kind: str) -> str:
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    over = "One seed" if list(counts) == [1] else f"{'Medians' if kind == 'transfers' else 'Means'} over {number} seeds"
    window = "; ± is the deviation inside the best window of 10 versions" if kind in ("accuracy", "curves") else ""
    return f"{over}{window}."
