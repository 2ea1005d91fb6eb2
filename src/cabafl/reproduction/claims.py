"""The claims of the paper in one table: what the artefacts judge, and the time of a selection, measured here."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from cabafl.bench.selection import measure
from cabafl.bench.timing import seconds
from cabafl.methods.cabafl.cache import TwoLevelCache
from cabafl.methods.cabafl.selector import FeatureTable
from cabafl.paper.definitions import artefacts
from cabafl.reporting.table import Cell, Table
from cabafl.reproduction.result import ArtefactResult
from cabafl.reproduction.verdicts import WORDS, Verdict
from cabafl.rng import rng

DEVICES, WIDTH, SLOTS, TRAININGS, HISTORY = 1000, 512, 10, 10, 10_000
CLAIMS = "claims"


def selection_verdict(repetitions: int = 50) -> Verdict:
    """Times one device selection and one cache update for 1,000 devices."""
    total = measure(DEVICES, WIDTH, SLOTS, repetitions).median + 1e3 * cache_update_seconds(repetitions)
    text = f"Cache update and device selection take less than 2 ms with {DEVICES:,} devices"
    ours = f"{total:.2f} ms (features of {WIDTH} numbers, one core of this machine)"
    return Verdict(text, "less than 2 ms", ours, total < 2)


def cache_update_seconds(repetitions: int) -> float:
    """Median time to compare a model's feature with the global one, rank it in a long history and store the model."""
    draw = rng(1, "bench cache", DEVICES)
    features = FeatureTable()
    features.replace(draw.random((DEVICES, WIDTH), dtype=np.float32))
    model = np.zeros(10, dtype=np.float32)  # stored by reference: its length does not matter
    cache = TwoLevelCache(SLOTS, model, screening=True)
    for similarity in draw.random(HISTORY).tolist():
        cache.history.insert(similarity)
    slot = cache.slots[0]
    slot.trace = draw.integers(0, DEVICES, TRAININGS // 2).tolist()
    return median(
        seconds(lambda: cache.store(slot, model, features.similarity(slot.trace), late=False, gamma=0.2))
        for _ in range(repetitions)
    )


def claims_result(results: Sequence[ArtefactResult], scale: str) -> ArtefactResult:
    """One row per claim; ``results`` are the artefacts as far as their runs are there."""
    verdicts = [selection_verdict()]
    rows = [_row("Section VI-B", verdicts[0])]
    for result in results:
        rows += [_row(artefacts()[result.name].number, verdict) for verdict in result.verdicts]
        verdicts += result.verdicts
    judged = [verdict.holds for verdict in verdicts if verdict.holds is not None]
    caption = [f"Scale {scale}: {sum(judged)} of {len(judged)} judged claims hold, {len(verdicts)} claims in all."]
    table = Table("Claims of the paper", ["where", "claim", "the paper", "ours", ""], rows)
    return ArtefactResult(CLAIMS, scale, table, caption, [], 0, 0)


def _row(where: str, verdict: Verdict) -> list[Cell]:
    return [*map(Cell, (where, verdict.text, verdict.paper, verdict.ours, WORDS[verdict.holds]))]
