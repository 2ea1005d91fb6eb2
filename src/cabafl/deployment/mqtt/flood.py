"""Devices that send far more than a run needs.

The broker has one queue for the server. A device that fills it keeps the answers of all others out, so the server stops
listening to such a device for a while.
"""

import time
from collections import Counter, deque
from collections.abc import Callable

from cabafl.deployment.mqtt.link import Packet, sender_of

WINDOW = 5.0  # seconds
MOST_MESSAGES = 2000  # of one device in a window; in a busy run of tiny models it sends a few hundred
MOST_BYTES = 256 << 20  # of one device in a window, besides four models
MUTE_TIME = 600.0  # seconds for which the server does not listen to it


class FloodGuard:
    """Counts what each device sends. `passes` is called by the network's thread, everything else by the server's."""

    def __init__(self, model_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.packet_bytes: int | None = None  # the largest packet of the broker: a model comes in such pieces
        self._model_bytes = model_bytes
        self._began = 0.0
        self._messages: Counter[int] = Counter()  # by device, in this window
        self._bytes: Counter[int] = Counter()
        self._muted: dict[int, float] = {}  # until when
        self._new: deque[int] = deque()  # muted, not yet returned by `take`

    @property
    def muted(self) -> frozenset[int]:
        """Devices that nobody listens to at the moment."""
        return frozenset(self._muted.copy())

    def passes(self, packet: Packet) -> bool:
        """Whether the server reads this packet. Constant work, because there may be very many."""
        found = sender_of(packet.topic)
        if found is None:
            return True
        device, now = found[0], self.clock()
        if device in self._muted:
            return False
        if now - self._began > WINDOW:
            self._began, self._messages, self._bytes = now, Counter(), Counter()
        self._messages[device] += 1
        self._bytes[device] += len(packet.payload)
        if self._messages[device] <= self._most_messages and self._bytes[device] <= self._most_bytes:
            return True
        self._muted[device] = now + MUTE_TIME
        self._new.append(device)
        return False

    @property
    def _most_messages(self) -> int:
        pieces = 1 if self.packet_bytes is None else -(-self._model_bytes // self.packet_bytes)
        return MOST_MESSAGES + 50 * pieces

    @property
    def _most_bytes(self) -> int:
        return MOST_BYTES + 4 * self._model_bytes

    def take(self) -> list[int]:
        """The devices that have begun to flood since the last call."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def pardon(self) -> list[int]:
        """The devices whose time is over: the server listens to them again."""
        now = self.clock()
        found = [device for device, until in self._muted.copy().items() if now > until]
        for device in found:
            del self._muted[device]
        return found
