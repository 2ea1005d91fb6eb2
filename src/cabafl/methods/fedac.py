"""FedAC (Zang et al., AAAI 2024): uploads that agree with the server's movement weigh more; adaptive look-ahead steps.

Devices correct their gradients as in SCAFFOLD, by c - c_k (`variates`). When the buffer holds M uploads:

    r_k = max(cos(W - W_sent, Delta_k), floor), 1 if W = W_sent;   omega = r / sum of r;   D = sum of omega_k * Delta_k
    m <- b1 m + (1 - b1) D;   q <- b2 q + (1 - b2) D^2;   h = b1 m + (1 - b1) D
    W <- W + server_lr * h / (sqrt(q) + 1e-8);   c <- c + sum of omega_k * d_k

The paper was not available: this follows its abstract and two ports. Open are whether gradients are corrected in every
step (here: yes, the abstract speaks of the stochastic gradient) or once after training (the ports), what a fresh upload
weighs (``fresh``: one port has 1, the other the floor), and the constants, which are those of one port. c moves by the
whole mean change, as in the ports; ``variate_step = "share"`` has SCAFFOLD's factor M / N.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.averaging import plain_sum
from cabafl.methods.base import Floats, Job, LossReason, Needs, Parameters, Server, Upload, Weights
from cabafl.methods.slots import InFlight, SlotMethod, default_buffer, population
from cabafl.methods.variates import ControlVariates
from cabafl.methods.vectors import agreement, stepped, update, weighted_sum
from cabafl.state import State, frozen

EPSILON = 1e-8


class FedACParameters(Parameters):
    """Parameters of FedAC; unchecked against the paper."""

    buffer: int | None = Field(None, ge=1, description="M, uploads per server step; default: half of the slots")
    beta1: float = Field(0.6, ge=0, lt=1, description="b1, memory of the server's momentum")
    beta2: float = Field(0.9, ge=0, lt=1, description="b2, memory of the squared updates")
    server_lr: float = Field(0.001, gt=0, description="learning rate of the server")
    floor: float = Field(0.1, gt=0, le=1, description="least agreement that counts")
    fresh: Literal["one", "floor"] = Field(
        "one", description="agreement of an upload during which the server has not moved: one | floor"
    )
    variate_step: Literal["full", "share"] = Field(
        "full", description="how far c follows the mean change of the devices' variates: full | share (M / N of it)"
    )


@dataclass(frozen=True, slots=True)
class Corrected(State):
    """An upload in the buffer: the model as it was sent and as it came back, and the change of its device's variate."""

    device: int
    sent: Weights
    trained: Weights
    change: Floats  # d_k


class FedAC(SlotMethod):
    """Asynchronous, with a buffer, control variates and an adaptive server."""

    name = "fedac"
    kind = "asynchronous"
    paper = "Zang et al., AAAI 2024"
    Parameters = FedACParameters
    parameters: FedACParameters

    def needs(self) -> Needs:
        """See `variates`."""
        return Needs(plain_sgd=True)

    def prepare(self, server: Server) -> None:
        """Starts with moments and variates of 0."""
        self.size = default_buffer(server, self.parameters.buffer)
        self.variates = ControlVariates(server)
        self.sent: dict[int, Floats] = {}  # c as it was sent, by job
        self.momentum = frozen(np.zeros(server.trainable))  # m
        self.squares = frozen(np.zeros(server.trainable))  # q
        self.buffer: list[Corrected] = []

    def send(self, server: Server, device: int) -> None:
        """Dispatches W and the correction c - c_k, and remembers c."""
        job = server.dispatch(device, self.model, correction=self.variates.correction(device))
        if job is not None:
            self.in_flight[job] = InFlight(device, server.version)
            self.sent[job] = self.variates.common

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The variate of the device stays as it is."""
        del self.sent[job.number]
        super().on_loss(server, job, reason)

    def receive(self, server: Server, upload: Upload) -> None:
        """Learns the device's variate; the M-th upload triggers the server step."""
        change = self.variates.learn(server, upload, self.sent.pop(upload.job.number))
        self.buffer.append(Corrected(upload.job.device, upload.job.weights, upload.weights, frozen(change)))
        if len(self.buffer) == self.size:
            self._step(server)

    def _step(self, server: Server) -> None:
        p, buffer, self.buffer = self.parameters, self.buffer, []
        updates = [update(entry.sent, entry.trained, server.trainable) for entry in buffer]
        agreements = [self._agreement(entry, delta) for entry, delta in zip(buffer, updates, strict=True)]
        weights = [r / plain_sum(agreements) for r in agreements]
        mean = weighted_sum(updates, weights)
        self.momentum = frozen(p.beta1 * self.momentum + (1 - p.beta1) * mean)
        self.squares = frozen(p.beta2 * self.squares + (1 - p.beta2) * mean * mean)
        ahead = p.beta1 * self.momentum + (1 - p.beta1) * mean
        step = p.server_lr * ahead / (np.sqrt(self.squares) + EPSILON)
        self.model = stepped(self.model, step, [entry.trained for entry in buffer], weights)
        share = 1.0 if p.variate_step == "full" else len(buffer) / population(server)
        self.variates.move(share * weighted_sum([entry.change for entry in buffer], weights))
        server.publish(self.model, devices=[entry.device for entry in buffer], weights=weights)

    def _agreement(self, entry: Corrected, delta: Floats) -> float:
        """r_k."""
        if self.parameters.fresh == "floor" and np.array_equal(self.model[: len(delta)], entry.sent[: len(delta)]):
            return self.parameters.floor
        return max(agreement(self.model, entry.sent, delta), self.parameters.floor)
