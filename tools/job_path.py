"""Which files of the package one job passes, from its dispatch to the next: `python tools/job_path.py deployed`.

Runs a small experiment with one job in flight at a time. Every process notes each call of a function of the package
(`sys.setprofile`); what happens between two calls of ``dispatch`` belongs to one job. A file is on the path if every
job calls a function in it or is called from it: what happens now and then (a checkpoint, a status file, an aggregation)
is left out. ``--with paho`` (or ``flwr``) also notes the calls in the library that carries the messages.

A file on the path *carries* the job unless it only watches the run (`WATCHES`): the job would pass without it. A file
that calls no other file of the package is marked as a helper: the job comes back to where it was.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER, SOURCES = "CABAFL_JOB_PATH", "CABAFL_JOB_SOURCES"  # environment: where to write, and the packages to watch
OUTSIDE = "-"  # in place of a caller that is not in the package
JOBS = 12
SETTINGS = [
    "data.dataset=synthetic",
    "data.train_limit=400",
    "data.test_limit=50",
    "model.name=mlp",
    "training.epochs=1",
    "fleet.slots=1",
    "run.workers=1",
    "run.evaluate_every=1000",
    f"run.max_dispatches={JOBS}",
]
COMMANDS = {
    "simulated": ["run", *SETTINGS, "data.devices=4"],
    # Without workers: no evaluation is under way while jobs pass.
    "deployed": ["deploy", "local", *SETTINGS, "run.workers=0", "--devices", "3", "--time-scale", "1000"],
}
WATCHES = (
    "cli/",
    "recording/",
    "lifecycle/",
    "deployment/log.py",
    "deployment/server/operator.py",
)


class Call(NamedTuple):
    """One call of a function of the package. ``caller`` is the file it was called from, if that is in the package."""

    nanoseconds: int
    process: int
    caller: str
    file: str
    function: str


@dataclass(frozen=True)
class Stop:
    """A file on the path of a job, in one of the processes."""

    process: str
    file: str
    helper: bool

    @property
    def carries(self) -> bool:
        """Whether the job needs the file."""
        return not self.file.startswith(WATCHES)


# In the processes of the run


def record() -> None:
    """Notes all calls of this process and its later threads from now on."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    sources = {root + os.sep: prefix for root, prefix in json.loads(os.environ[SOURCES]).items()}
    output = (Path(folder) / f"{os.getpid()}.calls").open("w", buffering=1)  # a worker may be killed at any moment
    stacks = threading.local()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event not in ("call", "return") or frame.f_code.co_name == "<module>":
            return
        root = next((root for root in sources if name.startswith(root)), None)
        if root is None:
            return
        stack: list[str] = vars(stacks).setdefault("files", [])
        if event == "call":
            file = sources[root] + name.removeprefix(root)
            caller = stack[-1] if stack else OUTSIDE
            stack.append(file)
            output.write(f"{time.monotonic_ns()} {os.getpid()} {caller} {file} {frame.f_code.co_name}\n")
        elif stack:
            stack.pop()

    threading.setprofile(profile)
    sys.setprofile(profile)


# In the process of the tool


def run(kind: str, source: Path, libraries: Sequence[str] = ()) -> list[Call]:
    """Runs the experiment with the package below ``source``; returns the calls of all processes in order."""
    roots = {str(source / "cabafl"): ""}
    for name in libraries:
        found = find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise SystemExit(f"--with {name}: no such package")
        roots[found.submodule_search_locations[0]] = f"{name}/"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text("from tools.job_path import record\n\nrecord()\n")
        places = [folder, str(source), str(ROOT)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(places),
            FOLDER: folder,
            SOURCES: json.dumps(roots),
        }
        command = [sys.executable, "-m", "cabafl", *COMMANDS[kind], "--out", str(Path(folder) / "run")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return sorted(call for path in Path(folder).glob("*.calls") for call in read(path))


def read(path: Path) -> Iterator[Call]:
    """The calls that one process has noted."""
    for line in path.read_text().splitlines():
        nanoseconds, process, caller, file, function = line.split()
        yield Call(int(nanoseconds), int(process), caller, file, function)


def path_of_a_job(calls: Sequence[Call], other: str) -> list[Stop]:
    """The files that every job passes, in the order of the last whole job. The first and the last job are left out:
    the run begins and ends with them. ``other`` names the processes that do not dispatch."""
    starts = [i for i, call in enumerate(calls) if call.function == "dispatch" and call.caller.startswith("methods/")]
    if len(starts) < 4:
        raise ValueError(f"{len(starts)} dispatches; at least 4 are needed")
    server = calls[starts[0]].process
    jobs = [list(_places(calls[start:end], server)) for start, end in pairwise(starts[1:])]
    common = set.intersection(*map(set, jobs))
    going_on = {call.caller for call in calls[starts[1] : starts[-1]] if call.caller != call.file}
    passed = dict.fromkeys(place for place in jobs[-1] if place in common)
    return [Stop("server" if here else other, file, file not in going_on) for here, file in passed]


def _places(calls: Sequence[Call], server: int) -> Iterator[tuple[bool, str]]:
    """Where each call comes from and goes to: whether in the server's process, and the file."""
    for call in calls:
        if call.caller != OUTSIDE:
            yield call.process == server, call.caller
        yield call.process == server, call.file


def describe(stops: Sequence[Stop]) -> Iterator[str]:
    """One line per file, then the sums."""
    for stop in stops:
        yield f"{stop.process:8}{stop.file:40}{'' if stop.carries else 'watches'}{' helper' if stop.helper else ''}"
    files = {stop.file for stop in stops}
    carrying = {stop.file for stop in stops if stop.carries}
    going_on = {stop.file for stop in stops if stop.carries and not stop.helper}
    yield f"{len(files)} files; {len(carrying)} carry the job, {len(going_on)} of them pass it on"


def main() -> None:
    """Prints the path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=COMMANDS)
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="folder that holds the package")
    parser.add_argument("--with", dest="libraries", action="append", default=[], metavar="PACKAGE", help="watch it too")
    given = parser.parse_args()
    calls = run(given.kind, given.source.resolve(), given.libraries)
    stops = path_of_a_job(calls, "worker" if given.kind == "simulated" else "device")
    sys.stdout.write("".join(f"{line}\n" for line in describe(stops)))


if __name__ == "__main__":
    main()
