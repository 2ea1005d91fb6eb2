"""Which point to try next, and how much each key matters: both by Optuna.

The point of trial n is a function of (seed, n) and of the results known at that moment. The sampler is therefore made
anew for each trial, with a seed of its own: one that lived as long as the process would, after a restart, draw the
first points again.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from cabafl.comparison.tuning.halving import Trial, ranked
from cabafl.comparison.tuning.metric import Metric
from cabafl.comparison.tuning.space import Dimension, Space, Value
from cabafl.rng import rng, seed64

RANDOM_TRIALS = 10  # before the sampler learns from results
MOST_DRAWS = 20  # of a point that was not tried yet
MOST_POINTS = 10_000  # of a space that is searched for those
FEWEST_TRIALS = 10  # for importances
TOP_TRIALS = 5  # Optuna's documentation asks for at least so many in the best part

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's terms. Choices are their texts, since a value may be a table."""
    return {dimension.key: _distribution(dimension) for dimension in space.dimensions}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def propose(space: Space, trials: Sequence[Trial], seed: int, metric: Metric) -> dict[str, Value] | None:
    """The point of the next trial, never one that was tried; None if all were. The first is the experiment as it is
    without the search, if that lies inside."""
    number = len(trials)
    origin = space.origin() if number == 0 else None
    if origin is not None:
        return origin
    tried = [trial.values for trial in trials]
    for draw in range(MOST_DRAWS):
        point = _drawn(space, trials, seed64(seed, "tune", number, draw) % 2**32, metric)
        if point not in tried:
            return point
    if space.size > MOST_POINTS:
        return point
    keys = [dimension.key for dimension in space.dimensions]
    everything = itertools.product(*(dimension.values() for dimension in space.dimensions))
    left = [point for values in everything if (point := dict(zip(keys, values, strict=True))) not in tried]
    return left[int(rng(seed, "tune", number).integers(len(left)))] if left else None


def _drawn(space: Space, trials: Sequence[Trial], seed: int, metric: Metric) -> dict[str, Value]:
    """Asks a TPE sampler that knows the results so far."""
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction="minimize" if metric.lower_is_better else "maximize")
    forms = distributions(space)
    study.add_trials([_as_known(trial, forms) for trial in trials if trial.phase != "failed"])
    drawn = study.ask(forms).params
    return {dimension.key: dimension.rounded(drawn[dimension.key]) for dimension in space.dimensions}


def _as_known(trial: Trial, forms: dict[str, BaseDistribution]) -> optuna.trial.FrozenTrial:
    """What the sampler learns from: the result of a trial that is done; else the last rung it has reached, as of a
    pruned trial, which TPE ranks behind by the number of rungs; else only that it is under way."""
    known: dict[str, Any] = {"params": trial.values, "distributions": forms}
    if trial.phase == "done":
        return create_trial(state=TrialState.COMPLETE, value=trial.scores[-1], **known)
    if trial.scores:
        return create_trial(state=TrialState.PRUNED, intermediate_values=dict(enumerate(trial.scores)), **known)
    return create_trial(state=TrialState.RUNNING, **known)


def importances(space: Space, trials: Sequence[Trial], metric: Metric) -> dict[str, float]:
    """Key -> how much it decides whether a trial is among the best, as shares of 1, the largest first (PED-ANOVA, which
    needs no scikit-learn). Empty with too few trials.

    The value of a trial is its place in the order of all trials: scores at different rungs cannot be compared, places
    can, and PED-ANOVA looks at nothing else.
    """
    order = ranked(trials, metric.loss)
    if len(order) < FEWEST_TRIALS:
        return {}
    forms = distributions(space)
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        [create_trial(value=place, params=trial.values, distributions=forms) for place, trial in enumerate(order)]
    )
    share = min(0.5, max(0.1, TOP_TRIALS / len(order)))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
