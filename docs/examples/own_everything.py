"""A network, data and a method of one's own in one file or notebook."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from cabafl import Experiment, Job, Method, Result, Server, Upload, simulate


class Net(nn.Module):
    """One hidden layer. It says which layer's output describes the data it has seen."""

    feature_layer = "hidden"

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(input_shape[0], 32), nn.ReLU())
        self.out = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """One score per class."""
        scores: Tensor = self.out(self.hidden(x))
        return scores


class Latest(Method):
    """Every upload becomes the global model: the simplest method there is."""

    name = "latest"
    kind = "asynchronous"
    paper = "an example"

    def start(self, server: Server) -> None:
        """Sends the initial model to the first devices."""
        for _ in range(server.slots):
            server.dispatch(server.idle.draw(server.random("next device")), server.initial)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Publishes the upload and passes it on to the next device."""
        server.publish(upload.weights, device=upload.job.device)
        server.dispatch(server.idle.draw(server.random("next device")), upload.weights)

    def on_loss(self, server: Server, job: Job, reason: str) -> None:
        """Sends a lost model once more, to another device."""
        server.dispatch(server.idle.draw(server.random("next device")), job.weights)


def samples() -> dict[str, npt.NDArray[Any]]:
    """Points in a plane: is the product of the two coordinates positive?"""
    x = np.random.default_rng(1).normal(size=(1000, 2)).astype(np.float32)
    label = np.where(x[:, 0] * x[:, 1] > 0, "same sign", "different signs")
    return {"x_train": x[:800], "y_train": label[:800], "x_test": x[800:], "y_test": label[800:]}


def main() -> Result:
    """Runs the method on the samples, spread over 20 devices."""
    settings = {
        "data": {"partition": "iid", "devices": 20},
        "model": {"name": "__main__:Net"},
        "training": {"learning_rate": 0.1},
        "method": {"name": "__main__:Latest"},
        "run": {"virtual_time": 600, "workers": 0},
    }
    return simulate(Experiment.model_validate(settings), data=samples())


if __name__ == "__main__":
    sys.stdout.write(f"{main()}\n")
