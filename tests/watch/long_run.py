"""Event logs of any length, as CaBaFL writes them."""

import heapq
import json
import random
from pathlib import Path

SLOTS, K = 10, 10


def write_events(file: Path, events: int, devices: int = 100, seed: int = 1) -> None:
    """At least ``events`` lines."""
    draw, job, version, length = random.Random(seed), 0, 0, 0
    trained = [0] * SLOTS
    queue: list[tuple[float, int, int, int, int]] = []

    def dispatch(now: float, slot: int) -> str:
        nonlocal job
        device, due = draw.randrange(devices), now + draw.uniform(5, 50)
        heapq.heappush(queue, (due, job, device, slot, version))
        job += 1
        return (
            f'{{"time":{now!r},"event":"dispatch","job":{job - 1},"device":{device},"slot":{slot},'
            f'"version":{version},"due":{due!r}}}'
        )

    with file.open("w") as log:
        lines = [dispatch(0.0, slot) for slot in range(SLOTS)]
        written = 0
        while written + len(lines) < events:
            now, number, device, slot, sent = heapq.heappop(queue)
            stamp, length = f'{{"time":{now!r},"event":', length + 1
            trained[slot] += 1
            lines.append(
                f'{stamp}"upload","job":{number},"device":{device},"slot":{slot},"version":{sent},'
                f'"staleness":{version - sent}}}'
            )
            rank, accepted = draw.randrange(length) + 1, draw.random() < 0.8
            lines.append(
                f'{stamp}"cache","slot":{slot},"trained":{trained[slot]},"similarity":{draw.random()!r},"rank":{rank},'
                f'"length":{length},"accepted":{str(accepted).lower()}}}'
            )
            if trained[slot] == K:
                version, trained[slot] = version + 1, 0
                weights = json.dumps([draw.random() for _ in range(SLOTS)])
                lines.append(f'{stamp}"publish","version":{version},"slot":{slot},"weights":{weights}}}')
            else:
                lines.append(f'{stamp}"select","slot":{slot},"device":1,"candidates":90,"score":{draw.random()!r}}}')
            lines.append(dispatch(now, slot))
            if len(lines) > 20_000:
                log.write("\n".join(lines) + "\n")
                written += len(lines)
                lines.clear()
        log.write("\n".join(lines) + "\n")
