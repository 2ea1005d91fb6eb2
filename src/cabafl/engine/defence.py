"""What the server does with uploads, features and claims of devices before a method sees them.

The rules are the same for all methods and both clocks. Some always hold: they keep every number finite. The others
(``run.defence``) bound what a single liar can do, and are off in a simulation unless the experiment sets them.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cabafl.engine.inputs import Arrived, Held
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import Floats, Ints, Job, Weights
from cabafl.state import State

# Far beyond any network, and far below the largest float32 (3e38): squares, sums and steps of such numbers stay finite.
LARGEST_UPLOAD = 1e15  # norm; a longer upload is rejected
LARGEST_MODEL = 1e18  # norm; while the global model is longer, every upload is rejected
LARGEST_FEATURE = 1e15  # norm; a longer feature vector counts as not sent

MOST_SAMPLES = 10**9  # a device counts at most this many: sums over a fleet stay exact
MOST_SECONDS = 1e7  # of one job; a longer time counts as 0
MOST_JOULES = 1e9
MOST_LOSS = 1e6  # a larger training loss counts as not reported
MOST_SQUARE = MOST_LOSS**2
MOST_STEPS = 10**9  # of one job; more, or none, count as 1

WINDOW = 256  # devices whose last update norm counts for the median
ENOUGH = 10  # devices that must have a vote before the median bounds updates
_BLOCK = 1 << 16  # entries per step of a norm; see `methods.averaging`
_ROWS = 256  # feature vectors per step

Setting = Literal["auto"] | float | None
Clipped = Literal["update", "buffers", "features", "samples"]
Refused = Literal["features", "seconds", "joules", "loss", "square loss", "steps", "epochs"]


@dataclass(frozen=True)
class DefenceRules(State):
    """The settings of ``run.defence``."""

    update_clip: Setting = "auto"
    feature_clip: Setting = "auto"
    sample_quantile: Setting = "auto"
    sample_factor: float = 2.0


AUTOMATIC = DefenceRules()


@dataclass(frozen=True)
class Defaults:
    """What ``auto`` means."""

    update_clip: float | None = None
    feature_clip: float | None = None
    sample_quantile: float | None = None


SIMULATED = Defaults()
DEPLOYED = Defaults(update_clip=2.0, feature_clip=3.0, sample_quantile=0.5)  # docs/robustness.md: the attack table


class VotedMedian(State):
    """The median of the last value of each device, over the ``window`` devices that were heard last.

    A device that answers ten times as often as the others has no more weight than they have. With an even number of
    votes it is the lower of the two middle ones, so it is always a value that some device reported. A vote costs two
    searches in a sorted list.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.votes: dict[int, float] = {}  # by device, in the order of their last vote
        self._ordered: list[float] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores: the votes in their order."""
        return {"window": self.window, "votes": self.votes}

    def restore(self, state: dict[str, Any]) -> None:
        """Sets everything from a `state`."""
        self.window, self.votes = state["window"], state["votes"]
        self._ordered = sorted(self.votes.values())

    def __len__(self) -> int:
        return len(self.votes)

    def vote(self, device: int, value: float) -> None:
        """Replaces the device's earlier vote; with a full window the device heard longest ago loses its own."""
        if device in self.votes:
            self._withdraw(device)
        elif len(self.votes) == self.window:
            self._withdraw(next(iter(self.votes)))
        self.votes[device] = value
        insort(self._ordered, value)

    def _withdraw(self, device: int) -> None:
        del self._ordered[bisect_left(self._ordered, self.votes.pop(device))]

    def value(self) -> float | None:
        """The median; None without votes."""
        return self._ordered[(len(self._ordered) - 1) // 2] if self._ordered else None


class Defence:
    """The rules, what they have to remember, and how often they acted against each device.

    ``note`` records an event. ``claimed`` is the number of samples that each device claims to have.
    """

    def __init__(
        self, rules: DefenceRules, defaults: Defaults, note: Callable[..., None], trainable: int, claimed: Ints
    ) -> None:
        self.defaults = defaults
        self.claimed = claimed
        self.counts: dict[int, dict[str, int]] = {}  # device: what was done: how often
        self._note = note
        self._trainable = trainable
        self._norms = {"update": VotedMedian(WINDOW), "buffers": VotedMedian(WINDOW)}
        self._enough = min(ENOUGH, (len(claimed) + 1) // 2)
        self._ordered: list[int] | None = None  # claims above 0, ascending; made when a device joins
        self.set_rules(rules)

    def set_rules(self, rules: DefenceRules) -> None:
        """New settings, from now on."""
        self.rules = rules
        self.update_clip = self._resolved("update_clip")
        self.feature_clip = self._resolved("feature_clip")
        self.sample_quantile = self._resolved("sample_quantile")

    def _resolved(self, name: str) -> float | None:
        value = getattr(self.rules, name)
        resolved: float | None = getattr(self.defaults, name) if value == "auto" else value
        return resolved

    def change(self, name: str, value: Any) -> None:
        """Changes one setting."""
        self.set_rules(replace(self.rules, **{name: value}))

    # Counting

    def totals(self) -> dict[str, int]:
        """How often each rule acted, over all devices."""
        sums: dict[str, int] = {}
        for own in self.counts.values():
            for what, number in own.items():
                sums[what] = sums.get(what, 0) + number
        return dict(sorted(sums.items()))

    def count(self, device: int, what: str) -> None:
        """Counts an action against a device."""
        own = self.counts.setdefault(device, {})
        own[what] = own.get(what, 0) + 1

    def _clipped(self, device: int, what: Clipped, value: float, bound: float) -> None:
        self.count(device, what)
        self._note("clip", device=device, what=what, value=value, bound=bound)

    def _refused(self, device: int, what: Refused) -> None:
        self.count(device, "refused")
        self._note("refuse", device=device, what=what)

    # Uploads

    def upload(self, job: Job, weights: Weights) -> Weights:
        """The upload with its update cut to the allowed norm, trainable entries and buffers each on their own."""
        if self.update_clip is None:
            return weights
        n = self._trainable
        update = self._within(job.device, "update", weights[:n], job.weights[:n])
        buffers = self._within(job.device, "buffers", weights[n:], job.weights[n:])
        if update is None and buffers is None:
            return weights
        return np.concatenate([weights[:n] if update is None else update, weights[n:] if buffers is None else buffers])

    def _within(self, device: int, what: Clipped, weights: Weights, sent: Weights) -> Weights | None:
        """One part of an upload cut to the allowed norm; None if it is within it."""
        if not weights.size:
            return None
        norms = self._norms[what]
        norm = distance(weights, sent)
        bound = self._bound(norms, sent)
        norms.vote(device, norm)
        if norm <= bound:
            return None
        self._clipped(device, what, norm, bound)
        return moved(sent, weights, bound / norm)

    def _bound(self, norms: VotedMedian, sent: Weights) -> float:
        """A multiple of the median. Without enough votes for it, the norm of the model sent: who uploads first cannot
        throw the model further than it is long."""
        assert self.update_clip is not None
        median = norms.value() if len(norms) >= self._enough else None
        if median:
            return self.update_clip * median
        return distance(sent, np.zeros_like(sent)) or math.inf

    def claim(self, device: int, what: Refused, value: float | None, most: float) -> float | None:
        """A number that a device reports, or None if no honest device reports such a number."""
        if value is None or 0 <= value <= most:
            return value
        self._refused(device, what)
        return None

    def costs(self, device: int, given: Arrived | Held) -> tuple[float, float]:
        """Seconds and joules of a job, as its device claims."""
        seconds = self.claim(device, "seconds", given.seconds, MOST_SECONDS)
        return seconds or 0.0, self.claim(device, "joules", given.joules, MOST_JOULES) or 0.0

    def trained(self, device: int, given: Arrived, epochs: int) -> TrainingResult:
        """An upload with the claims of its device in their bounds; it was told to do so many epochs."""
        done = epochs if given.epochs is None else given.epochs
        return TrainingResult(
            given.weights,
            self.claim(device, "loss", given.loss, MOST_LOSS),
            self.claim(device, "square loss", given.square_loss, MOST_SQUARE),
            self._count_claim(device, "steps", given.steps, MOST_STEPS) or 1,
            self._count_claim(device, "epochs", done, epochs) or epochs,
        )

    def _count_claim(self, device: int, what: Refused, value: int, most: int) -> int | None:
        """A number of things done that a device reports, at least 1, or None if it cannot be."""
        if 1 <= value <= most:
            return value
        self._refused(device, what)
        return None

    # Features

    def features(self, rows: npt.NDArray[np.float32], answered: npt.NDArray[np.bool_]) -> None:
        """Checks a feature table in place. A row that is not finite or absurdly long becomes a missing one."""
        kept = np.zeros(len(rows) if self.feature_clip is not None else 0)  # norms of the rows that stay
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            block = rows[part].astype(np.float64)
            lengths = np.sqrt((block * block).sum(axis=1))
            for place in np.flatnonzero(answered[part] & ~(lengths <= LARGEST_FEATURE)).tolist():
                answered[start + place] = False
                self._refused(start + place, "features")
            if self.feature_clip is not None:
                kept[part] = np.where(answered[part], lengths, 0.0)
        if not answered.all():
            rows[~answered] = 0.0
        if self.feature_clip is not None and kept.any():
            self._clip_features(rows, kept, self.feature_clip)

    def _clip_features(self, rows: npt.NDArray[np.float32], lengths: Floats, factor: float) -> None:
        known = np.sort(lengths[lengths > 0])
        bound = factor * float(known[(len(known) - 1) // 2])
        for device in np.flatnonzero(lengths > bound).tolist():
            self._clipped(device, "features", float(lengths[device]), bound)
            rows[device] *= bound / lengths[device]

    # Samples

    def join(self, device: int, samples: int) -> None:
        """A device claims its number of samples; its earlier claim no longer counts."""
        ordered, earlier = self._claims(), int(self.claimed[device])
        if earlier > 0:
            del ordered[bisect_left(ordered, earlier)]
        claim = max(0, min(samples, MOST_SAMPLES))
        self.claimed[device] = claim
        if claim > 0:
            insort(ordered, claim)

    def _claims(self) -> list[int]:
        if self._ordered is None:
            self._ordered = sorted(self.claimed[self.claimed > 0].tolist())
        return self._ordered

    def samples(self, device: int) -> int:
        """How many samples the method counts for a device that has joined."""
        claim = int(self.claimed[device])
        bound = self._sample_bound(self._claims())
        if claim > bound:
            self._clipped(device, "samples", claim, bound)
        return min(claim, bound)

    def bounded(self, claimed: Ints) -> Ints:
        """How many samples the method counts for each device; the array itself if no claim is too large."""
        bound = self._sample_bound(np.sort(claimed[claimed > 0])) if self.sample_quantile is not None else MOST_SAMPLES
        return np.minimum(claimed, bound) if (claimed > bound).any() else claimed

    def report(self, sizes: Ints) -> None:
        """Counts the claims that `bounded` has cut to ``sizes``."""
        for device in np.flatnonzero(self.claimed > sizes).tolist():
            self._clipped(device, "samples", int(self.claimed[device]), int(sizes[device]))

    def _sample_bound(self, ordered: "list[int] | Ints") -> int:
        if self.sample_quantile is None or not len(ordered):
            return MOST_SAMPLES
        place = math.ceil(self.sample_quantile * len(ordered)) - 1
        return max(1, min(MOST_SAMPLES, int(self.rules.sample_factor * int(ordered[place]))))

    # State

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"rules": self.rules, "claimed": self.claimed, "counts": self.counts, "norms": self._norms}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self.claimed, self.counts, self._norms = state["claimed"], state["counts"], state["norms"]
        self._ordered = None
        self.set_rules(state["rules"])


def distance(a: Weights, b: Weights) -> float:
    """Euclidean distance of two models, summed in float64 in a fixed order."""
    total = 0.0
    for start in range(0, a.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        step = a[block].astype(np.float64) - b[block]
        total += float((step * step).sum())
    return math.sqrt(total)


def moved(sent: Weights, trained: Weights, factor: float) -> Weights:
    """sent + factor * (trained - sent) as a new model."""
    made = np.empty_like(sent)
    for start in range(0, sent.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        made[block] = sent[block] + factor * (trained[block].astype(np.float64) - sent[block])
    return made
