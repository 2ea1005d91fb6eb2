"""A run at the SuperLink, driven by this process.

The process replaces the ServerApp process that Flower would start, so the SuperLink must run with
``--isolation process``. Devices and their replies are not trusted.
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from flwr.app import Error, Message, RecordDict

from cabafl.deployment.flower.carrier import MALFORMED, UNAVAILABLE
from cabafl.deployment.flower.internals import (
    PART_LIMIT,
    PIECE,
    RETRY_CAP,
    Arrival,
    Halted,
    Link,
    Retrier,
    RunConnection,
    RunLost,
    Ticket,
    UploadLost,
    content_of,
    error_of,
    make_reply,
    start_run,
)
from cabafl.deployment.heartbeat import every
from cabafl.errors import UserError

HEARTBEAT = 5.0  # seconds; the SuperLink ends a run after a minute without one
SETTLE_TIME = 2 * RETRY_CAP + 2.0  # seconds after an outage until all devices have reported to the SuperLink again
EXTRA_PARTS = 16  # parts of a reply besides its array chunks


def open_grid(link: Link, max_bytes: int) -> "FleetGrid":
    """Starts a new run. ``max_bytes`` is the size of the largest reply accepted."""
    ticket = start_run(link, Retrier())
    retrier = Retrier()
    return FleetGrid(RunConnection(link, ticket, retrier), retrier, max_bytes)


def reopen_grid(link: Link, ticket: Ticket, max_bytes: int) -> "FleetGrid":
    """Continues a run whose server died less than a minute ago; raises `RunLost` after that.

    Replies that arrived meanwhile can be pulled with the IDs of their messages.
    """
    retrier = Retrier()
    connection = RunConnection(link, ticket, retrier)
    connection.beat()
    return FleetGrid(connection, retrier, max_bytes)


class FleetGrid:
    """Messages to devices and their replies. Has the interface of Flower's grid but never waits for a device.

    For `SETTLE_TIME` after an outage of the SuperLink it pulls no replies: the SuperLink would report every device
    that has not reconnected yet as lost, together with its job.
    """

    def __init__(self, connection: RunConnection, retrier: Retrier, max_bytes: int) -> None:
        self.connection = connection
        self.max_bytes = max_bytes
        self._retrier = retrier
        self._arriving: dict[str, Arrival] = {}  # by the ID of the message they answer
        self._heartbeat = ExitStack()
        self._heartbeat.enter_context(every(HEARTBEAT, connection.beat))

    @property
    def ticket(self) -> Ticket:
        """For `reopen_grid`."""
        return self.connection.ticket

    @property
    def settling(self) -> bool:
        """Whether an outage ended less than `SETTLE_TIME` ago."""
        ended = self._retrier.outage_ended
        return ended is not None and time.monotonic() - ended <= SETTLE_TIME

    def settle(self) -> None:
        """Behaves as if an outage had just ended, because the time before is unknown."""
        self._retrier.outage_ended = time.monotonic()

    def interrupt(self) -> None:
        """Makes calls that wait for the SuperLink raise `Halted`; safe in a signal handler."""
        self._retrier.stop.set()

    @property
    def run(self) -> Any:
        """Has ``run_id``, as on Flower's grid."""
        return self.connection.run

    def get_node_ids(self) -> list[int]:
        """Devices that are online."""
        return self.connection.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Sends messages; returns their IDs, an empty one for a device unknown to the SuperLink."""
        return self.connection.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Complete replies, each returned once. A lost device, an expired or a malformed reply gives an error reply."""
        wanted = [message_id for message_id in message_ids if message_id not in self._arriving]
        if wanted:
            self.connection.beat()  # waits for the end of an outage, in which `arrivals` would report devices as lost
        if wanted and not self.settling:
            for arrival in self.connection.arrivals(wanted):
                self._arriving[arrival.envelope.metadata.reply_to_message_id] = arrival
        replies = {message_id: self._advance(arrival) for message_id, arrival in self._arriving.items()}
        complete = {message_id: message for message_id, message in replies.items() if message is not None}
        for message_id in complete:
            del self._arriving[message_id]
        return list(complete.values())

    def finish(self) -> None:
        """Ends the run: devices drop its messages."""
        self._heartbeat.close()
        self.connection.finish()

    def close(self) -> None:
        """Disconnects without ending the run, which `reopen_grid` can continue."""
        self._heartbeat.close()
        self._retrier.stop.set()
        self.connection.close()

    def _advance(self, arrival: Arrival) -> Message | None:
        """The reply once it is complete, or an error reply that says what is wrong with it."""
        content: Error | RecordDict | None = error_of(arrival)
        try:
            if content is None:
                if not self._fetch(arrival):
                    return None
                content = content_of(arrival, self.max_bytes)
        except UploadLost as error:
            return make_reply(arrival, Error(UNAVAILABLE, str(error)))
        except (RunLost, Halted, UserError):
            raise
        except Exception as error:  # a device can make decoding fail in any way
            content = Error(MALFORMED, f"malformed reply: {error}")
        self.connection.confirm(arrival)
        return make_reply(arrival, content)

    def _fetch(self, arrival: Arrival) -> bool:
        """Pulls the missing parts; returns whether all are here. Raises ValueError if the reply is too large."""
        if len(arrival.missing) + len(arrival.parts) > self.max_bytes // PIECE + EXTRA_PARTS:
            raise ValueError("too many parts")
        size = sum(len(part) for part in arrival.parts.values())
        while arrival.missing:
            part = self.connection.part(arrival.missing[0])
            if part is None:
                return False
            size += len(part)
            if size > self.max_bytes + PART_LIMIT:
                raise ValueError(f"larger than {self.max_bytes} bytes")
            arrival.parts[arrival.missing.pop(0)] = part
        return True
