"""Drives a run on real devices: polls the network, writes the status, recovers from outages."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cabafl.deployment.flower.carrier import FlowerCarrier, Grid, reply_limit
from cabafl.deployment.server.carrier import Forgotten, Interrupted, TemporaryFailure
from cabafl.deployment.server.dispatcher import Dispatcher
from cabafl.deployment.server.status import StatusFile
from cabafl.engine.checkpoint import Checkpoint
from cabafl.lifecycle.run import Lifecycle

POLL_INTERVAL = 0.15  # seconds
RETRY_DELAY = 2.0  # seconds between a failed network call and the next attempt


class Transport(Protocol):
    """Opens the grid of a run, at the start and again after the network has forgotten the run."""

    def nodes(self) -> Mapping[int, int]:
        """Network nodes by device; the network admits exactly these."""

    def open(self, max_bytes: int, resumed: bool, again: bool = False) -> Grid:
        """A grid that accepts replies of at most ``max_bytes`` bytes. ``resumed``: reuse the grid of an earlier process
        if it still exists; ``again``: make a new one in any case."""

    def interrupt(self) -> None:
        """Makes calls that wait for the network raise `Interrupted`; called by a signal handler."""

    def close(self, finished: bool) -> None:
        """Ends the run on the network if it is finished; otherwise a later process can continue it."""


class FleetDriver:
    """The `Driver` of a run on real devices, whose answers move the run on."""

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

    def carry_out(self, run: Lifecycle, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """Runs to the end and returns the summary. However the run ends, the status file says so and the network
        connection is closed."""
        finished = False
        try:
            summary = run.carry_out(self, checkpoint)
            finished = True
            self.journal.discard()
        finally:
            self.status.write("complete" if finished else "stopped")
            self.transport.close(finished)
        return summary

    def begin(self, state: dict[str, Any] | None) -> None:
        """Restores the checkpoint, replays the inputs journaled after it, and resumes where the journal ends."""
        now = 0.0
        if state is not None:
            self.engine.restore(state)
            now = self.engine.now
        for _, given in self.journal.inputs(0 if state is None else state["journal"]):
            self.dispatcher.replay(given)
            now = max(now, given.time)
        if self.journal.length:
            self._retry(lambda: self.dispatcher.resume(now))

    def step(self) -> bool:
        """Polls the network once and sleeps if nothing happened. Returns False when the run is over."""
        if self._over():
            return False
        before = self.journal.length
        self._retry(self.dispatcher.step)
        self.status.update()
        if self.journal.length == before:
            time.sleep(POLL_INTERVAL)
        return True

    def _over(self) -> bool:
        limit = self.engine.limits.seconds
        if limit is not None and self.dispatcher.now() >= limit:
            self.engine.pass_time(limit)
        return self.engine.started and self.engine.over

    def state(self) -> dict[str, Any] | None:
        """The engine's state and the number of inputs it includes; None before the run has started."""
        if not self.engine.started:
            return None
        self.journal.cut()
        return self.engine.state() | {"journal": self.journal.length}

    def saved(self, state: dict[str, Any]) -> None:
        """The checkpoint includes all inputs that were journaled when its state was taken."""
        self.journal.forget(state["journal"])

    def wake(self) -> None:
        """Gives up waiting for the network; called by a signal handler."""
        self.transport.interrupt()

    def _retry(self, call: Callable[[], object]) -> None:
        """Repeats a call until it succeeds or the run is asked to stop. If the network has forgotten the run, sends
        all jobs under way again."""
        while True:
            self.check_stop()
            try:
                call()
                return
            except Forgotten:
                self.dispatcher.warn("the network has forgotten this run: jobs under way are sent again")
                call = self._reconnect
            except TemporaryFailure as error:
                self.dispatcher.warn(f"a network call failed: {error}; trying again")
                time.sleep(RETRY_DELAY)
            except Interrupted:
                pass  # caused by `wake`: `check_stop` ends the run

    def _reconnect(self) -> None:
        self.carrier.grid = self.transport.open(reply_limit(self.carrier.length), resumed=True, again=True)
        self.dispatcher.resume(self.dispatcher.now())
