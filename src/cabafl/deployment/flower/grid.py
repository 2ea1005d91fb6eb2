"""The server side: a run at the SuperLink, driven by a process of ours.

The process takes the place of the ServerApp process Flower would start: the SuperLink must run with
``--isolation process``. Devices and their replies are not trusted.
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from flwr.app import Error, Message, RecordDict

from cabafl.deployment.flower.internals import (
    PART_LIMIT,
    PIECE,
    RETRY_CAP,
    Arrival,
    Halted,
    Link,
    Patience,
    RunConnection,
    RunLost,
    Ticket,
    UploadLost,
    content_of,
    error_of,
    reply,
    start_run,
)
from cabafl.deployment.heartbeat import every
from cabafl.errors import UserError

MALFORMED = 0  # error codes of replies, as Flower numbers them
UNAVAILABLE = 3
BEAT = 5.0  # seconds between two signs of life; the SuperLink ends a run after a minute without
GRACE = 2 * RETRY_CAP + 2.0  # seconds after an outage in which the SuperLink may not have heard of all devices again


def open_grid(link: Link, max_bytes: int) -> "FleetGrid":
    """A grid with a new run. ``max_bytes`` is the largest reply accepted."""
    ticket = start_run(link, Patience())
    patience = Patience()
    return FleetGrid(RunConnection(link, ticket, patience), patience, max_bytes)


def reopen_grid(link: Link, ticket: Ticket, max_bytes: int) -> "FleetGrid":
    """The grid of a run whose server died less than a minute ago; raises `RunLost` later than that.

    Replies that arrived meanwhile are there for whoever knows the ids of the messages.
    """
    patience = Patience()
    connection = RunConnection(link, ticket, patience)
    connection.beat()
    return FleetGrid(connection, patience, max_bytes)


class FleetGrid:
    """Messages to devices and their replies, as Flower's own grid has them, but it never waits for a device.

    After an outage of the SuperLink nothing is asked for a while: devices it has not heard of yet would be taken for
    lost, with their jobs.
    """

    def __init__(self, connection: RunConnection, patience: Patience, max_bytes: int) -> None:
        self.connection = connection
        self.max_bytes = max_bytes
        self._patience = patience
        self._arriving: dict[str, Arrival] = {}
        self._heart = ExitStack()
        self._heart.enter_context(every(BEAT, connection.beat))

    @property
    def ticket(self) -> Ticket:
        """For `reopen_grid`."""
        return self.connection.ticket

    @property
    def settling(self) -> bool:
        """Whether the SuperLink was away a moment ago."""
        ended = self._patience.outage_ended
        return ended is not None and time.monotonic() - ended <= GRACE

    def settle(self) -> None:
        """Nothing is known about the time before: as after an outage."""
        self._patience.outage_ended = time.monotonic()

    def interrupt(self) -> None:
        """Ends all waiting for the SuperLink; may be called by a signal."""
        self._patience.stop.set()

    @property
    def run(self) -> Any:
        """As of Flower's grid: has ``run_id``."""
        return self.connection.run

    def get_node_ids(self) -> list[int]:
        """Devices that are present."""
        return self.connection.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Sends; the ids of the messages, empty for a device the SuperLink does not know."""
        return self.connection.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have arrived whole, each once. A lost device, an expired or a malformed reply is an error."""
        wanted = [message_id for message_id in message_ids if message_id not in self._arriving]
        if wanted:
            self.connection.beat()  # waits an outage out: the next call would take every device for lost
        if wanted and not self.settling:
            for arrival in self.connection.arrivals(wanted):
                self._arriving[arrival.envelope.metadata.reply_to_message_id] = arrival
        replies = {message_id: self._advance(arrival) for message_id, arrival in self._arriving.items()}
        whole = {message_id: message for message_id, message in replies.items() if message is not None}
        for message_id in whole:
            del self._arriving[message_id]
        return list(whole.values())

    def finish(self) -> None:
        """Ends the run: devices drop what they still have of it."""
        self._heart.close()
        self.connection.finish()

    def close(self) -> None:
        """Leaves the run to whoever reopens it."""
        self._heart.close()
        self._patience.stop.set()
        self.connection.close()

    def _advance(self, arrival: Arrival) -> Message | None:
        """The reply if all of it is there, or what is wrong with it."""
        content: Error | RecordDict | None = error_of(arrival)
        try:
            if content is None:
                if not self._fetch(arrival):
                    return None
                content = content_of(arrival, self.max_bytes)
        except UploadLost as error:
            return reply(arrival, Error(UNAVAILABLE, str(error)))
        except (RunLost, Halted, UserError):
            raise
        except Exception as error:  # whatever a device can make of a message
            content = Error(MALFORMED, f"malformed reply: {error}")
        self.connection.confirm(arrival)
        return reply(arrival, content)

    def _fetch(self, arrival: Arrival) -> bool:
        """Whether nothing is missing any more; raises when there is more than accepted."""
        if len(arrival.missing) + len(arrival.parts) > self.max_bytes // PIECE + 16:
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
