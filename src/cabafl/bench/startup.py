"""Time from starting `cabafl run` to its first dispatch."""

import os
import subprocess
import sys
import tempfile
import time

from cabafl.bench.timing import Spread, in_turns
from cabafl.methods.base import Server
from cabafl.methods.cabafl import CaBaFL

_MARK = "first dispatch at"


class FirstDispatch(CaBaFL):
    """CaBaFL that prints the time of its first dispatch and exits."""

    name = "first-dispatch"

    def _dispatch_waiting(self, server: Server, without: int | None = None) -> None:
        super()._dispatch_waiting(server, without)
        sys.stdout.write(f"{_MARK} {time.time()}\n")
        sys.stdout.flush()
        os._exit(0)


def _import_torch() -> float:
    started = time.time()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.time() - started


def _first_dispatch() -> float:
    words = ["run", "method.name=cabafl.bench.startup:FirstDispatch", "run.workers=2", "--quiet"]
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-P", "-m", "cabafl", *words, "--out", f"{scratch}/run"]
        started = time.time()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.rpartition(_MARK)[2]) - started


def start_up(launches: int) -> dict[str, Spread]:
    """Seconds to import torch, to the first dispatch of `cabafl run` on mnist5k, and their difference.

    Empty if ``launches`` is 0.
    """
    if not launches:
        return {}
    taken = in_turns({"torch": _import_torch, "cabafl": _first_dispatch}, launches)
    extra = [a - b for a, b in zip(taken["cabafl"], taken["torch"], strict=True)]
    return {**{name: Spread.of(values) for name, values in taken.items()}, "extra": Spread.of(extra)}
