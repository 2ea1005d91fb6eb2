"""Event logs of any length, as CaBaFL writes them."""

import heapq
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

SLOTS, K = 10, 10


class LongRun:
    """Draws jobs that never end."""

    def __init__(self, devices: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.devices = devices
        self.jobs = self.version = self.length = 0
        self.trained = [0] * SLOTS
        self.queue: list[tuple[float, int, int, int, int]] = []

    def lines(self) -> Iterator[str]:
        """Its events."""
        for slot in range(SLOTS):
            yield self._sent(0.0, slot)
        while True:
            yield from self._upload(*heapq.heappop(self.queue))

    def _sent(self, now: float, slot: int) -> str:
        device, due, job = self.draw.randrange(self.devices), now + self.draw.uniform(5, 50), self.jobs
        heapq.heappush(self.queue, (due, job, device, slot, self.version))
        self.jobs += 1
        return (
            f'{{"time":{now!r},"event":"dispatch","job":{job},"device":{device},"slot":{slot},'
            f'"version":{self.version},"due":{due!r}}}'
        )

    def _upload(self, now: float, job: int, device: int, slot: int, sent: int) -> Iterator[str]:
        draw, begin = self.draw, f'{{"time":{now!r},"event":'
        self.length += 1
        self.trained[slot] += 1
        stale, rank, accepted = self.version - sent, draw.randrange(self.length) + 1, draw.random() < 0.8
        yield f'{begin}"upload","job":{job},"device":{device},"slot":{slot},"version":{sent},"staleness":{stale}}}'
        yield (
            f'{begin}"cache","slot":{slot},"trained":{self.trained[slot]},"similarity":{draw.random()!r},'
            f'"rank":{rank},"length":{self.length},"accepted":{str(accepted).lower()}}}'
        )
        if self.trained[slot] == K:
            self.version, self.trained[slot] = self.version + 1, 0
            weights = json.dumps([draw.random() for _ in range(SLOTS)])
            yield f'{begin}"publish","version":{self.version},"slot":{slot},"weights":{weights}}}'
        else:
            yield f'{begin}"select","slot":{slot},"device":1,"candidates":90,"score":{draw.random()!r}}}'
        yield self._sent(now, slot)


def write_events(file: Path, events: int, devices: int = 100, seed: int = 1) -> None:
    """Writes so many lines."""
    with file.open("w") as log:
        log.writelines(f"{line}\n" for line in islice(LongRun(devices, seed).lines(), events))
