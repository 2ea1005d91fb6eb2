"""AREA (Iakovidou, Kim, arXiv 2405.10123): the global model is exactly the mean of every device's last trained model.

    y_k = W(0) for all N devices
    upload:   S <- S + (w_k - y_k);   y_k <- w_k
    after M uploads:   W <- W + S / N;   S = 0,   so that W is the mean of all y_k

Fast devices cannot dominate, and there are no staleness weights. Samples count through the learning rate, whose factor
is N * n_k / sum of n (``weighting``); the author's program has n_k / sum of n, with N in its rate. It hands the
uploader the model from before the step, here it is newer. N counts the devices that have samples: those that join
later count with the initial model, too. Memory: one model per device seen.
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from cabafl.methods.base import PLAIN, Floats, Objective, Parameters, Server, Upload, Weights
from cabafl.methods.slots import SlotMethod, population
from cabafl.state import frozen


class AREAParameters(Parameters):
    """Parameters of AREA."""

    buffer: int = Field(3, ge=1, description="M, uploads per server step")
    weighting: Literal["samples", "none"] = Field(
        "samples",
        description="learning rate of a device: samples: in proportion to its samples | none: the same for all",
    )


class AREA(SlotMethod):
    """Asynchronous, with the last model of every device."""

    name = "area"
    kind = "asynchronous"
    paper = "Iakovidou, Kim, 2024 (arXiv 2405.10123)"
    Parameters = AREAParameters
    parameters: AREAParameters

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.devices = 0  # N in ``mean``; 0: nobody has been counted

    def prepare(self, server: Server) -> None:
        """Every device counts with the initial model."""
        self.last: dict[int, Weights] = {}  # y_k; a missing entry is W(0)
        self.mean: Floats = frozen(server.initial.astype(np.float64))  # W, exact
        self.sum: Floats = frozen(np.zeros(server.initial.size))  # S
        self.count = 0  # uploads in S

    def objective(self, server: Server, device: int) -> Objective:
        """The learning rate by samples."""
        total = int(server.sizes.sum())
        if self.parameters.weighting == "none" or total == 0:
            return PLAIN
        return Objective(lr_scale=population(server) * int(server.sizes[device]) / total)

    def receive(self, server: Server, upload: Upload) -> None:
        """Replaces the device's model; the M-th upload triggers the server step."""
        device = upload.job.device
        change = upload.weights.astype(np.float64) - self.last.get(device, server.initial)
        self.sum = frozen(self.sum + change)
        self.last[device] = upload.weights
        self.count += 1
        if self.count == self.parameters.buffer:
            self._count_devices(server)
            self.mean = frozen(self.mean + self.sum / self.devices)
            self.sum, self.count = frozen(np.zeros(server.initial.size)), 0
            self.model = self.mean.astype(np.float32)
            server.publish(self.model, device=device)

    def _count_devices(self, server: Server) -> None:
        """Devices that have joined meanwhile count with the initial model."""
        before, self.devices = self.devices, max(self.devices, population(server))
        if 0 < before < self.devices:
            self.mean = frozen(server.initial + (self.mean - server.initial) * (before / self.devices))
