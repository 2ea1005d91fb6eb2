"""Server-sent events: what has changed, once a second."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import version
from typing import Any

from starlette.concurrency import run_in_threadpool

from cabafl.watch.overview import Overview, as_json
from cabafl.watch.watched import WatchedRun

INTERVAL = 1.0  # seconds
SILENCE = 15.0  # seconds after which a comment keeps the connection open
HEAD = ("id", "generation", "rows", "events", "time", "state", "indexed")


def head(run: WatchedRun) -> dict[str, Any]:
    """What tells a page that a run has changed."""
    return {
        "id": run.id,
        "generation": run.generation,
        "rows": len(run.evaluations),
        "events": run.index.events,
        "time": run.time,
        "state": run.state,
        "indexed": run.indexed,
    }


def message(event: str, data: Any) -> bytes:
    """One event of the stream. JSON has no line breaks, so that no text can begin another one."""
    return b"event: " + event.encode() + b"\ndata: " + as_json(data) + b"\n\n"


async def changes(overview: Overview, runs: Sequence[str], goes_on: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The stream: a greeting, then whatever changes in the overview and in ``runs``, while ``goes_on``."""
    revision = await run_in_threadpool(overview.refresh)
    yield message("hello", {"revision": revision, "version": version("cabafl")})
    heads: dict[str, Any] = {}
    said = time.monotonic()
    while goes_on():
        pieces = []
        newest = await run_in_threadpool(overview.refresh)
        if newest != revision:
            pieces.append(message("runs", await run_in_threadpool(overview.changes, revision)))
            revision = newest
        for name in runs:
            run = overview.shelf.runs.get(name)
            if run is not None and (now := head(run)) != heads.get(name):
                overview.shelf.open(run)
                heads[name] = now
                pieces.append(message("run", now))
        if not pieces and time.monotonic() - said > SILENCE:
            pieces.append(b": still here\n\n")
        if pieces:
            said = time.monotonic()
            yield b"".join(pieces)
        await asyncio.sleep(INTERVAL)
