"""FedBuff (Nguyen et al., AISTATS 2022): uploads are buffered as differences; a full buffer makes one server step.

The mean of the differences, each scaled by 1/sqrt(1 + staleness) and not by samples. The same device may appear twice
in a buffer. A partial buffer at the end of the run is dropped, or with ``flush`` makes a last step (as in FLSim).
"""

from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.base import Floats, Parameters, Server, Upload, Weights
from cabafl.methods.slots import SlotMethod, default_buffer


class FedBuffParameters(Parameters):
    """Defaults of the comparison; the paper tunes both numbers."""

    buffer: int | None = Field(None, ge=1, description="uploads per server step; default: half of the slots")
    server_lr: float = Field(1.0, gt=0, description="step of the server along the mean difference")
    staleness: Literal["sqrt", "constant"] = Field("sqrt", description="sqrt: 1/sqrt(1 + staleness) | constant: 1")
    flush: bool = Field(False, description="a partial buffer makes a last step at the end of the run")


class FedBuff(SlotMethod):
    """Asynchronous with a buffer; see the module's description."""

    name = "fedbuff"
    kind = "asynchronous"
    paper = "Nguyen et al., AISTATS 2022"
    Parameters = FedBuffParameters
    parameters: FedBuffParameters

    def prepare(self, server: Server) -> None:
        """An empty accumulator."""
        self.size = default_buffer(server, self.parameters.buffer)
        self.sum = np.zeros(server.initial.size)
        self.factors: list[float] = []

    def receive(self, server: Server, upload: Upload) -> None:
        """Adds the difference; the last one of a buffer makes the step."""
        staleness = server.version - upload.job.version
        factor = (1.0 + staleness) ** -0.5 if self.parameters.staleness == "sqrt" else 1.0
        self.sum += factor * difference(upload)
        self.factors.append(factor)
        if len(self.factors) == self.size:
            self._step(server)

    def on_end(self, server: Server) -> None:
        """A partial buffer counts only if asked for."""
        if self.parameters.flush and self.factors:
            self._step(server)

    def _step(self, server: Server) -> None:
        self.model = moved(self.model, self.parameters.server_lr / len(self.factors) * self.sum)
        server.publish(self.model, factors=self.factors)
        self.sum = np.zeros(server.initial.size)
        self.factors = []


def difference(upload: Upload) -> Floats:
    """What training changed, in float64."""
    return upload.weights.astype(np.float64) - upload.job.weights


def moved(model: Weights, step: Floats) -> Weights:
    """The model after a step."""
    return (model + step).astype(np.float32)
