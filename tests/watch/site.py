"""A server in this process, and what a browser or a script asks it."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from cabafl.watch.access import Gate, Secret
from cabafl.watch.app import Site, make_app
from cabafl.watch.columns import Array
from cabafl.watch.overview import Overview
from cabafl.watch.shelf import Shelf

SECRET = "the secret of the tests"
COOKIE = "cabafl_watch"
TYPES = {"u1": "u1", "u4": "<u4", "i4": "<i4", "f4": "<f4"}


@dataclass
class Visit:
    """A client of a server whose looks at the folders happen when the test says so."""

    site: Site
    client: TestClient

    def look(self) -> None:
        """The server looks at all folders now, and reads all that is to be read."""
        self.site.shelf._search_after = 0.0
        for run in self.site.shelf.runs.values():
            run.next_look = 0.0
        self.site.shelf.look()
        self.site.shelf.read_events()
        self.site.overview._made = 0.0

    def get(self, path: str, **query: Any) -> Any:
        """An answer in JSON; the event log is read first."""
        response = self.client.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def runs(self) -> list[dict[str, Any]]:
        """The overview."""
        self.look()
        found: list[dict[str, Any]] = self.get("/api/runs")["runs"]
        return found

    @property
    def id(self) -> str:
        """The only run."""
        [run] = self.site.shelf.runs
        return run

    def of_run(self, what: str = "", **query: Any) -> Any:
        """An address of the only run, with everything read."""
        self.site.shelf.open(self.site.shelf.runs[self.id])
        self.look()
        return self.get(f"/api/runs/{self.id}{what}", **query)

    def fleet(self, **query: Any) -> tuple[dict[str, Any], dict[str, Array]]:
        """The binary answer, taken apart."""
        self.site.shelf.open(self.site.shelf.runs[self.id])
        self.look()
        response = self.client.get(f"/api/runs/{self.id}/fleet", params=query)
        assert response.status_code == 200, response.text
        return unpacked(response.content)

    def log_in(self) -> str:
        """Gets a session; returns its CSRF token."""
        response = self.client.post("/api/login", json={"secret": SECRET})
        assert response.status_code == 200, response.text
        token: str = response.json()["csrf"]
        return token


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a binary answer."""
    size = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + size])
    assert (4 + size) % 8 == 0
    arrays = {}
    for entry in header["arrays"]:
        assert entry["offset"] % 8 == 0
        arrays[entry["name"]] = np.frombuffer(content, TYPES[entry["type"]], entry["length"], entry["offset"])
    return header, arrays


@contextmanager
def visit(roots: Sequence[Path], login_required: bool = False, static: Path | None = None) -> Iterator[Visit]:
    """A server in this process. Nothing happens in the background."""
    shelf = Shelf(roots)
    shelf.look()
    site = Site(shelf, Overview(shelf), Gate(Secret(SECRET, password=False)), login_required, encrypted=False)
    if static is not None:
        site.static = static
    app = make_app(site, COOKIE)
    with TestClient(app, base_url="http://localhost:8642", raise_server_exceptions=True) as client:
        yield Visit(site, client)


def append(file: Path, *events: dict[str, Any] | str) -> None:
    """Adds lines to an event log."""
    lines = [event if isinstance(event, str) else json.dumps(event, separators=(",", ":")) for event in events]
    with file.open("ab") as log:
        log.write("".join(f"{line}\n" for line in lines).encode())


def make_run(folder: Path, *events: dict[str, Any] | str, settings: str = "", metrics: str = "") -> Path:
    """A run folder that was never run."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(settings or 'seed = 1\n[method]\nname = "own"\n', encoding="utf-8")
    (folder / "environment.json").write_text('{"clock": "virtual"}', encoding="utf-8")
    (folder / "metrics.csv").write_text(metrics, encoding="utf-8")
    (folder / "events.jsonl").touch()
    append(folder / "events.jsonl", *events)
    return folder


def age(folder: Path, seconds: float) -> None:
    """Lets the files of a run look as if they were last written so long ago."""
    for file in folder.iterdir():
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))
