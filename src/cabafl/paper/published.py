"""Accuracies that the paper publishes, found by the settings of a run."""

from functools import cache

from cabafl.config import Experiment
from cabafl.paper.artefact import PublishedValue
from cabafl.paper.definitions import artefacts, layout, settings
from cabafl.paper.identity import digest, essentials

METHODS = tuple(settings().methods)  # also `--methods paper`


def published_accuracy(experiment: Experiment) -> tuple[float, float] | None:
    """Returns mean and deviation in percent, or None unless every key that matters is that of a cell of the paper.

    Seed, length, evaluation times and power do not matter. Where two tables disagree about the same settings (I and
    XI at beta 0.1), the first one counts.
    """
    if experiment.method.name not in METHODS:
        return None
    found = _accuracies().get(digest(essentials(experiment)))
    return None if found is None or found.mean is None or found.deviation is None else (found.mean, found.deviation)


@cache
def _accuracies() -> dict[str, PublishedValue]:
    known: dict[str, PublishedValue] = {}
    for artefact in artefacts().values():
        if artefact.kind != "accuracy":
            continue
        table = layout(artefact, "paper")
        for cell in table.cells:
            value = table.published.get((table.rows[cell.row].id, table.columns[cell.column].id))
            if value is not None:
                known.setdefault(digest(essentials(cell.experiment)), value)
    return known
