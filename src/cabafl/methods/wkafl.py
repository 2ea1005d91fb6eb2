"""WKAFL (Zhou et al., TPDS 2022): waits for M gradients of any age, weighs them by age and by agreement.

Several local epochs make a pseudo-gradient (w_start - w_end) / rate over the trainable parameters. Momentum against
drift, two clips, an age-weighted estimate of the global gradient, and only gradients that point its way are kept. Late
training (stage two) clips each kept gradient relative to the estimate. Buffers such as batch-norm statistics are not
covered by the method: they become the age-weighted mean over the uploads.
"""

import math
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from cabafl.methods.base import Floats, Needs, Objective, Parameters, Server, Upload, Weights
from cabafl.methods.slots import RoundMethod


class WKAFLParameters(Parameters):
    """Defaults of the comparison (the official CIFAR-10 program's, but for the stage and the rate)."""

    buffer: int | None = Field(
        None, ge=1, description="M, gradients per step; default: min(10, max(3, K/2)), at most K"
    )
    alpha: float = Field(0.1, ge=0, description="momentum: share of the last aggregated gradient added to each")
    clip: float = Field(70.0, gt=0, description="CB1: absolute clip of a gradient's norm")
    relative_clip: float = Field(5.0, gt=0, description="CB2: clip relative to the estimate, in stage two")
    sim_min: float = Field(0.3, ge=-1, le=1, description="keep gradients whose cosine to the estimate is above this")
    beta: float = Field(50.0, ge=0, description="sharpness of the weights by agreement")
    gamma_lr: float = Field(0.01, ge=0, description="how the step shrinks with the smallest staleness")
    stage_rule: Literal["iteration", "loss"] = Field(
        "iteration", description="what begins stage two: iteration (official) | loss"
    )
    stage_two_start: int = Field(500, ge=1, description="first iteration of stage two")
    stage_two_loss: float = Field(
        1.0, gt=0, description="stage_rule = loss: begin once the uploads' mean training loss is at most this"
    )
    server_lr: float = Field(0.01, gt=0, description="eta, the step of the server")
    agreement_uses_staleness: bool = Field(True, description="multiply the weights by agreement by those by age")


class Gradient(NamedTuple):
    """An entry of the buffer."""

    device: int
    gradient: Floats
    staleness: int
    rest: Weights  # floating and integer buffers
    loss: float | None


class WKAFL(RoundMethod):
    """Semi-asynchronous; see the module's description."""

    name = "wkafl"
    kind = "semi-asynchronous"
    paper = "Zhou et al., IEEE TPDS 2022 (arXiv 2203.01214)"
    Parameters = WKAFLParameters
    parameters: WKAFLParameters

    def needs(self) -> Needs:
        """Only the stage rule by loss needs the training loss."""
        return Needs(training_loss=self.parameters.stage_rule == "loss")

    def prepare(self, server: Server) -> None:
        """No aggregated gradient yet."""
        self.size = self.parameters.buffer or min(10, max(3, server.slots // 2), server.slots)
        self.iteration = 1
        self.second_stage = False
        self.last: Floats | None = None

    def objective(self, server: Server, device: int) -> Objective:
        """Plain training, with its loss where that is needed."""
        return Objective(report_loss=self.needs().training_loss)

    def receive(self, server: Server, upload: Upload) -> None:
        """The M-th gradient makes the step."""
        n = server.trainable
        gradient = (upload.job.weights[:n].astype(np.float64) - upload.weights[:n]) / upload.learning_rate
        staleness = server.version - upload.job.version + 1
        self.buffer.append(tuple(Gradient(upload.job.device, gradient, staleness, upload.weights[n:], upload.loss)))
        if len(self.buffer) == self.size:
            self._step(server)
            self.buffer = []

    def _step(self, server: Server) -> None:
        p = self.parameters
        entries = [Gradient(*entry) for entry in self.buffer]
        gradients = [e.gradient if self.last is None else e.gradient + p.alpha * self.last for e in entries]
        clipped = sum(norm(g) > p.clip for g in gradients)
        gradients = [clip(g, p.clip) for g in gradients]
        youngest = min(e.staleness for e in entries)
        age = np.array([(math.e / 2) ** -(e.staleness - youngest) for e in entries])
        age /= age.sum()
        self.second_stage = self.second_stage or self._stage_two_begins([e.loss for e in entries])
        total, kept, cosines = self.merge(gradients, age)
        rate = p.server_lr / (1 + p.gamma_lr * youngest)
        n = server.trainable
        rest = sum(a * e.rest.astype(np.float64) for a, e in zip(age, entries, strict=True))
        self.model = np.concatenate([self.model[:n] - rate * total, rest]).astype(np.float32)
        self.last = total
        self.iteration += 1
        facts = {"age": age.tolist(), "cosines": cosines, "kept": kept, "clipped": int(clipped)}
        server.publish(self.model, devices=[e.device for e in entries], **facts)

    def _stage_two_begins(self, losses: list[float | None]) -> bool:
        p = self.parameters
        if p.stage_rule == "iteration":
            return self.iteration >= p.stage_two_start
        known = [loss for loss in losses if loss is not None]
        return bool(known) and sum(known) / len(known) <= p.stage_two_loss

    def merge(self, gradients: list[Floats], age: Floats) -> tuple[Floats, list[float], list[float]]:
        """The aggregated gradient, the weight of each entry (0: it points elsewhere), and its cosine."""
        p = self.parameters
        estimate: Floats = sum(a * g for a, g in zip(age, gradients, strict=True))
        cosines = np.array([agreement(g, estimate) for g in gradients])
        keep = cosines > p.sim_min
        if not keep.any():
            return estimate, [0.0] * len(gradients), cosines.tolist()
        weights = np.where(keep, np.exp(p.beta * (cosines - cosines.max())), 0.0)
        weights = weights * age if p.agreement_uses_staleness else weights
        weights /= weights.sum()
        if self.second_stage:
            bound = p.relative_clip * norm(estimate)
            gradients = [clip(g, bound) for g in gradients]
        total: Floats = sum(w * g for w, g in zip(weights, gradients, strict=True))
        return total, weights.tolist(), cosines.tolist()


def norm(vector: Floats) -> float:
    """Euclidean norm, in a summation order that repeats."""
    return math.sqrt(float((vector * vector).sum()))


def clip(vector: Floats, bound: float) -> Floats:
    """The vector, shortened to the bound if it is longer."""
    length = norm(vector)
    return vector * (bound / length) if length > bound else vector


def agreement(gradient: Floats, estimate: Floats) -> float:
    """Cosine; 1 for a zero gradient (it dilutes the step), 0 when the estimate is zero."""
    if norm(estimate) == 0:
        return 0.0
    if norm(gradient) == 0:
        return 1.0
    return float((gradient * estimate).sum()) / (norm(gradient) * norm(estimate))
