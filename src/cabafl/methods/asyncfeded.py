"""AsyncFedED (Wang et al., 2022, arXiv 2205.13797): staleness is how far the server moved, relative to the update.

    g = |W - W_sent| / |Delta_k|;   W <- W + lambda / (g + epsilon) * Delta_k
    E_k <- E_k + floor((target - g) * kappa), kept between 1 and max_epochs

Devices whose updates are stale train fewer epochs, those with fresh ones more. (With target * kappa below 1, as by
default, the epochs can only shrink.) The paper was not available: this follows its abstract and one port; its constants
are not known, and it may count steps instead of epochs. The bounds of E_k are ours. A zero update changes nothing.
Statistics of batch normalisation are mixed in with the weight of the step, at most 1.
"""

import math

import numpy as np
from pydantic import Field

from cabafl.methods.base import Objective, Parameters, Server, Upload
from cabafl.methods.slots import SlotMethod
from cabafl.methods.vectors import length, stepped, update

DIGITS = 5  # to which the change of epochs is known, from models in float32


class AsyncFedEDParameters(Parameters):
    """Parameters of AsyncFedED; unchecked against the paper."""

    server_lr: float = Field(1.0, gt=0, description="lambda, numerator of the step")
    epsilon: float = Field(1.0, gt=0, description="added to the denominator of the step")
    target: float = Field(3.0, ge=0, description="staleness at which the epochs of a device stay as they are")
    kappa: float = Field(0.05, ge=0, description="how fast the epochs of a device change with its staleness")
    max_epochs: int | None = Field(None, ge=1, description="most epochs of a job; default: four times training.epochs")


class AsyncFedED(SlotMethod):
    """Asynchronous, with steps and epochs by Euclidean distance."""

    name = "asyncfeded"
    kind = "asynchronous"
    paper = "Wang et al., 2022 (arXiv 2205.13797)"
    Parameters = AsyncFedEDParameters
    parameters: AsyncFedEDParameters

    def prepare(self, server: Server) -> None:
        """Every device begins with the usual number of epochs."""
        self.epochs: dict[int, int] = {}  # E_k, if it has changed

    def objective(self, server: Server, device: int) -> Objective:
        """E_k epochs."""
        return Objective(epochs=self.epochs.get(device, server.epochs))

    def receive(self, server: Server, upload: Upload) -> None:
        """A step along the update, and the device's next number of epochs."""
        p, device, sent = self.parameters, upload.job.device, upload.job.weights
        delta = update(sent, upload.weights, server.trainable)
        size = length(delta)
        if size == 0:
            return
        staleness = length(update(sent, self.model, server.trainable)) / size
        rate = p.server_lr / (staleness + p.epsilon)
        mixed = min(1.0, rate)
        self.model = stepped(self.model, rate * delta, [self.model, upload.weights], [1.0 - mixed, mixed])
        most = 4 * server.epochs if p.max_epochs is None else p.max_epochs
        change = float(np.clip((p.target - staleness) * p.kappa, -most, most))
        epochs = self.epochs.get(device, server.epochs) + math.floor(round(change, DIGITS))
        self.epochs[device] = min(max(epochs, 1), most)
        server.publish(self.model, device=device, staleness=staleness, rate=rate, epochs=self.epochs[device])
