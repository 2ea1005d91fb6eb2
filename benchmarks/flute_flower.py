"""The workload of `cabafl.bench.flute` on Flower's simulation.

`cabafl bench toolkits` runs it as ``python -m benchmarks.flute_flower ROUNDS CLIENTS``.
"""

from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # type: ignore[import-not-found, unused-ignore]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found, unused-ignore]
from flwr.serverapp import ServerApp  # type: ignore[import-not-found, unused-ignore]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found, unused-ignore]
from flwr.simulation import run_simulation  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from cabafl.bench.flute import Clock, Flute, LogisticRegression, Measured, client_tensors, report


@cache
def _clients(flute: Flute) -> list[tuple[Tensor, Tensor]]:
    """Cached: generated once per training process."""
    torch.set_num_threads(1)
    return client_tensors(flute)


def train(flute: Flute, message: Any, context: Any) -> Message:
    """Local training of one client, as a plain torch loop."""
    x, y = _clients(flute)[int(context.node_config["partition-id"])]
    network = LogisticRegression()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(network.parameters(), lr=flute.learning_rate)
    steps = 0
    for index in torch.split(torch.randperm(len(y)), flute.batch):
        optimiser.zero_grad()
        F.cross_entropy(network(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def _total_steps(replies: list[Any], weighted_by: str) -> Any:
    return MetricRecord({"steps": sum(reply["metrics"]["steps"] for reply in replies)})


def serve(flute: Flute, grid: Any) -> Measured:
    """Flower's own FedAvg: one warm-up round, then the timed rounds."""
    strategy = FedAvg(
        fraction_train=flute.per_round / flute.clients,
        fraction_evaluate=0.0,
        min_train_nodes=flute.per_round,
        min_available_nodes=flute.clients,
        train_metrics_aggr_fn=_total_steps,
    )
    arrays = ArrayRecord(LogisticRegression().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
    clock = Clock()
    result: Any = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=flute.rounds)
    return clock.stop(int(sum(record["steps"] for record in result.train_metrics_clientapp.values())))


def measure(flute: Flute) -> Measured:
    """Runs on one Ray actor per core."""
    client, server = ClientApp(), ServerApp()
    measured: list[Measured] = []

    def train_one(message: Message, context: Context) -> Message:
        return train(flute, message, context)

    def main(grid: Any, context: Context) -> None:
        measured.append(serve(flute, grid))

    client.train()(train_one)
    server.main()(main)
    config: Any = {
        "init_args": {"address": "local"},  # do not join a Ray cluster that runs on this machine
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, num_supernodes=flute.clients, backend_config=config)
    return measured[0]


if __name__ == "__main__":
    from benchmarks.flute_flower import measure as importable  # Ray's processes import functions by module name

    report(importable)
