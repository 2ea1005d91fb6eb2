"""WKAFL (Zhou et al., TPDS 2022): waits for M gradients of any age and weighs them by age and by agreement.

With several local epochs the gradient of device i is the pseudo-gradient g_i = (w_start - w_end) / eta_local, over the
trainable parameters. A fresh upload has staleness tau_i = 1. One iteration:

1. Momentum against non-IID drift: gt_i = g_i + alpha * G, where G is the last aggregated gradient.
2. Clip gt_i to norm CB1.
3. Staleness weights a_i, proportional to (e/2)^(tau_min - tau_i), with sum 1.
4. Estimate of the global gradient: ge = sum of a_i * gt_i.
5. Agreement: cos_i between gt_i and ge; keep S = {i : cos_i > sim_min}. If S is empty, G = ge.
6. Weights p_i, proportional to exp(beta * cos_i) * a_i, with sum 1 over S.
7. Stage two (late training) only: clip gt_i to norm CB2 * |ge|. Then G = sum of p_i * gt_i.
8. W <- W - eta / (1 + gamma_lr * tau_min) * G.

The method does not cover buffers such as batch-norm statistics; they become the mean over the uploads, weighted by a_i.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.base import Floats, Needs, Objective, Parameters, Server, Upload, Weights
from cabafl.methods.slots import RoundMethod, default_buffer
from cabafl.state import State, frozen


class WKAFLParameters(Parameters):
    """Parameters of WKAFL. The defaults are those of the comparison: the official CIFAR-10 program's, except for
    ``stage_two_start`` and ``server_lr``."""

    buffer: int | None = Field(None, ge=1, description="M, gradients per step; default: half of the slots")
    alpha: float = Field(0.1, ge=0, description="momentum: share of the last aggregated gradient added to each")
    clip: float = Field(70.0, gt=0, description="CB1: upper bound of a gradient's norm")
    relative_clip: float = Field(5.0, gt=0, description="CB2: in stage two, upper bound of norm / norm of the estimate")
    sim_min: float = Field(0.3, ge=-1, le=1, description="keep gradients whose cosine to the estimate is above this")
    beta: float = Field(50.0, ge=0, description="sharpness of the weights by agreement")
    gamma_lr: float = Field(0.01, ge=0, description="how much the smallest staleness shrinks the step")
    stage_rule: Literal["iteration", "loss"] = Field(
        "iteration", description="what starts stage two: iteration (official) | loss"
    )
    stage_two_start: int = Field(500, ge=1, description="stage_rule = iteration: first iteration of stage two")
    stage_two_loss: float = Field(
        1.0,
        gt=0,
        description="stage_rule = loss: stage two starts when the uploads' mean training loss is at most this",
    )
    server_lr: float = Field(0.01, gt=0, description="eta, learning rate of the server")
    agreement_uses_staleness: bool = Field(
        True, description="multiply the weights by agreement with the staleness weights"
    )


@dataclass(frozen=True, slots=True)
class Gradient(State):
    """An entry of the buffer."""

    device: int
    gradient: Floats  # g_i, trainable entries
    staleness: int  # tau_i
    rest: Weights  # entries that are not trainable
    loss: float | None


class WKAFL(RoundMethod):
    """Semi-asynchronous, with gradients weighted by age and agreement."""

    name = "wkafl"
    kind = "semi-asynchronous"
    paper = "Zhou et al., IEEE TPDS 2022 (arXiv 2203.01214)"
    Parameters = WKAFLParameters
    parameters: WKAFLParameters
    buffer: list[Gradient]

    def needs(self) -> Needs:
        """Training losses, if they start stage two."""
        return Needs(training_loss=self.parameters.stage_rule == "loss")

    def prepare(self, server: Server) -> None:
        """Starts in stage one, without an aggregated gradient."""
        self.size = default_buffer(server, self.parameters.buffer)
        self.iteration = 1
        self.second_stage = False
        self.last: Floats | None = None  # G

    def objective(self, server: Server, device: int) -> Objective:
        """Plain training; reports its loss if stage two depends on it."""
        return Objective(report_loss=self.needs().training_loss)

    def receive(self, server: Server, upload: Upload) -> None:
        """Buffers the gradient; the M-th triggers the step."""
        n = server.trainable
        gradient = frozen((upload.job.weights[:n].astype(np.float64) - upload.weights[:n]) / upload.learning_rate)
        staleness = server.version - upload.job.version + 1
        self.buffer.append(Gradient(upload.job.device, gradient, staleness, upload.weights[n:], upload.loss))
        if len(self.buffer) == self.size:
            self._step(server)
            self.buffer = []

    def _step(self, server: Server) -> None:
        p = self.parameters
        entries = self.buffer
        gradients = [e.gradient if self.last is None else e.gradient + p.alpha * self.last for e in entries]
        clipped = sum(norm(g) > p.clip for g in gradients)
        gradients = [clip(g, p.clip) for g in gradients]
        tau_min = min(e.staleness for e in entries)
        age = np.array([(math.e / 2) ** -(e.staleness - tau_min) for e in entries])  # a_i
        age /= age.sum()
        self.second_stage = self.second_stage or self._stage_two_starts()
        step, kept, cosines = self.merge(gradients, age)
        self.last = frozen(step)
        rate = p.server_lr / (1 + p.gamma_lr * tau_min)
        n = server.trainable
        rest = sum(a * e.rest.astype(np.float64) for a, e in zip(age, entries, strict=True))
        self.model = np.concatenate([self.model[:n] - rate * self.last, rest]).astype(np.float32)
        self.iteration += 1
        facts = {"age": age.tolist(), "cosines": cosines, "kept": kept, "clipped": int(clipped)}
        server.publish(self.model, devices=[e.device for e in entries], **facts)

    def _stage_two_starts(self) -> bool:
        p = self.parameters
        if p.stage_rule == "iteration":
            return self.iteration >= p.stage_two_start
        losses = [entry.loss for entry in self.buffer if entry.loss is not None]
        return bool(losses) and sum(losses) / len(losses) <= p.stage_two_loss

    def merge(self, gradients: list[Floats], age: Floats) -> tuple[Floats, list[float], list[float]]:
        """Steps 4 to 7: returns G, and for each gradient its weight p_i (0 if it is not kept) and cos_i."""
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
    """The vector, scaled down to norm ``bound`` if it is longer."""
    length = norm(vector)
    return vector * (bound / length) if length > bound else vector


def agreement(gradient: Floats, estimate: Floats) -> float:
    """Cosine of gradient and estimate; 1 for a zero gradient (it dilutes the step), 0 for a zero estimate."""
    if norm(estimate) == 0:
        return 0.0
    if norm(gradient) == 0:
        return 1.0
    return float((gradient * estimate).sum()) / (norm(gradient) * norm(estimate))
