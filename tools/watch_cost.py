"""What `--watch` costs a run: `python tools/watch_cost.py --pairs 5`.

Runs the same simulation with and without a page, in turn, and prints the wall time of each, the processor time of the
run itself, and that of the page's process, with somebody looking at the page once a second. Use an idle machine: on a
busy one the wall times say more about the others.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from urllib.parse import urlsplit

SETTINGS = ["data.dataset=synthetic", "data.devices=100", "model.name=mlp", "run.evaluate_every=20"]
VIEWS = ("", "/curves", "/fleet", "/method")


@dataclass
class Cost:
    """Seconds."""

    wall: float = 0.0
    run: float = 0.0  # of the processor
    page: float = 0.0


def processor_seconds(pid: int) -> float | None:
    """Of a process that runs; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page_process(parent: int) -> int:
    """The child that serves the page."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8").split()
    return next(int(child) for child in children if b"--beside" in Path(f"/proc/{child}/cmdline").read_bytes())


def look(url: str) -> None:
    """What a browser asks once a second, as long as there is a server. Takes little of the processor itself: it keeps
    its connection, and looks into no answer but the first."""
    connection, run = http.client.HTTPConnection(urlsplit(url).netloc), None

    def ask(path: str) -> bytes:
        connection.request("GET", path)
        return connection.getresponse().read()

    try:
        while True:
            runs = ask("/api/runs")
            if run is None:
                run = next((found["id"] for found in json.loads(runs)["runs"]), None)
            for view in VIEWS if run is not None else ():
                ask(f"/api/runs/{run}{view}")
            time.sleep(1.0)
    except (http.client.HTTPException, OSError, ValueError):
        return


def measure(folder: Path, seconds: float, workers: str, watched: bool) -> Cost:
    """One run."""
    words = [*SETTINGS, f"run.virtual_time={seconds}", f"run.workers={workers}", "--quiet", "--out", str(folder)]
    command = [sys.executable, "-P", "-m", "cabafl", "run", *words, *(["--watch"] if watched else [])]
    began, cost, page = time.perf_counter(), Cost(), None
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        if watched:
            assert process.stderr is not None
            url = process.stderr.readline().split()[1]
            page = page_process(process.pid)
            threading.Thread(target=look, args=(url,), daemon=True).start()
        while process.poll() is None:
            cost.run = processor_seconds(process.pid) or cost.run
            cost.page = cost.page if page is None else processor_seconds(page) or cost.page
            time.sleep(0.05)
        cost.wall = time.perf_counter() - began
    return cost


def main() -> None:
    """Prints a line per run, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5000.0, help="virtual time of each run")
    parser.add_argument("--workers", default="auto")
    given = parser.parse_args()
    costs: dict[bool, list[Cost]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(given.pairs):
            for watched in (False, True) if pair % 2 else (True, False):
                cost = measure(Path(folder) / f"{pair}-{watched}", given.seconds, given.workers, watched)
                costs[watched].append(cost)
                print(f"{'watched' if watched else 'alone':8} {cost.wall:8.2f} {cost.run:8.2f} {cost.page:8.2f}")  # noqa: T201
    for name in ("wall", "run"):
        alone, watched_mean = (mean(getattr(cost, name) for cost in costs[watched]) for watched in (False, True))
        print(f"{name}: {100 * (watched_mean / alone - 1):+.1f} %")  # noqa: T201


if __name__ == "__main__":
    main()
