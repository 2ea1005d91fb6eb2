"""The dispatcher on a simulated network: devices crash, lie, vanish and return; the server is killed."""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cabafl.deployment.messages import Answer, FeatureReply, Hello, TrainingReply, Trouble
from cabafl.deployment.server.dispatcher import Dispatcher
from cabafl.engine.journal import Journal
from cabafl.methods.base import FeatureKind, Job, Weights
from cabafl.recording.events import Event, Lost, Uploaded
from cabafl.rng import rng
from tests.fleet_play import DEVICES, FEATURES, SIZES, trained, wall_engine

NODES = {100 + device: device for device in range(DEVICES)}


class Network:
    """Time advances in steps. Answers stay in the network until they are fetched, once."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.draw = rng(seed, "network")
        self.online = set(NODES)
        self.mail: dict[str, tuple[float, Any]] = {}  # message: arrival time and content of the answer
        self.sent: list[tuple[int, Job]] = []
        self.fetched: Counter[str] = Counter()
        self.bad: dict[int, Any] = {}  # device: its answer to jobs
        self.fresh: set[int] = set(NODES)  # nodes whose process was not greeted yet
        self.settling = False
        self.network = "here"

    def post(self, node: int, seconds: float, content: Any) -> str:
        name = f"m{len(self.mail)}"
        self.mail[name] = (self.now + seconds, content)
        self.mail[name + "@"] = (node, None)
        return name

    def nodes(self) -> set[int]:
        return set(self.online)

    def greet(self, node: int) -> str:
        fresh = node in self.fresh
        self.fresh.discard(node)
        return self.post(node, 0.1, Hello(SIZES[NODES[node]], fresh))

    def send(self, node: int, job: Job) -> str:
        self.sent.append((node, job))
        device = NODES[node]
        content = TrainingReply(trained(job.number, job.weights), 1.0, 2.0, None)
        if device in self.bad:
            content = self.bad[device]
        return self.post(node, float(self.draw.uniform(0.5, 4.0)), content)

    def ask(self, node: int, weights: Weights, kind: FeatureKind) -> str:
        return self.post(node, 0.3, FeatureReply(FEATURES[NODES[node]]))

    def receive(self, messages: Collection[str]) -> list[Answer]:
        found = []
        for name in messages:
            when, content = self.mail[name]
            if self.fetched[name]:
                found.append(Answer(name, Trouble("unknown", "fetched before")))
            elif self.mail[name + "@"][0] not in self.online:
                found.append(Answer(name, Trouble("crash", "node is offline")))
            elif when <= self.now and content is not None:
                found.append(Answer(name, content))
            else:
                continue
            self.fetched[name] += 1
        return found


def serve(
    network: Network,
    folder: Path,
    name: str = "fedasync",
    enough: int = DEVICES,
    nodes: Mapping[int, int] = NODES,
) -> tuple[Dispatcher, list[Event]]:
    """A server that continues from the journal in ``folder``, and the list of its events."""
    events: list[Event] = []
    journal = Journal(folder)
    server = Dispatcher(
        wall_engine(name, events.append),
        network,
        journal,
        nodes,
        enough=enough,
        clock=lambda: network.now,
        warn=lambda text: None,
    )
    if journal.length:
        now = 0.0
        for _, given_input in journal.inputs():
            server.replay(given_input)
            now = given_input.time
        server.resume(now)
    return server, events


def run(server: Dispatcher, network: Network, until: float) -> None:
    while network.now < until:
        server.step()
        network.now += 0.05


def uploads(events: list[Event]) -> list[int]:
    return [e.job for e in events if isinstance(e, Uploaded)]


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.lists(st.floats(0.0, 20.0), max_size=4))
def test_a_server_killed_at_any_moment_counts_every_upload_once(
    tmp_path_factory: Any, seed: int, kills: list[float]
) -> None:
    """Including between fetching an answer and journaling it: that job is sent again."""
    folder = tmp_path_factory.mktemp("run")
    network = Network(seed)
    server, events = serve(network, folder, "cabafl")
    for moment in sorted(kills):
        run(server, network, moment)
        if server.started and int(moment * 10) % 2:
            network.now += 1.0
            waiting = [*server._jobs]
            network.receive(waiting)  # fetched, then killed before anything is journaled
        network.now += 0.5
        server.journal.close()
        server, events = serve(network, folder, "cabafl")
    run(server, network, 30.0)
    counted = uploads(events)
    assert len(counted) == len(set(counted)) == server.engine.ledger.uploads
    assert not [e for e in events if isinstance(e, Lost)]
    assert len(counted) > 5
    jobs = {job.number for _, job in network.sent}
    assert jobs == set(counted) | server.engine.flights.keys()  # no job is lost


def test_faulty_jobs_are_lost_and_the_run_continues(tmp_path: Path) -> None:
    network = Network(3)
    network.online = set(NODES) - {107}
    network.bad = {
        0: Trouble("crash", "SIGKILL"),
        1: None,  # never answers
        2: TrainingReply(np.full(4, np.nan, dtype=np.float32), 1.0, 2.0, None),
        3: TrainingReply(np.zeros(5, dtype=np.float32), 1.0, 2.0, None),
        4: Trouble("rejected", "not an array"),
        5: FeatureReply(FEATURES[0]),
    }
    server, events = serve(network, tmp_path, enough=DEVICES - 1)
    server.engine.limits = type(server.engine.limits)(seconds=60.0, evaluate_every=7.0, slot_timeout=6.0)
    run(server, network, 20.0)
    network.online.add(107)  # a new device
    run(server, network, 40.0)
    network.online -= {106}  # one of the two good devices leaves
    run(server, network, 59.0)
    reasons = Counter(e.reason for e in events if isinstance(e, Lost))
    assert reasons.keys() >= {"crash", "timeout", "rejected"}
    assert server.engine.present == {0, 1, 2, 3, 4, 5, 7}
    assert np.isfinite(server.engine.model).all()
    good = {job.device for _, job in network.sent if job.device >= 6}
    assert good == {6, 7}
    assert {e.device for e in events if isinstance(e, Uploaded)} <= good
    assert len(uploads(events)) > 3


def lost(events: list[Event]) -> list[tuple[int, str]]:
    return [(e.device, e.reason) for e in events if isinstance(e, Lost)]


def test_a_process_that_restarted_unnoticed_loses_its_job_and_rejoins(tmp_path: Path) -> None:
    network = Network(3)
    network.bad = {0: None}  # never answers
    server, events = serve(network, tmp_path)
    run(server, network, 20.0)
    [stuck] = [f.number for f in server.engine.flights.values() if f.device == 0]
    network.fresh.add(100)  # restarted between two checks of the nodes
    network.bad = {}
    server._greeted_at[0] = network.now - 301.0
    run(server, network, 40.0)
    assert lost(events) == [(0, "crash")]
    assert any(job.device == 0 and job.number > stuck for _, job in network.sent)


def test_a_device_that_trains_for_long_is_greeted_again_and_keeps_its_job(tmp_path: Path) -> None:
    network = Network(3)
    network.bad = {0: None}
    server, events = serve(network, tmp_path)
    run(server, network, 20.0)
    server._greeted_at[0] = network.now - 301.0
    run(server, network, 30.0)
    assert lost(events) == []
    assert any(f.device == 0 for f in server.engine.flights.values())


def test_a_job_unknown_to_the_network_is_sent_again_a_few_times(tmp_path: Path) -> None:
    network = Network(3)
    network.bad = {0: Trouble("unknown", "no such message")}
    server, events = serve(network, tmp_path)
    run(server, network, 58.0)
    sent = Counter(job.number for _, job in network.sent if job.device == 0)
    assert set(lost(events)) == {(0, "crash")}
    assert set(sent.values()) <= {1, 2, 3, 4}
    assert 4 in sent.values()


def test_no_device_is_lost_while_the_network_comes_back(tmp_path: Path) -> None:
    network = Network(3)
    server, events = serve(network, tmp_path)
    run(server, network, 10.0)
    network.settling, online = True, network.online
    network.nodes = lambda: set()  # type: ignore[method-assign]
    run(server, network, 20.0)
    assert lost(events) == []
    network.settling = False
    network.nodes = lambda: set(online)  # type: ignore[method-assign]
    run(server, network, 30.0)
    assert lost(events) == []
    assert server.engine.present == set(range(DEVICES))


def test_a_device_that_joins_during_the_first_collection_waits_for_its_end(tmp_path: Path) -> None:
    network = Network(3)
    network.online = set(NODES) - {107}
    server, events = serve(network, tmp_path, "cabafl", enough=DEVICES - 1)
    network.ask = lambda node, weights, kind: network.post(node, 8.0, FeatureReply(FEATURES[NODES[node]]))  # type: ignore[method-assign]
    run(server, network, 2.0)
    network.online.add(107)
    run(server, network, 30.0)
    assert lost(events) == []
    assert len(uploads(events)) > 5


def test_a_device_banned_during_a_collection(tmp_path: Path) -> None:
    network = Network(3)
    server, _ = serve(network, tmp_path, "cabafl")
    network.ask = lambda node, weights, kind: network.post(node, 5.0, FeatureReply(FEATURES[NODES[node]]))  # type: ignore[method-assign]
    run(server, network, 1.0)
    assert server.engine.question is not None
    server.journal.close()
    remaining = {node: device for node, device in NODES.items() if device != 2}
    server, events = serve(network, tmp_path, "cabafl", nodes=remaining)
    run(server, network, 30.0)
    assert 2 not in server.engine.present
    assert not any(job.device == 2 for _, job in network.sent)
    assert len(uploads(events)) > 5
