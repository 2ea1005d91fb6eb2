"""FADAS (Wang et al., ICML 2024): FedBuff whose server step is AMSGrad; very late uploads make the step smaller.

Server step t = 1, 2, ... with a full buffer of M updates:

    D = mean of Delta_k;   m <- b1 m + (1 - b1) D;   v <- b2 v + (1 - b2) D^2;   u <- max(u, v)
    W <- W + eta * m / (1 - b1^t) / (sqrt(u) / sqrt(1 - b2^t) + eps)

T is the largest staleness in the buffer. With T above ``delay_threshold``, eta = server_lr / T (the authors' program);
``delay_rule = "cap"``: min(server_lr, 1 / T), as the paper is restated elsewhere, which does nothing at usual rates.
The paper has no bias correction (the divisions by 1 - b^t), the program has: ``bias_correction``.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.base import Parameters, Server, Upload, Weights
from cabafl.methods.slots import SlotMethod
from cabafl.methods.vectors import stepped, update, weighted_sum
from cabafl.state import frozen


class FADASParameters(Parameters):
    """Parameters of FADAS; the defaults are those of the authors' program."""

    buffer: int = Field(5, ge=1, description="M, uploads per server step")
    server_lr: float = Field(0.001, gt=0, description="learning rate of the server")
    beta1: float = Field(0.9, ge=0, lt=1, description="b1, memory of the mean update")
    beta2: float = Field(0.99, ge=0, lt=1, description="b2, memory of its square")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    delay_threshold: int | None = Field(1, ge=0, description="staleness above which the step is smaller; none: never")
    delay_rule: Literal["divide", "cap"] = Field(
        "divide", description="the smaller step, T the largest staleness: divide: server_lr / T | cap: at most 1 / T"
    )
    bias_correction: bool = Field(True, description="corrects the moments for their start at 0")


class FADAS(SlotMethod):
    """Asynchronous, with a buffer and an adaptive server."""

    name = "fadas"
    kind = "asynchronous"
    paper = "Wang et al., ICML 2024"
    Parameters = FADASParameters
    parameters: FADASParameters

    def prepare(self, server: Server) -> None:
        """Starts with moments of 0."""
        self.mean, self.square, self.largest = (frozen(np.zeros(server.trainable)) for _ in range(3))  # m, v, u
        self.steps = 0  # t
        self.buffer: list[tuple[int, int, Weights, Weights]] = []  # device, staleness, model as sent and as trained

    def receive(self, server: Server, upload: Upload) -> None:
        """Keeps the upload; the M-th triggers the server step."""
        staleness = server.version - upload.job.version
        self.buffer.append((upload.job.device, staleness, upload.job.weights, upload.weights))
        if len(self.buffer) == self.parameters.buffer:
            self._step(server)

    def _step(self, server: Server) -> None:
        p, buffer, self.buffer = self.parameters, self.buffer, []
        weights = [1.0 / len(buffer)] * len(buffer)
        updates = [update(sent, trained, server.trainable) for _, _, sent, trained in buffer]
        delta = weighted_sum(updates, weights)
        self.steps += 1
        self.mean = frozen(p.beta1 * self.mean + (1 - p.beta1) * delta)
        self.square = frozen(p.beta2 * self.square + (1 - p.beta2) * delta * delta)
        self.largest = frozen(np.maximum(self.largest, self.square))
        first, second = 1.0, 1.0
        if p.bias_correction:
            first, second = 1 - p.beta1**self.steps, 1 - p.beta2**self.steps
        rate = self.rate(max(staleness for _, staleness, _, _ in buffer))
        step = rate * self.mean / first / (np.sqrt(self.largest) / np.sqrt(second) + p.eps)
        self.model = stepped(self.model, step, [trained for _, _, _, trained in buffer], weights)
        server.publish(self.model, devices=[device for device, _, _, _ in buffer], rate=rate)

    def rate(self, staleness: int) -> float:
        """eta, for the largest staleness in the buffer."""
        p = self.parameters
        if p.delay_threshold is None or staleness <= p.delay_threshold:
            return p.server_lr
        return p.server_lr / staleness if p.delay_rule == "divide" else min(p.server_lr, 1.0 / staleness)
