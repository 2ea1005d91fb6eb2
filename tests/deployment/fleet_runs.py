"""Whole runs of a server with devices in this process, as fixtures and helpers."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cabafl.config import load_experiment
from cabafl.deployment.log import Log
from cabafl.deployment.mqtt import carrier
from cabafl.deployment.server.serve import Station, serve
from cabafl.recording.events import Event, Uploaded
from tests.deployment.memory_broker import MemoryBroker, MemoryFleet

DEVICES, JOBS = 4, 12
SETTINGS = [
    "data.dataset=synthetic",
    "data.train_limit=200",
    "data.test_limit=50",
    "model.name=mlp",
    "training.epochs=1",
    "fleet.slots=2",
    "run.workers=0",
    "run.evaluate_every=0.5",
    f"run.max_dispatches={JOBS}",
    "method.k=2",
]
FEDASYNC = [*(line for line in SETTINGS if not line.startswith("method")), "method.name=fedasync"]


class FleetRun:
    """A fleet and the folder of a run on it; `serve` may be called again and again."""

    def __init__(self, path: Path, devices: int = DEVICES) -> None:
        self.path, self.out = path, path / "run"
        self.broker = MemoryBroker()
        self.fleet = MemoryFleet(self.broker, path, devices)
        self.lines: list[str] = []

    def serve(self, *more: str, settings: list[str] = SETTINGS, **station: Any) -> dict[str, Any] | None:
        """Starts or continues the run; status file and commands are in the folder beside it."""
        own = {"status": self.path / "status.json", "commands": self.path / "commands", **station}
        return serve(
            load_experiment(None, [*settings, *more]),
            self.fleet,
            Station(self.out, Log(file=self), **own),  # type: ignore[arg-type]
        )

    def write(self, text: str) -> None:
        """A line of the log."""
        self.lines.append(text)

    def flush(self) -> None:
        """Lines are kept."""

    def said(self, text: str) -> bool:
        """Whether a line of the log contains this."""
        return any(text in line for line in self.lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The recorded events."""
        return [json.loads(line) for line in (self.out / "events.jsonl").read_text().splitlines()]

    @property
    def uploaded(self) -> list[int]:
        """The jobs whose uploads were counted."""
        return [event["job"] for event in self.events if event["event"] == "upload"]

    @property
    def status(self) -> dict[str, Any]:
        """The status file."""
        found: dict[str, Any] = json.loads((self.path / "status.json").read_text())
        return found

    def order(self, kind: str, **values: Any) -> None:
        """Puts a command where the server looks for it."""
        path = self.path / "commands" / f"{kind}.command.json"
        path.write_text(json.dumps({"kind": kind, "values": values}))

    def answer(self, kind: str) -> tuple[bool, str]:
        """What the server said to it."""
        answer = json.loads((self.path / "commands" / f"{kind}.answer.json").read_text())
        return answer["ok"], answer["text"]

    def completes(self, *more: str, settings: list[str] = SETTINGS) -> None:
        """The run continues to its end and has counted each job once."""
        summary = self.serve(*more, settings=settings)
        assert summary is not None
        assert (summary["uploads"], summary["losses"]) == (JOBS, {})
        assert sorted(self.uploaded) == list(range(JOBS))


@pytest.fixture
def fleet_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pixels: None) -> FleetRun:
    """A fleet of four devices in this process; the server looks for commands in every step."""
    made = FleetRun(tmp_path)
    monkeypatch.setattr(carrier, "Link", made.broker.link)
    monkeypatch.setattr("cabafl.deployment.server.driver.CHECK_INTERVAL", 0.0)
    return made


def after_uploads(count: int, what: Callable[[], None]) -> Callable[[Event], None]:
    """A listener that does something once, after some uploads."""
    left = count

    def listen(event: Event) -> None:
        nonlocal left
        left -= isinstance(event, Uploaded)
        if left == 0:
            left = -1
            what()

    return listen


def terminate(signals: int = 1) -> Callable[[], None]:
    """Sends SIGTERM to this process, as systemd does."""

    def send() -> None:
        for _ in range(signals):
            signal.raise_signal(signal.SIGTERM)

    return send
