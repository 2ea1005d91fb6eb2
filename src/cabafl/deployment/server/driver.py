"""Drives a run over real devices: polls the network, writes the status, recovers from outages."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cabafl.deployment.flower.carrier import FlowerCarrier, Grid, most_bytes
from cabafl.deployment.server.carrier import Forgotten, Hiccup, Interrupted
from cabafl.deployment.server.dispatcher import Dispatcher
from cabafl.deployment.server.status import StatusFile
from cabafl.engine.checkpoint import Checkpoint
from cabafl.lifecycle.run import Lifecycle

POLL = 0.15  # seconds between two looks for answers
HICCUP = 2.0  # seconds after a failed call of the network


class Transport(Protocol):
    """Opens the grid of a run, the first time and after the network has lost its memory."""

    def nodes(self) -> Mapping[int, int]:
        """Nodes of the network by device; exactly these are admitted."""

    def open(self, max_bytes: int, resumed: bool, again: bool = False) -> Grid:
        """A grid whose replies have at most ``max_bytes`` bytes. ``resumed``: the grid of an earlier process if it
        still exists; with ``again`` always a new one."""

    def interrupt(self) -> None:
        """Gives up calls that wait for the network; called by a signal handler."""

    def close(self, finished: bool) -> None:
        """Leaves the run to a later process, or ends it for good."""


class FleetDriver:
    """A run on real devices moves on by what they answer: see `lifecycle.run.Driver`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        carrier: FlowerCarrier,
        transport: Transport,
        status: StatusFile,
        check_stop: Callable[[], None],
    ) -> None:
        self.dispatcher = dispatcher
        self.carrier = carrier
        self.engine = dispatcher.engine
        self.journal = dispatcher.journal
        self.transport = transport
        self.status = status
        self.check_stop = check_stop
        self.wake = transport.interrupt

    def carry_out(self, run: Lifecycle, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """The whole run; says how it ended in the status file and leaves the network."""
        finished = False
        try:
            summary = run.carry_out(self, checkpoint)
            finished = True
        finally:
            self.status.write("complete" if finished else "stopped")
            self.transport.close(finished)
        return summary

    def begin(self, state: dict[str, Any] | None) -> None:
        """Handles again the inputs that came after the checkpoint, then goes on where the journal ends."""
        now = 0.0
        if state is not None:
            self.engine.restore(state)
            now = self.engine.now
        for given in self.journal.inputs(0 if state is None else state["journal"]):
            self.dispatcher.replay(given)
            now = max(now, given.time)
        if self.journal.length:
            self._try(lambda: self.dispatcher.resume(now))

    def step(self) -> bool:
        """One look around; a pause when nothing happened."""
        if self._over():
            return False
        before = self.journal.length
        self._try(self.dispatcher.step)
        self.status.update()
        if self.journal.length == before:
            time.sleep(POLL)
        return True

    def _over(self) -> bool:
        limit = self.engine.limits.seconds
        if limit is not None and self.dispatcher.now() >= limit:
            self.engine.pass_time(limit)
        return self.engine.started and self.engine.over

    def state(self) -> dict[str, Any] | None:
        """The engine's state and how much of the journal is in it."""
        return self.engine.state() | {"journal": self.journal.length} if self.engine.started else None

    def saved(self) -> None:
        """The checkpoint holds everything in the journal so far."""
        self.journal.forget(self.journal.length)

    def _try(self, work: Callable[[], object]) -> None:
        """Repeats a call until it succeeds or the run is to stop. A network that has lost its memory gets all jobs
        under way again."""
        while True:
            self.check_stop()
            try:
                work()
                return
            except Forgotten:
                self.dispatcher.warn("the network has forgotten this run: jobs under way are sent again")
                work = self._reconnect
            except Hiccup as error:
                self.dispatcher.warn(f"the network does not do its part: {error}; trying again")
                time.sleep(HICCUP)
            except Interrupted:
                pass  # by `wake`; the next turn of the loop ends the run

    def _reconnect(self) -> None:
        self.carrier.grid = self.transport.open(most_bytes(self.carrier.length), resumed=True, again=True)
        self.dispatcher.resume(self.dispatcher.now())
