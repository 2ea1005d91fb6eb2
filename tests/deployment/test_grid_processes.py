"""The grid with real processes on loopback: a SuperLink, two devices, a server that comes back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

from flwr.app import Message, RecordDict

from cabafl.bench.deploy import superlink_command
from cabafl.deployment import wire
from cabafl.deployment.flower.grid import FleetGrid, open_grid, reopen_grid
from cabafl.deployment.flower.internals import Link, RunLost
from cabafl.deployment.messages import TrainingJob
from cabafl.deployment.testbed.programs import environment
from cabafl.methods.base import PLAIN
from cabafl.processes.children import answers as listens
from cabafl.processes.children import free_ports

pytestmark = pytest.mark.deploy

LIMIT = 30.0  # seconds to wait for anything
MAX_BYTES = 100_000


@dataclass
class Bed:
    """Processes that end with the test."""

    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def link(self) -> Link:
        return Link(f"127.0.0.1:{self.port}", insecure=True)

    def start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment(self.folder), stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def superlink(self) -> subprocess.Popen[bytes]:
        process = self.start(superlink_command(self.port, self.folder / "state.db"), "superlink")
        wait_for(lambda: listens(self.port))
        return process

    def device(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.deployment.toy_device", self.link.address]
        return self.start(command, f"device{len(self.processes)}")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.1)


def ask(grid: FleetGrid, node: int, content: RecordDict, kind: str = wire.TRAIN, ttl: float = 60.0) -> str:
    [message_id] = grid.push_messages([Message(content, dst_node_id=node, message_type=kind, ttl=ttl)])
    return message_id


def job(number: int, value: float = 0.0) -> RecordDict:
    return wire.encode_job(TrainingJob(number, np.full(1000, value, dtype=np.float32), PLAIN))


def answers(grid: FleetGrid, ids: list[str]) -> list[Message]:
    """The replies in the order of the messages."""
    found: dict[str, Message] = {}

    def complete() -> bool:
        for reply in grid.pull_messages([message_id for message_id in ids if message_id not in found]):
            found[reply.metadata.reply_to_message_id] = reply
        return len(found) == len(ids)

    wait_for(complete)
    return [found[message_id] for message_id in ids]


def test_jobs_failures_and_a_server_that_comes_back(bed: Bed) -> None:
    bed.superlink()
    processes = {process.pid: process for process in (bed.device(), bed.device())}
    grid = open_grid(bed.link, MAX_BYTES)
    wait_for(lambda: len(grid.get_node_ids()) == 2)
    nodes = grid.get_node_ids()

    pids = greet(grid, nodes)
    assert sorted(pids) == sorted(processes)
    check_that_resident_processes_answer(grid, nodes, pids)
    [failed] = answers(grid, [ask(grid, nodes[0], job(13))])
    assert (failed.error.code, failed.error.reason) == (2, "OSError"), "the text of the exception stays on the device"

    ticket = grid.ticket
    grid = lose_a_device_and_the_server(bed, grid, nodes, pids)
    assert grid.get_node_ids() == [nodes[1]]
    processes[pids[1]].terminate()
    assert processes[pids[1]].wait(LIMIT) == 0
    wait_for(lambda: grid.get_node_ids() == [])
    grid.finish()
    grid.close()
    with pytest.raises(RunLost):
        reopen_grid(bed.link, ticket, MAX_BYTES)


def greet(grid: FleetGrid, nodes: list[int]) -> list[int]:
    """The process IDs of the devices, which toy devices report as their number of samples."""
    hellos = answers(grid, [ask(grid, node, wire.encode_greeting(""), wire.HELLO) for node in nodes])
    return [wire.decode_hello(hello.content).samples for hello in hellos]


def check_that_resident_processes_answer(grid: FleetGrid, nodes: list[int], pids: list[int]) -> None:
    for turn in range(5):
        replies = answers(grid, [ask(grid, node, job(turn, turn + node % 7)) for node in nodes])
        for node, pid, reply in zip(nodes, pids, replies, strict=True):
            result = wire.decode_reply(reply.content, 1000)
            assert result.seconds == pid, "the same process answers every time"
            assert (result.weights == turn + node % 7 + 1).all()


def lose_a_device_and_the_server(bed: Bed, grid: FleetGrid, nodes: list[int], pids: list[int]) -> FleetGrid:
    """Kills the first device and restarts the server while both devices train; returns the new server's grid."""
    killed, kept = ask(grid, nodes[0], job(160)), ask(grid, nodes[1], job(102))
    time.sleep(1)
    ticket = grid.ticket
    grid.close()  # like SIGKILL: the SuperLink is not told
    os.kill(pids[0], signal.SIGKILL)
    grid = reopen_grid(bed.link, ticket, MAX_BYTES)
    [survivor] = answers(grid, [kept])
    assert wire.decode_reply(survivor.content, 1000).seconds == pids[1], "a reply to a message of the dead server"
    [expired] = answers(grid, [ask(grid, nodes[1], job(103), ttl=2.0)])
    assert expired.error.code == 3, "the message has expired"
    [lost] = answers(grid, [killed])
    assert lost.error.code == 5, "the device has died"
    return grid
