"""Control variates, as SCAFFOLD uses them: what devices usually pull, and how gradients are corrected by it.

    c_k estimates the usual gradient of device k, c that of the fleet; the gradients of device k are shifted by c - c_k
    d_k = -Delta_k / (eta * A) - c_sent;   c_k <- c_k + d_k
    A = sum for i = 1 to steps of (1 - m^i) / (1 - m):   how far a constant gradient moves a model, momentum m included

All of them are kept by the server, which can compute them: a lost upload cannot leave the two sides disagreeing.
Memory: one vector per device seen.
"""

import numpy as np

from cabafl.methods.base import Floats, Server, Upload, Weights
from cabafl.methods.slots import population
from cabafl.methods.vectors import weighted_sum
from cabafl.state import State, frozen

LARGEST = 1e6  # no gradient of a network that learns has a larger entry; a liar's are cut


class ControlVariates(State):
    """c and c_k, over trainable entries; c_k is 0 before a device's first upload."""

    devices = 0  # N in c, if c is the mean of all c_k; 0: nobody has been counted

    def __init__(self, server: Server) -> None:
        self.size = len(server.initial)
        self.common: Floats = frozen(np.zeros(server.trainable))  # c
        self.own: dict[int, Weights] = {}  # c_k

    def correction(self, device: int) -> Weights:
        """c - c_k, with zeros for the buffers of a model."""
        vector = np.zeros(self.size, dtype=np.float32)
        vector[: len(self.common)] = self.common - self.own.get(device, np.float32(0.0))
        return vector

    def learn(self, server: Server, upload: Upload, sent: Floats) -> Floats:
        """Moves c_k by d_k and returns d_k; ``sent`` is c as it was when the job was sent."""
        n, device = len(self.common), upload.job.device
        scale = upload.learning_rate * effective_steps(upload.steps, server.momentum)
        change = (upload.job.weights[:n] - upload.weights[:n].astype(np.float64)) / scale - sent
        before = self.own.get(device, np.float32(0.0))
        after = before + change
        within = np.clip(after, -LARGEST, LARGEST)
        self.own[device] = frozen(within.astype(np.float32))
        return np.where(after == within, change, within - before)  # else c would keep what was cut off c_k

    def move_mean(self, server: Server, changes: list[Floats]) -> None:
        """Moves c, the mean of all c_k, by the changes of some of them. Devices that have joined meanwhile count with a
        c_k of 0."""
        before, self.devices = self.devices, max(self.devices, population(server))
        if 0 < before < self.devices:
            self.common = frozen(self.common * (before / self.devices))
        self.move(weighted_sum(changes, [1.0 / self.devices] * len(changes)))

    def move(self, change: Floats) -> None:
        """Moves c."""
        self.common = frozen(np.clip(self.common + change, -LARGEST, LARGEST))


def effective_steps(steps: int, momentum: float) -> float:
    """A: the number of steps without momentum that would move a model as far."""
    rest = 1.0 - momentum
    return float((steps - momentum * (1.0 - momentum**steps) / rest) / rest)
