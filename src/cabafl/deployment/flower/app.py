"""A standard Flower app for `flwr run`: runs the methods on an unmodified SuperLink.

Flower starts a new process for every message, so a device loads its data each time; `cabafl deploy` is faster. The run
configuration names the experiment, the node configuration the device's part of the data (``partition-id``).
"""

import time
from pathlib import Path
from typing import get_args

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from cabafl.assembly import make_server_task
from cabafl.config import Experiment, load_experiment
from cabafl.deployment import wire
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.device.terms import Terms
from cabafl.deployment.flower.carrier import HELLO, PIECE, TRAIN, FlowerCarrier, from_record, to_record
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import FeatureQuery
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.deployment.server.serve import Station, for_devices, serve
from cabafl.methods.base import FeatureKind

client = ClientApp()
server = ServerApp()


class PlainGrid:
    """See `server.carrier.Network`: the grid that Flower passes to a server app, with the first ``count`` nodes that
    connect."""

    def __init__(self, grid: Grid, count: int) -> None:
        self.grid = grid
        self.devices = range(count)

    def open(self, run: RunOnFleet, log: Log) -> FlowerCarrier:
        """Waits until enough nodes are online."""
        while len(found := sorted(self.grid.get_node_ids())) < len(self.devices):
            time.sleep(1.0)
        return FlowerCarrier(self.grid, dict(enumerate(found[: len(self.devices)])), run, log)


def _experiment(context: Context) -> tuple[Experiment, int]:
    config = context.run_config
    file = Path(str(config["experiment"])) if config.get("experiment") else None
    devices = int(config["devices"])
    return for_devices(load_experiment(file, str(config.get("settings", "")).split()), devices), devices


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment named by the run configuration."""
    experiment, devices = _experiment(context)
    serve(experiment, PlainGrid(grid, devices), Station(Path(str(context.run_config["out"])), Log()))


def _handle(message: Message, context: Context) -> Message:
    """The answer of a device. Its samples and its model are loaded anew: this process lives for one message."""
    experiment, devices = _experiment(context)
    partition = int(context.node_config["partition-id"])
    own = Device(Path.cwd(), "", partition, partition, root=experiment.data.root, terms=Terms(labels=True))
    participant = Participant(own)
    greeting = Greeting.of(experiment, make_server_task(experiment), devices)
    samples = participant.join(greeting)
    lengths = {"greeting": 0, "job": greeting.weights, "query": greeting.weights}
    record = from_record(message.content, wire.message_limit(greeting.weights), lengths)
    if record.problem:
        raise wire.Malformed(record.problem)
    packets = _answer(participant, message.metadata.message_type, record, samples, greeting.weights)
    return Message(content=to_record(packets), reply_to=message)


def _answer(participant: Participant, kind: str, record: wire.WireRecord, samples: int, weights: int) -> list[bytes]:
    run = record.text("run")
    if kind == HELLO:
        return wire.encode("here", {"run": run, "process": "flower", "samples": samples, "declined": ""})
    if kind == TRAIN:
        job = wire.training_job(record, weights)
        reply = participant.train(job, lambda: False)
        assert reply is not None
        return wire.encode("trained", wire.reply_values(run, job.number, reply), reply.weights, PIECE)
    [feature_kind] = [known for known in get_args(FeatureKind) if known == record.text("features")]
    query = FeatureQuery(record.count("query"), record.vector, feature_kind)
    return wire.encode("features", {"run": run, "query": query.number}, participant.features(query).features, PIECE)


client.train()(_handle)
client.query("features")(_handle)
client.query("hello")(_handle)
