"""Many light devices in one process: real sessions with real TLS that train nothing.

``python -m cabafl.bench.light_fleet FLEET FIRST COUNT SECONDS WIDTH`` plays ``COUNT`` devices of a fleet folder, from
number ``FIRST`` on; a job takes about ``SECONDS``, a feature vector has ``WIDTH`` numbers.
"""

import heapq
import queue
import secrets
import signal
import sys
import time
from pathlib import Path

from cabafl.deployment.device.light import LightParticipant
from cabafl.deployment.device.loop import WILL_DELAY
from cabafl.deployment.device.session import (
    Action,
    Complain,
    Describe,
    Fetch,
    Finish,
    Join,
    Leave,
    Publish,
    Session,
    Stop,
    Train,
)
from cabafl.deployment.folder.layout import Device, FleetFolder
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.mqtt.fleet import device_account
from cabafl.deployment.mqtt.link import Connected, Incoming, Link, Packet, Will
from cabafl.errors import UserError

CONNECT_PAUSE = 0.005  # seconds between two devices: a TLS handshake costs the broker milliseconds


class LightDevice:
    """One device: a session, a connection, and the job it works on."""

    def __init__(self, device: Device, seconds: float, width: int, inbox: "Inbox") -> None:
        self.session = Session(device.id, secrets.token_hex(8))
        self.participant = LightParticipant(device.id, seconds, width)
        self.job: int | None = None
        will = self.session.absence()

        def deliver(item: Incoming | None) -> None:
            inbox.put((self, item))

        self.link = Link(device_account(device), Will(will.topic, will.payload, WILL_DELAY), deliver=deliver)

    def take(self, item: Incoming | None) -> list[Action]:
        """What follows from what has arrived."""
        if isinstance(item, Connected):
            self.link.subscribe(*self.session.subscriptions)
            return self.session.connected(self.link.packet_limit)
        if isinstance(item, Packet):
            return self.session.take(item.topic, item.payload)
        return []

    def act(self, action: Action) -> Train | None:
        """Carries an action out; returns a job that is to be answered later."""
        if isinstance(action, Publish):
            self.link.publish(action.topic, action.payload, action.retain)
        elif isinstance(action, Fetch):
            (self.link.subscribe if action.on else self.link.unsubscribe)(f"{action.topic}/+")
        elif isinstance(action, Join):
            self._join(action)
        elif isinstance(action, Train):
            self.job = action.job.number
            return action
        elif isinstance(action, Stop):
            self._stop(action.job)
        elif isinstance(action, Describe):
            self._all(self.session.describe(action.query.number, self.participant.features(action.query)))
        elif isinstance(action, Leave):
            self.job = None
        else:
            assert isinstance(action, Complain | Finish)  # it takes its time
        return None

    def _join(self, action: Join) -> None:
        self.job = None
        try:
            greeting = Greeting.read(action.greeting)
        except (UserError, ValueError) as error:  # the other devices of this process go on
            self._all(self.session.decline(str(error)))
        else:
            samples = self.participant.join(greeting)
            self._all(self.session.joined(action.run, greeting.weights, samples))

    def _stop(self, job: int) -> None:
        if self.job is not None and self.job <= job:
            cancelled, self.job = self.job, None
            self._all(self.session.fail(cancelled, "cancelled", "cancelled"))

    def answer(self, task: Train) -> None:
        """Ends a job, unless another one has come meanwhile."""
        if self.job == task.job.number:
            self.job = None
            reply = self.participant.reply_for(task.job)
            self._all(self.session.answer(task.job.number, reply, task.job.objective.hold))

    def _all(self, actions: list[Action]) -> None:
        for action in actions:
            self.act(action)


Inbox = queue.SimpleQueue[tuple[LightDevice, Incoming | None]]


def play(fleet: FleetFolder, numbers: range, seconds: float, width: int) -> None:
    """Plays these devices until the process ends."""
    inbox: Inbox = queue.SimpleQueue()
    folders = fleet.device_folders()
    for number in numbers:
        LightDevice(Device.load(folders[number]), seconds, width, inbox).link.open()
        time.sleep(CONNECT_PAUSE)
    agenda: list[tuple[float, int, LightDevice, Train]] = []
    serial = 0
    while True:
        while agenda and agenda[0][0] <= time.monotonic():
            _, _, device, task = heapq.heappop(agenda)
            device.answer(task)
        wait = max(0.0, agenda[0][0] - time.monotonic()) if agenda else 1.0
        try:
            device, item = inbox.get(timeout=wait)
        except queue.Empty:
            continue
        for action in device.take(item):
            job = device.act(action)
            if job is not None:
                serial += 1
                due = time.monotonic() + device.participant.delay(job.job)
                heapq.heappush(agenda, (due, serial, device, job))


def main(words: list[str]) -> None:
    """The command line above."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folder, first, count, seconds, width = words
    numbers = range(int(first), int(first) + int(count))
    play(FleetFolder.load(Path(folder)), numbers, float(seconds), int(width))


if __name__ == "__main__":
    main(sys.argv[1:])
