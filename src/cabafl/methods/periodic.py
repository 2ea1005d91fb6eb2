"""Periodic aggregation (Hu, Chen, Larsson, IEEE JSAC 2023): every ``period`` seconds the server aggregates what is
ready, but only R devices upload, chosen for balanced labels.

At tick t = 0, 1, ..., with A the devices that are ready and s_k the tick after which device k was sent its model (-1 at
the start):

    S = the subset of min(R, |A|) devices with the smallest |H - mean(H)|^2 / |S|^2,   H = their summed label counts
    S uploads; the work of the others is lost
    age_k = t - s_k - 1;   q_k = n_k * b^age_k,   b = 1 (equal), gamma / e (fresh) or e / gamma (old)
    W <- sum of q_k * w_k / sum of q_k;   then all free slots start again from W

S is the best of ``trials`` uniform subsets, of all subsets if there are not more. A device that did not report its
labels counts as an average one. The authors train all N devices at a time: with as many slots, the devices that start
again are those of A. With fewer, they are drawn uniformly from the idle ones, and R, a share of N, may be more than are
ever ready: then all of them upload. The authors' filter by channel quality is omitted; so is their halving of the
learning rate at half time. Which of the three age modes the paper prefers is not known; the default is that of the
authors' script.
"""

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import (
    Floats,
    Job,
    LossReason,
    Method,
    Needs,
    Objective,
    Parameters,
    Server,
    Upload,
    Weights,
)
from cabafl.methods.slots import population


class PeriodicParameters(Parameters):
    """Parameters of periodic aggregation."""

    period: float = Field(
        10.0, gt=0, description="seconds between two ticks; the authors: a quarter of the slowest device's job"
    )
    fraction: float = Field(
        0.2, gt=0, le=1, description="R / N: uploads per tick as a share of all devices, at least 1"
    )
    trials: int = Field(30, ge=1, description="subsets that are tried")
    age: Literal["equal", "fresh", "old"] = Field("equal", description="which uploads weigh more: equal | fresh | old")
    gamma: float = Field(
        2.3, gt=0, lt=math.e, description="how much more, with age = fresh or old; up to e, which is equal"
    )


class Periodic(Method):
    """Semi-asynchronous: results wait on their devices until the server has decided which of them it wants."""

    name = "periodic"
    kind = "semi-asynchronous"
    paper = "Hu, Chen, Larsson, IEEE JSAC 2023"
    Parameters = PeriodicParameters
    parameters: PeriodicParameters

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.tick = -1  # number of the last one
        self.chosen_at = -1  # the tick at which devices were last asked for their results
        self.sent: dict[int, int] = {}  # s_k by job in flight
        self.ready: dict[int, int] = {}  # device by job that is held
        self.asked: list[int] = []  # jobs that upload
        self.returned: list[tuple[int, int, int, Weights]] = []  # device, samples, age, model

    def needs(self) -> Needs:
        """Label counts."""
        return Needs(features="labels")

    def start(self, server: Server) -> None:
        """Asks for label counts."""
        self.model = server.initial
        self.labels: Floats = np.zeros((len(server.sizes), 0))
        server.collect_features(server.initial, "labels", instant=True)

    def on_features(self, server: Server, features: npt.NDArray[np.float32]) -> None:
        """Sends the first models and starts the clock. A device whose labels are not known counts as an average one:
        without any it would seem perfectly even, and always be chosen."""
        known = features.any(axis=1)
        self.labels = features.astype(np.float64)
        if known.any():
            self.labels[~known] = self.labels[known].mean(axis=0)
        self._fill(server)
        server.set_timer(self.parameters.period, "tick")

    def on_timer(self, server: Server, name: str) -> None:
        """Asks some of the devices that are ready for their results. A tick at which uploads are under way passes."""
        self.tick += 1
        server.set_timer(self.parameters.period, "tick")
        if self.asked:
            return
        ready, self.ready = self.ready, {}
        if not ready:
            self._fill(server)
            return
        self.chosen_at = self.tick
        self.asked = self.choose(server, sorted(ready, key=lambda job: ready[job]), ready)
        for job in ready:
            if job in self.asked:
                server.fetch(job)
            else:
                del self.sent[job]
                server.cancel(job)

    def on_ready(self, server: Server, job: Job) -> None:
        """The result waits for the next tick."""
        self.ready[job.number] = job.device

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Keeps the upload; the last one ends the tick."""
        age = self.chosen_at - self.sent[upload.job.number] - 1  # ticks may have passed during the upload
        self.returned.append((upload.job.device, upload.samples, age, upload.weights))
        self._leave(server, upload.job.number)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The slot is filled when models are sent next."""
        self.ready.pop(job.number, None)
        self._leave(server, job.number)

    def _leave(self, server: Server, job: int) -> None:
        del self.sent[job]
        if job in self.asked:
            self.asked.remove(job)
            if not self.asked:
                self._aggregate(server)
                self._fill(server)

    def choose(self, server: Server, jobs: list[int], devices: dict[int, int]) -> list[int]:
        """The jobs of ``jobs`` whose devices together have the most even labels; the first of equals."""
        most = max(1, int(self.parameters.fraction * population(server)))
        return min(
            self._subsets(server, jobs, min(most, len(jobs))), key=lambda subset: self._unevenness(subset, devices)
        )

    def _subsets(self, server: Server, jobs: list[int], size: int) -> Iterator[list[int]]:
        trials = self.parameters.trials
        if math.comb(len(jobs), size) <= trials:
            yield from map(list, combinations(jobs, size))
            return
        for _ in range(trials):
            yield [jobs[place] for place in sorted(server.random("subsets").distinct(len(jobs), size))]

    def _unevenness(self, jobs: list[int], devices: dict[int, int]) -> float:
        """J of a subset."""
        counts = self.labels[[devices[job] for job in jobs]].sum(axis=0)
        uneven = counts - counts.mean() if counts.size else counts
        return float((uneven * uneven).sum()) / len(jobs) ** 2

    def _aggregate(self, server: Server) -> None:
        returned, self.returned = sorted(self.returned, key=lambda entry: entry[0]), []
        if returned:
            ages = [age for _, _, age, _ in returned]
            weights = [
                samples * factor for (_, samples, _, _), factor in zip(returned, self.factors(ages), strict=True)
            ]
            self.model = weighted_mean([model for _, _, _, model in returned], weights)
            shares = [weight / sum(weights) for weight in weights]
            server.publish(self.model, devices=[device for device, _, _, _ in returned], ages=ages, weights=shares)

    def factors(self, ages: list[int]) -> list[float]:
        """b^age, relative to the largest of them."""
        p = self.parameters
        base = {"equal": 1.0, "fresh": p.gamma / math.e, "old": math.e / p.gamma}[p.age]
        first = max(ages) if base > 1 else min(ages)
        return [base ** (age - first) for age in ages]

    def _fill(self, server: Server) -> None:
        """Sends the newest model to as many idle devices as there are free slots."""
        for device in server.idle.draw_many(server.random("select"), server.slots - len(self.sent)):
            job = server.dispatch(device, self.model, objective=Objective(hold=True))
            if job is not None:
                self.sent[job] = self.tick
