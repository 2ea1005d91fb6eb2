"""The workload of `cabafl.bench.flute` on Apple's pfl.

`cabafl bench toolkits` runs it as ``python -m benchmarks.flute_pfl ROUNDS CLIENTS``.
"""

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.aggregate.weighting import WeightByDatapoints  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.data.dataset import Dataset  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.metrics import Metrics  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from cabafl.bench.flute import Clock, Flute, LogisticRegression, Measured, client_tensors, report


class Network(LogisticRegression):
    """Adds the methods that pfl requires, and counts the local steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """Called once per local step."""
        self.steps += 1
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Empty: nothing is evaluated."""
        return {}


class WarmUp:
    """A pfl callback that starts the clock after the first round, the only one in which pfl evaluates clients."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.before = 0
        self.clock: Clock | None = None

    def on_train_begin(self, *, model: Any) -> Any:
        """Required by pfl; does nothing."""
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Starts the clock once. Returns False: training continues."""
        if self.clock is None:
            self.before = self.network.steps
            self.clock = Clock()
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        """Required by pfl; does nothing."""


def backend(flute: Flute) -> Any:
    """All clients in memory, sampled uniformly."""
    clients = [Dataset(raw_data=[x, y], user_id=str(i)) for i, (x, y) in enumerate(client_tensors(flute))]
    sampler = get_user_sampler("random", range(len(clients)))
    data = FederatedDataset(lambda client: clients[client], sampler)
    return SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()])


def measure(flute: Flute) -> Measured:
    """Federated averaging as in pfl's own examples, with one extra round as a warm-up."""
    network = Network()
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.SGD, central)
    warm_up = WarmUp(network)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=flute.rounds + 1,
            evaluation_frequency=flute.rounds + 2,
            train_cohort_size=flute.per_round,
            val_cohort_size=None,
        ),
        backend(flute),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=flute.learning_rate, local_batch_size=flute.batch),
        NNEvalHyperParams(local_batch_size=None),
        [warm_up],
    )
    assert warm_up.clock is not None
    return warm_up.clock.stop(network.steps - warm_up.before)


if __name__ == "__main__":
    report(measure)
