"""A plain Flower app that does not import cabafl: `bench.deploy` copies it into the folder that `flwr run` gets.

The client sleeps instead of training; the server times the replies. All set-ups in the comparison use `timed`.
"""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

DEVICES = 2
SECONDS = 0.5  # duration of the simulated training

client = ClientApp()
server = ServerApp()


@client.train()
def handle(message: Message, context: Context) -> Message:
    """Sleeps, then replies with the weights plus 1."""
    weights = torch.from_numpy(_vector(message))
    time.sleep(SECONDS)
    return Message(content=_record((weights + 1).numpy()), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Times messages sent with `Grid.send_and_receive`, Flower's usual way."""
    config = context.run_config
    sizes = [int(size) for size in str(config["sizes"]).split()]
    taken = timed(grid, lambda message: next(iter(grid.send_and_receive([message]))), sizes, int(config["times"]))
    out = Path(str(config["out"]))
    out.with_suffix(".part").write_text(json.dumps(taken))
    out.with_suffix(".part").rename(out)


def timed(
    grid: Any,
    exchange: Callable[[Message], Message],
    sizes: Iterable[int],
    times: int,
    pack: Callable[[Any], RecordDict] | None = None,
    unpack: Callable[[Message], Any] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each dispatch beyond training, by model size in bytes; the first of each size is a warm-up.

    ``pack`` and ``unpack`` convert between weights and message content; default: one Flower array.
    """
    pack, unpack = pack or _record, unpack or _vector
    while len(nodes := list(grid.get_node_ids())) < DEVICES:
        time.sleep(0.2)
    random = np.random.default_rng(1)
    taken: dict[str, list[float]] = {}
    for size in sizes:
        found = []
        for turn in range(times + 1):
            weights = random.standard_normal(size // 4, dtype=np.float32)  # different bytes every time
            started = time.perf_counter()
            node = nodes[turn % DEVICES]
            reply = exchange(Message(pack(weights), dst_node_id=node, message_type="train", ttl=300.0))
            received = unpack(reply)
            found.append(time.perf_counter() - started - SECONDS)
            assert np.array_equal(received, weights + 1), "the reply must belong to this message"
        taken[str(size)] = found[1:]
    return taken


def _record(weights: Any) -> RecordDict:
    return RecordDict({"model": ArrayRecord({"weights": Array(weights)})})


def _vector(message: Message) -> Any:
    record = message.content["model"]
    assert isinstance(record, ArrayRecord)
    return record["weights"].numpy()
