"""Pisces (Jiang et al., SoCC 2022): chooses devices with informative data and small lags; paces the server's steps.

The server acts every ``tick`` seconds. With b the lag bound:

    step:    if an upload waits and (largest last duration of a running device) / b seconds have passed since the last
             step:   W <- W + sum of (n_k / sum of n) * (1 + staleness_k)^-beta * Delta_k,   not normalised
    choice:  of F free slots, about F * explore try devices that were never tried, drawn at random; the others go to the
             tried devices of highest n_k * sqrt(square_loss_k) * (1 + mean of the last five stalenesses)^-beta

A device of which no duration is known counts ``first_latency``. One whose upload waits is not chosen; one that reports
no loss, or none that is a finite number, comes last. The authors' program scores by the mean loss instead of the root
(``utility = "loss"``); squares of the samples' losses follow Oort, which it names as its source. Its filter of
outliers, off by default, is omitted. Statistics of batch normalisation are averaged with these weights.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from cabafl.methods.averaging import plain_sum
from cabafl.methods.base import Job, LossReason, Method, Needs, Objective, Parameters, Server, Upload, Weights
from cabafl.methods.vectors import stepped, update, weighted_sum
from cabafl.state import State

REMEMBERED = 5  # lags of a device


class PiscesParameters(Parameters):
    """Parameters of Pisces; the defaults are those of the authors' program."""

    tick: float = Field(5.0, gt=0, description="seconds between two looks of the server")
    beta: float = Field(0.5, ge=0, description="exponent of the discount for staleness")
    explore: float = Field(0.9, ge=0, le=1, description="share of free slots for devices never tried, at the start")
    explore_decay: float = Field(0.98, gt=0, le=1, description="factor on that share after each choice")
    explore_min: float = Field(0.3, ge=0, le=1, description="lower bound of that share")
    first_latency: float = Field(180.0, gt=0, description="seconds a device counts before its first upload")
    utility: Literal["square", "loss"] = Field(
        "square", description="what makes data informative: square: root of the mean squared loss | loss: mean loss"
    )
    lag_bound: int | None = Field(None, ge=1, description="b, lag that steps are spaced for; default: the slots")


@dataclass(frozen=True, slots=True)
class Arrival(State):
    """An upload that waits for the next step."""

    device: int
    samples: int
    version: int  # of the global model that its device started from
    sent: Weights
    trained: Weights


class Pisces(Method):
    """Semi-asynchronous, with guided selection and paced steps."""

    name = "pisces"
    kind = "semi-asynchronous"
    paper = "Jiang et al., SoCC 2022"
    Parameters = PiscesParameters
    parameters: PiscesParameters

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.running: dict[int, int] = {}  # device by job
        self.arrived: list[Arrival] = []
        self.seconds: dict[int, float] = {}  # duration of each device's last job
        self.lags: dict[int, list[int]] = {}  # last stalenesses of each device that was tried
        self.quality: dict[int, float] = {}  # n_k times how large its losses were
        self.ticks = 0
        self.stepped_at = 0  # tick of the last step

    def needs(self) -> Needs:
        """Losses."""
        return Needs(training_loss=True)

    def start(self, server: Server) -> None:
        """The first choice, and the first tick."""
        self.model = server.initial
        self.explore = self.parameters.explore
        self._fill(server)
        server.set_timer(self.parameters.tick, "tick")

    def on_timer(self, server: Server, name: str) -> None:
        """A step if it is time for one, then free slots are filled."""
        self.ticks += 1
        passed = (self.ticks - self.stepped_at) * self.parameters.tick
        if self.arrived and passed >= self.interval(server):
            self._step(server)
        self._fill(server)
        server.set_timer(self.parameters.tick, "tick")

    def on_upload(self, server: Server, upload: Upload) -> None:
        """The upload waits for the next step."""
        job, device = upload.job, self.running.pop(upload.job.number)
        self.arrived.append(Arrival(device, upload.samples, job.version, job.weights, upload.weights))
        self.seconds[device] = upload.duration
        loss = math.sqrt(upload.square_loss or 0.0) if self.parameters.utility == "square" else upload.loss or 0.0
        self.quality[device] = upload.samples * loss if math.isfinite(loss) else 0.0
        self.lags[device] = [*self.lags.get(device, ()), server.version - job.version][-REMEMBERED:]

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The slot is filled at the next tick."""
        del self.running[job.number]

    def interval(self, server: Server) -> float:
        """Seconds between two steps; 0 if nobody trains."""
        bound = server.slots if self.parameters.lag_bound is None else self.parameters.lag_bound
        known = [self.seconds.get(device, self.parameters.first_latency) for device in self.running.values()]
        return max(known, default=0.0) / bound

    def _step(self, server: Server) -> None:
        arrived, self.arrived, self.stepped_at = self.arrived, [], self.ticks
        samples = plain_sum(entry.samples for entry in arrived)
        shares = [entry.samples / samples * self._discount(server.version - entry.version) for entry in arrived]
        updates = [update(entry.sent, entry.trained, server.trainable) for entry in arrived]
        uploads = [entry.trained for entry in arrived]
        self.model = stepped(self.model, weighted_sum(updates, shares), uploads, shares)
        server.publish(self.model, devices=[entry.device for entry in arrived], shares=shares)

    def _discount(self, lag: float) -> float:
        return float((1.0 + lag) ** -self.parameters.beta)

    def score(self, device: int) -> float:
        """How much a device that was tried is wanted."""
        lags = self.lags[device]
        return self.quality[device] * self._discount(sum(lags) / len(lags))

    def _fill(self, server: Server) -> None:
        free = server.slots - len(self.running)
        waiting = {entry.device for entry in self.arrived}
        idle = [device for device in sorted(server.idle) if device not in waiting]
        if free <= 0 or not idle:
            return
        untried = [device for device in idle if device not in self.lags]
        tried = [device for device in idle if device in self.lags]
        square = self.parameters.utility == "square"
        objective = Objective(report_loss=not square, report_square=square)
        for device in self.choose(server, free, tried, untried):
            job = server.dispatch(device, self.model, objective=objective)
            if job is not None:
                self.running[job] = device

    def choose(self, server: Server, free: int, tried: list[int], untried: list[int]) -> list[int]:
        """The devices for so many free slots: the best of those tried, and others at random."""
        p, random = self.parameters, server.random("select")
        wanted = sum(random.uniform() < self.explore for _ in range(free))
        self.explore = max(self.explore * p.explore_decay, p.explore_min)
        shuffled = [tried[place] for place in random.distinct(len(tried), len(tried))]  # ties at random
        best = sorted(shuffled, key=self.score, reverse=True)[: free - min(wanted, len(untried))]
        others = random.distinct(len(untried), min(len(untried), free - len(best)))
        return [*best, *(untried[place] for place in others)]
