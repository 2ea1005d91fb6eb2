"""Figures 2 and 3: measured once by `comparison.observe`, then kept in the pool of runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cabafl.comparison.observe import SplitSimilarities, observe_data, observed_data
from cabafl.config import Experiment
from cabafl.data.dataset import Dataset
from cabafl.errors import UserError
from cabafl.files import as_json, write_atomic
from cabafl.paper.artefact import Artefact, Claim
from cabafl.paper.definitions import setting_experiment
from cabafl.paper.identity import digest, identity
from cabafl.reporting.table import Cell, Table
from cabafl.reproduction.verdicts import Judged, Verdict


def observed(artefact: Artefact, scale: str, roots: Mapping[str, str]) -> Experiment:
    """The experiment whose data and network are looked at."""
    assert artefact.observe is not None
    return setting_experiment(artefact, scale, artefact.observe.setting, roots)


def observation_path(artefact: Artefact, scale: str, runs: Path, roots: Mapping[str, str]) -> Path:
    """Where the result is kept; another setting has another name."""
    assert artefact.observe is not None
    experiment = observed(artefact, scale, roots)
    code = digest({**identity(experiment), **artefact.observe.model_dump()})
    return runs / f"observe-{experiment.data.dataset}-{experiment.model.name}-{code}.json"


def measure_similarities(artefact: Artefact, scale: str, path: Path, roots: Mapping[str, str]) -> None:
    """Trains the network on all data, splits them many times, and writes the cosines."""
    about = artefact.observe
    assert about is not None
    experiment = observed(artefact, scale, roots)
    dataset, partition = observed_data(experiment)
    if about.coarse and dataset.train.coarse is None:
        dataset = _with_pairs(dataset)
    splits = observe_data(experiment, dataset, partition, about.betas, about.epochs, about.draws)
    chosen = splits[-1:] if about.coarse else splits[1:]  # the first one is IID
    content = [{"name": s.name, "parts": s.parts.tolist(), "unions": s.unions.tolist()} for s in chosen]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, as_json({"splits": content}))


def _with_pairs(dataset: Dataset) -> Dataset:
    """Coarse classes for data that have none: pairs of neighbouring classes. They are what is learned."""
    fine = dataset.train.y
    train = replace(dataset.train, y=fine // 2, fine=fine, coarse=fine // 2)
    return dataset.with_train(train).with_test(replace(dataset.test, y=dataset.test.y // 2))


def load_similarities(path: Path) -> list[SplitSimilarities]:
    """Reads what `measure_similarities` wrote; nothing if it has not been measured. Raises `UserError` if damaged."""
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [SplitSimilarities(s["name"], np.array(s["parts"]), np.array(s["unions"])) for s in content["splits"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged; remove it, and it is measured again") from None


def similarity_table(artefact: Artefact, splits: Sequence[SplitSimilarities]) -> Table:
    """The numbers behind the bars."""
    rows = []
    for split in splits:
        means = [*split.parts.mean(axis=0), split.unions[:, -1].mean()]
        rows.append([Cell(split.name), *(Cell(f"{value:.4f}") for value in means)])
    headings = ["split", "D0 (balanced)", *(f"D{i}" for i in range(1, 6)), "D1 to D5 together"]
    return Table(f"{artefact.number}: {artefact.title}", headings, rows)


def judge_similarities(claim: Claim, splits: Sequence[SplitSimilarities], scale: str) -> Verdict:
    """Applies the claim's test; like `verdicts.judge`, it does not judge at smoke scale."""
    holds, ours = (None, "not measured yet") if not splits else TESTS[claim.test](splits)
    return Verdict(claim.text, claim.paper, ours, None if scale == "smoke" else holds)


def _balanced_closest(splits: Sequence[SplitSimilarities]) -> Judged:
    means = [split.parts.mean(axis=0) for split in splits]
    texts = [f"{mean[0]:.4f} against {mean[1:].max():.4f} at most" for mean in means]
    return all(mean[0] > mean[1:].max() for mean in means), "; ".join(texts)


def _smaller_beta_further(splits: Sequence[SplitSimilarities]) -> Judged:
    means = [float(split.parts[:, 1:].mean()) for split in splits]  # in ascending order of beta
    return means == sorted(means), ", ".join(f"{s.name}: {mean:.4f}" for s, mean in zip(splits, means, strict=True))


def _unions_approach(splits: Sequence[SplitSimilarities]) -> Judged:
    pairs = [(float(split.unions[:, 0].mean()), float(split.unions[:, -1].mean())) for split in splits]
    return all(last > first for first, last in pairs), "; ".join(f"{a:.4f} to {b:.4f}" for a, b in pairs)


TESTS: dict[str, Callable[[Sequence[SplitSimilarities]], Judged]] = {
    "balanced_closest": _balanced_closest,
    "smaller_beta_further": _smaller_beta_further,
    "unions_approach": _unions_approach,
}
