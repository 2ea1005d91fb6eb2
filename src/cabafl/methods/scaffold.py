"""SCAFFOLD (Karimireddy et al., ICML 2020): rounds in which gradients are corrected, so that devices do not drift.

A control variate c_k estimates the usual gradient of device k, c that of all N devices. In a round of the devices S:

    device:   every gradient g becomes g + (c - c_k)
    server:   d_k = -Delta_k / (eta * A) - c;   c_k <- c_k + d_k
              W <- W + server_lr * mean over S of Delta_k;   c <- c + (1/N) * sum over S of d_k

Delta_k is the trained minus the received model, not weighted by samples. The paper has no momentum; A counts effective
steps (`variates`), without which c_k would be up to 1 / (1 - momentum) too large. Down travel W and c - c_k; up only
the model, because the server can compute d_k (the paper uploads it). A lost device is absent from both sums. N counts
the devices that have samples.
"""

from typing import Any

from pydantic import Field

from cabafl.methods.base import Floats, Needs, Parameters, Server, Upload, Weights
from cabafl.methods.rounds import Rounds
from cabafl.methods.variates import ControlVariates
from cabafl.methods.vectors import stepped, update, weighted_sum


class ScaffoldParameters(Parameters):
    """Parameters of SCAFFOLD."""

    server_lr: float = Field(1.0, gt=0, description="learning rate of the server along the mean update")
    round_timeout: float | None = Field(
        None, gt=0, description="seconds after which a round ends with the uploads received; the rest is cancelled"
    )


class Scaffold(Rounds):
    """Synchronous, with control variates."""

    name = "scaffold"
    kind = "synchronous"
    paper = "Karimireddy et al., ICML 2020"
    Parameters = ScaffoldParameters
    parameters: ScaffoldParameters

    def needs(self) -> Needs:
        """See `variates`."""
        return Needs(plain_sgd=True)

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.changes: dict[int, Floats] = {}  # d_k of this round's uploads

    def start(self, server: Server) -> None:
        """All variates are 0."""
        self.variates = ControlVariates(server)
        super().start(server)

    def send(self, server: Server, device: int) -> int | None:
        """Sends W and the correction c - c_k."""
        return server.dispatch(device, self.model, correction=self.variates.correction(device))

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Learns the device's variate. c has not changed since the round began."""
        self.changes[upload.job.device] = self.variates.learn(server, upload, self.variates.common)
        super().on_upload(server, upload)

    def merge(self, server: Server, returned: list[tuple[int, int, Weights]]) -> None:
        """Moves W along the mean update, and c along the changes of the devices."""
        changes, self.changes = self.changes, {}
        if not returned:
            return
        devices, models = [device for device, _, _ in returned], [model for _, _, model in returned]
        weights = [1.0 / len(models)] * len(models)
        mean = weighted_sum([update(self.model, model, server.trainable) for model in models], weights)
        self.model = stepped(self.model, self.parameters.server_lr * mean, models, weights)
        self.variates.move_mean(server, [changes[device] for device in devices])
        server.publish(self.model, devices=devices, weights=weights)
