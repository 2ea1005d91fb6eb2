"""Devices that behave oddly: ``python -m tests.deployment.odd_device SECONDS WIDTH FOLDER=HOW ...``, a thread for each.

They have neither samples nor a model: a job takes about SECONDS, a feature vector has WIDTH numbers. HOW is one of
`HOWS`.
"""

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cabafl.deployment import wire
from cabafl.deployment.device.light import LightParticipant
from cabafl.deployment.device.loop import DeviceLoop
from cabafl.deployment.device.session import Publish
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import TrainingJob, TrainingReply
from cabafl.deployment.mqtt.fleet import device_account
from cabafl.deployment.mqtt.link import up_topic

HOWS = {
    "honest": "like any other device",
    "nan": "answers with weights that are not numbers",
    "layout": "answers with one number too many",
    "silent": "never answers, and does not stop when it is told to",
    "malformed": "sends foreign bytes and damaged records, then its answer",
    "version": "speaks the next version of the protocol",
    "replay": "sends each answer three times, and its earlier ones again and again",
    "another": "answers the jobs of other devices, then its own",
    "empty": "claims to have no samples",
    "huge": "claims to have as many samples as can be written",
    "flood": "says again and again that it is here, each time as another process",
}
FLOOD = 100  # messages at once


class OddWorker(LightParticipant):
    """Computes and claims odd things."""

    def __init__(self, how: str, number: int, seconds: float, width: int) -> None:
        super().__init__(number, seconds, width)
        self.how = how

    def join(self, greeting: Greeting) -> int:
        return {"empty": 0, "huge": wire.LARGEST_COUNT}.get(self.how, super().join(greeting))

    def train(
        self, job: TrainingJob, cancelled: Callable[[], bool], finishing: Callable[[], bool] = lambda: False
    ) -> TrainingReply | None:
        if self.how == "silent":
            time.sleep(1000)
        return super().train(job, cancelled, finishing)

    def reply_for(self, job: TrainingJob) -> TrainingReply:
        reply = super().reply_for(job)
        if self.how == "nan":
            return reply._replace(weights=np.full_like(job.weights, np.nan))
        if self.how == "layout":
            return reply._replace(weights=np.zeros(len(job.weights) + 1, dtype=np.float32))
        return reply


class OddLoop(DeviceLoop):
    """Sends odd things."""

    def __init__(self, how: str, device: Device, worker: OddWorker) -> None:
        super().__init__(device.id, device_account(device), worker, Log())
        self.how = how
        self.sent: list[Publish] = []
        self._send = self.link.publish
        self.link.publish = self._publish  # type: ignore[method-assign]

    def _publish(self, topic: str, payload: bytes, retain: bool = False, expires: float | None = None) -> None:
        for each in self._twisted(Publish(topic, payload, retain)):
            self._send(each.topic, each.payload, each.retain, expires)

    def _twisted(self, action: Publish) -> list[Publish]:
        upload = action.topic == up_topic(self.session.device)
        if self.how == "version":
            return [replace(action, payload=with_version(action.payload, wire.PROTOCOL + 1))]
        if self.how == "flood" and not upload:
            return [self._presence() for _ in range(FLOOD)]
        if not upload:
            return [action]
        if self.how == "malformed":
            return [*(replace(action, payload=bad) for bad in damaged(action.payload)), action]
        if self.how == "replay":
            earlier, self.sent = self.sent, [*self.sent[-3:], action]
            return [*earlier, action, action, action]
        if self.how == "another":
            return [*(replace(action, payload=other) for other in with_other_jobs(action.payload)), action]
        return [action]

    def _presence(self) -> Publish:
        self.session.process = secrets.token_hex(8)
        return self.session.presence()


def with_version(packet: bytes, version: int) -> bytes:
    """The same packet of another version of the protocol."""
    return packet[:4] + bytes([version]) + packet[5:]


def damaged(packet: bytes) -> list[bytes]:
    """Bytes that are almost a message, or not at all."""
    return [b"", b"\x80\x04K\x01.", packet[:-3], packet + b"x", packet[:40] + b"\xff" * 60 + packet[100:], packet[:20]]


def with_other_jobs(packet: bytes) -> list[bytes]:
    """The same answer for jobs with other numbers."""
    content = wire.Assembler(1 << 40).add(packet)
    assert content is not None
    lengths = {kind: len(content) for kind in ("trained", "failed", "features", "refused")}
    with contextlib.suppress(wire.Malformed):
        record = wire.decode(content, lengths)
        if record.kind == "trained":
            size = int.from_bytes(content[:4], "little")
            vector = np.frombuffer(content[4 + size :], dtype="<f4")
            mine = record.count("job")
            others = (mine - 3, mine - 2, mine - 1, mine + 1, mine + 2)
            return [wire.encode("trained", {**record.values, "job": job}, vector)[0] for job in others if job >= 0]
    return []


def main(words: list[str]) -> None:
    """The command line above."""
    seconds, width, *devices = words
    threads = []
    for folder, _, how in (word.rpartition("=") for word in devices):
        assert how in HOWS
        own = Device.load(Path(folder))
        loop = OddLoop(how, own, OddWorker(how, own.id, float(seconds), int(width)))
        threads.append(threading.Thread(target=loop.run))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
