"""CA2FL (Wang et al., ICLR 2024): FedBuff calibrated by the cached last update of every device.

v = h + mean over the buffer of (update - cached update), h being the mean of all cached updates; the cache is refreshed
afterwards. A device that occurs twice in a buffer is calibrated with the old entry both times and cached with its later
update (``refresh`` = "immediate": as it arrives). One update per device seen is kept in memory.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.base import Floats, Parameters, Server, Upload
from cabafl.methods.fedbuff import difference, moved
from cabafl.methods.slots import SlotMethod, default_buffer


class CA2FLParameters(Parameters):
    """Defaults of the comparison."""

    buffer: int | None = Field(None, ge=1, description="uploads per server step; default: half of the slots")
    server_lr: float = Field(1.0, gt=0, description="step of the server")
    refresh: Literal["step", "immediate"] = Field("step", description="when the cache is refreshed: step | immediate")


class CA2FL(SlotMethod):
    """Asynchronous with a buffer and a cache; see the module's description."""

    name = "ca2fl"
    kind = "asynchronous"
    paper = "Wang et al., ICLR 2024"
    Parameters = CA2FLParameters
    parameters: CA2FLParameters

    def prepare(self, server: Server) -> None:
        """Nothing cached: the first step is FedBuff's with constant weights."""
        self.size = default_buffer(server, self.parameters.buffer)
        self.cached: dict[int, Floats] = {}
        self.mean = np.zeros(server.initial.size)
        self.base = self.mean  # the mean at the last step
        self.sum = np.zeros(server.initial.size)
        self.buffer: list[tuple[int, Floats]] = []

    def receive(self, server: Server, upload: Upload) -> None:
        """Collects the calibrated difference; the last one of a buffer makes the step."""
        device, update = upload.job.device, difference(upload)
        self.sum += update - self.cached.get(device, 0.0)
        self.buffer.append((device, update))
        if self.parameters.refresh == "immediate":
            self._cache(server, device, update)
        if len(self.buffer) == self.size:
            self._step(server)

    def _step(self, server: Server) -> None:
        self.model = moved(self.model, self.parameters.server_lr * (self.base + self.sum / self.size))
        server.publish(self.model, devices=[device for device, _ in self.buffer])
        if self.parameters.refresh == "step":
            for device, update in self.buffer:
                self._cache(server, device, update)
        self.base = self.mean
        self.sum = np.zeros(server.initial.size)
        self.buffer = []

    def _cache(self, server: Server, device: int, update: Floats) -> None:
        self.mean = self.mean + (update - self.cached.get(device, 0.0)) / len(server.sizes)
        self.cached[device] = update
