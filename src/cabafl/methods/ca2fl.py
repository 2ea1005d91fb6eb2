"""CA2FL (Wang et al., ICLR 2024): FedBuff, calibrated with the cached last update of every device.

When the buffer holds M updates (set S):

    v = h + mean over S of (Delta_k - h_k);   w <- w + server_lr * v;   then h_k <- Delta_k for k in S

Delta_k is the trained minus the received model, h_k the cached update of device k (0 before its first upload), and h
the mean of all N cached updates; N counts the devices that have samples. A device that occurs twice in a buffer is
calibrated with its old h_k both times, and its later update is cached; with ``refresh = "immediate"`` h_k changes on
arrival. Memory: one update per device seen. Statistics of batch normalisation are no directions (a variance might
become negative): they become the mean of the uploads in the buffer.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from cabafl.methods.base import Floats, Parameters, Server, Upload
from cabafl.methods.slots import SlotMethod, default_buffer, population
from cabafl.methods.vectors import update as update_of
from cabafl.state import frozen


class CA2FLParameters(Parameters):
    """Parameters of CA2FL; the defaults are those of the comparison."""

    buffer: int | None = Field(None, ge=1, description="M, uploads per server step; default: half of the slots")
    server_lr: float = Field(1.0, gt=0, description="learning rate of the server")
    refresh: Literal["step", "immediate"] = Field(
        "step", description="when cached updates are replaced: step (after the server step) | immediate (on arrival)"
    )


class CA2FL(SlotMethod):
    """Asynchronous, with a buffer and a cache of updates."""

    name = "ca2fl"
    kind = "asynchronous"
    paper = "Wang et al., ICLR 2024"
    Parameters = CA2FLParameters
    parameters: CA2FLParameters
    devices = 0  # N in h; 0: nobody has been counted
    statistics = frozen(np.zeros(0))  # sum of the uploads' entries that are not trained, over the buffer

    def prepare(self, server: Server) -> None:
        """Starts with an empty cache, so the first step equals that of FedBuff with constant weights."""
        self.size = default_buffer(server, self.parameters.buffer)
        self.cached: dict[int, Floats] = {}  # h_k by device; a missing entry is zero
        self.mean = frozen(np.zeros(server.trainable))  # h
        self.base = self.mean  # h at the last server step
        self._empty(server)

    def _empty(self, server: Server) -> None:
        self.sum = frozen(np.zeros(server.trainable))  # of Delta_k - h_k over the buffer
        self.statistics = frozen(np.zeros(server.initial.size - server.trainable))
        self.buffer: list[tuple[int, Floats]] = []  # device and its Delta_k

    def receive(self, server: Server, upload: Upload) -> None:
        """Adds the calibrated update; the M-th upload triggers the server step."""
        device, trainable = upload.job.device, server.trainable
        update = frozen(update_of(upload.job.weights, upload.weights, trainable))
        added = update - self.cached.get(device, 0.0)
        added += self.sum
        self.sum = frozen(added)
        self.statistics = frozen(self.statistics + upload.weights[trainable:].astype(np.float64))
        self.buffer.append((device, update))
        if self.parameters.refresh == "immediate":
            self._cache(server, device, update)
        if len(self.buffer) == self.size:
            self._step(server)

    def _step(self, server: Server) -> None:
        moved = self.model[: server.trainable] + self.parameters.server_lr * (self.base + self.sum / self.size)
        mean = self.statistics / self.size
        self.model = np.concatenate([moved.astype(np.float32), mean.astype(np.float32)])
        server.publish(self.model, devices=[device for device, _ in self.buffer])
        if self.parameters.refresh == "step":
            for device, update in self.buffer:
                self._cache(server, device, update)
        self.base = self.mean
        self._empty(server)

    def _cache(self, server: Server, device: int, update: Floats) -> None:
        """Replaces h_k. Devices that have joined meanwhile count with an h_k of 0."""
        before, self.devices = self.devices, max(self.devices, population(server))
        if 0 < before < self.devices:
            self.mean = frozen(self.mean * (before / self.devices))
        self.mean = frozen(self.mean + (update - self.cached.get(device, 0.0)) / self.devices)
        self.cached[device] = update
