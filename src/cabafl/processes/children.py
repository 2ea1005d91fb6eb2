"""Starts programs that end when this process ends."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cabafl.errors import RunStopped

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Child:
    """A running program and its log file, which holds stdout and stderr."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait_for_port(self, port: int, seconds: float = 60.0) -> None:
        """Returns when the program accepts connections on a local port. Raises `RunStopped` if the program ends first
        or ``seconds`` have passed."""
        deadline = time.monotonic() + seconds
        while not answers(port):
            if self.process.poll() is not None:
                raise RunStopped(f"{self.name} ended with code {self.process.returncode}: {self.last_line()}")
            if time.monotonic() > deadline:
                raise RunStopped(f"{self.name} does not answer on port {port} after {seconds:g} s; see {self.log}")
            time.sleep(0.05)

    def output(self) -> str:
        """Everything it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def last_line(self) -> str:
        """The last non-empty line of its output, for error messages."""
        lines = [line for line in self.output().splitlines() if line.strip()]
        return lines[-1].strip() if lines else "no output"


class Children:
    """Programs that are stopped in reverse order of their start. On Linux they also stop when this process is killed.

    Start them from a thread that outlives them: Linux signals them when the thread that started them ends.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._running: list[Child] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Child:
        """Starts a program in ``folder``; its output goes to ``NAME.log``."""
        wrapped = [sys.executable, "-P", "-m", "cabafl.processes.tethered", str(os.getpid()), *command]
        log = self._logs / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                wrapped,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches this process only, which then stops them in order. Not a new session:
                # Linux may weigh priorities within a session only, and `nice cabafl deploy local` would be in vain
            )
        child = Child(name, process, log)
        self._running.append(child)
        return child

    def stop(self) -> None:
        """Stops all programs, the last one started first; kills those that ignore SIGTERM."""
        while self._running:
            end(self._running.pop().process)

    def __enter__(self) -> "Children":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Stops a program with SIGTERM, or kills it if it ignores that."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    """Whether a local port accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def free_ports(count: int) -> list[int]:
    """Local ports that are unused at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
