"""FedBuff (Nguyen et al., AISTATS 2022): updates are buffered; a full buffer makes one server step.

    A <- A + Delta_k / sqrt(1 + staleness) per upload;   w <- w + server_lr * A / M after M uploads

Delta_k is the trained minus the received model, not weighted by samples. The same device may occur twice in a buffer. A
partial buffer at the end of the run is dropped; with ``flush`` it makes a last step, as in FLSim. Statistics of batch
normalisation are no directions (a variance might become negative): they become the mean of the uploads, with the
weights of their updates.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.averaging import plain_sum
from cabafl.methods.base import Parameters, Server, Upload
from cabafl.methods.slots import SlotMethod, default_buffer
from cabafl.methods.vectors import update
from cabafl.state import frozen


class FedBuffParameters(Parameters):
    """Parameters of FedBuff; the defaults are those of the comparison. The paper tunes ``buffer`` and ``server_lr``."""

    buffer: int | None = Field(None, ge=1, description="M, uploads per server step; default: half of the slots")
    server_lr: float = Field(1.0, gt=0, description="learning rate of the server along the mean update")
    staleness: Literal["sqrt", "constant"] = Field(
        "sqrt", description="weight of an update: sqrt: 1/sqrt(1 + staleness) | constant: 1"
    )
    flush: bool = Field(False, description="a partial buffer makes a last step at the end of the run")


class FedBuff(SlotMethod):
    """Asynchronous, with a buffer."""

    name = "fedbuff"
    kind = "asynchronous"
    paper = "Nguyen et al., AISTATS 2022"
    Parameters = FedBuffParameters
    parameters: FedBuffParameters
    statistics = frozen(np.zeros(0))  # weighted sum of the uploads' entries that are not trained

    def prepare(self, server: Server) -> None:
        """Starts with an empty buffer."""
        self.size = default_buffer(server, self.parameters.buffer)
        self._empty(server)

    def _empty(self, server: Server) -> None:
        self.sum = frozen(np.zeros(server.trainable))  # A
        self.statistics = frozen(np.zeros(server.initial.size - server.trainable))
        self.factors: list[float] = []  # staleness weights of the updates in A

    def receive(self, server: Server, upload: Upload) -> None:
        """Adds the update to the buffer; the M-th triggers the server step."""
        staleness = server.version - upload.job.version
        factor = (1.0 + staleness) ** -0.5 if self.parameters.staleness == "sqrt" else 1.0
        added = factor * update(upload.job.weights, upload.weights, server.trainable)
        added += self.sum
        self.sum = frozen(added)
        self.statistics = frozen(self.statistics + factor * upload.weights[server.trainable :].astype(np.float64))
        self.factors.append(factor)
        if len(self.factors) == self.size:
            self._step(server)

    def on_end(self, server: Server) -> None:
        """With ``flush``, makes a step with a partial buffer."""
        if self.parameters.flush and self.factors:
            self._step(server)

    def _step(self, server: Server) -> None:
        step = self.parameters.server_lr / len(self.factors) * self.sum
        moved = self.model[: server.trainable] + step
        mean = self.statistics / plain_sum(self.factors)
        self.model = np.concatenate([moved.astype(np.float32), mean.astype(np.float32)])
        server.publish(self.model, factors=self.factors)
        self._empty(server)
