"""A standard Flower app for `flwr run`: runs the methods on an unmodified SuperLink.

Flower starts a new process for every message, so a device loads its data each time; `cabafl deploy` is faster. The run
configuration names the experiment, the node configuration the device's part of the data (``partition-id``).
"""

import time
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from cabafl.assembly import make_server_task
from cabafl.config import Experiment, load_experiment
from cabafl.deployment import wire
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import TrainingJob
from cabafl.deployment.server.serve import for_devices, serve
from cabafl.errors import UserError

client = ClientApp()
server = ServerApp()


class Answers:
    """A participant behind Flower's messages."""

    def __init__(self, participant: Participant) -> None:
        self.participant = participant

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply to a message; raises on any failure."""
        kind = message.metadata.message_type
        if kind == wire.HELLO:
            greeting = Greeting.read(wire.decode_greeting(message.content))
            fresh = greeting != self.participant.greeting
            content = wire.encode_hello(self.participant.join(greeting), fresh)
        elif kind == wire.FEATURES:
            query = wire.decode_feature_query(message.content, self.length())
            content = wire.encode_features(self.participant.features(query).features)
        elif kind == wire.TRAIN:
            content = self.train(wire.decode_job(message.content, self.length()))
        else:
            raise wire.Malformed(f"message type {kind[:40]!r}")
        return Message(content=content, reply_to=message)

    def length(self) -> int:
        """Length of a model of the experiment that the participant has joined."""
        if self.participant.greeting is None:
            raise UserError("a job came before a greeting")
        return self.participant.greeting.weights

    def train(self, job: TrainingJob) -> RecordDict:
        """Flower cancels no jobs."""
        reply = self.participant.train(job, lambda: False)
        assert reply is not None
        return wire.encode_reply(reply)


class PlainGrid:
    """See `Transport`: the grid Flower passes to a server app, with the first ``devices`` nodes that connect."""

    def __init__(self, grid: Grid, devices: int) -> None:
        self.grid = grid
        self.devices = devices

    def nodes(self) -> Mapping[int, int]:
        """Waits until enough nodes are online."""
        while len(found := sorted(self.grid.get_node_ids())) < self.devices:
            time.sleep(1.0)
        return dict(enumerate(found[: self.devices]))

    def open(self, max_bytes: int, resumed: bool, again: bool = False) -> Grid:
        """Always the same grid: Flower makes one per process."""
        return self.grid

    def interrupt(self) -> None:
        """Does nothing: no call of this grid waits."""

    def close(self, finished: bool) -> None:
        """Does nothing: Flower closes its grid itself."""


def _experiment(context: Context) -> tuple[Experiment, int]:
    config = context.run_config
    file = Path(str(config["experiment"])) if config.get("experiment") else None
    devices = int(config["devices"])
    return for_devices(load_experiment(file, str(config.get("settings", "")).split()), devices), devices


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment named by the run configuration."""
    experiment, devices = _experiment(context)
    serve(experiment, PlainGrid(grid, devices), Path(str(context.run_config["out"])), warn=print)


def _handle(message: Message, context: Context) -> Message:
    experiment, devices = _experiment(context)
    partition = int(context.node_config["partition-id"])
    participant = Participant(Device(Path.cwd(), "", partition, partition, root=experiment.data.root))
    samples = participant.join(Greeting.of(experiment, make_server_task(experiment), devices))
    if message.metadata.message_type == wire.HELLO:
        return Message(content=wire.encode_hello(samples, fresh=False), reply_to=message)
    return Answers(participant)(message, context)


client.train()(_handle)
client.query("features")(_handle)
client.query("hello")(_handle)
