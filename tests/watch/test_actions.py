"""What an operator does with a fleet, from the page."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'cabafl[watch]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.deployment.folder.layout import FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.server.operator import COMMANDS, LOCK, STATUS, Command, CommandBox
from cabafl.files import lock
from cabafl.watch import actions
from tests.watch.site import Visit, visit

NASTY = "<script>alert('no')</script>"


@pytest.fixture
def fleet(tmp_path: Path, run: Path) -> FleetFolder:
    """Three devices, and the status file of a server that worked on the run."""
    made = make_fleet(run.parent / "fleet", FleetSettings(ip=("127.0.0.1",)), 3)
    made.state.mkdir(exist_ok=True)
    line = {"samples": 10, "job": None, "slot": None, "since": None, "seen": None, "jobs": 4, "faults": 1, "clipped": 0}
    devices = [line | {"device": number, "online": number != 1, "declined": NASTY} for number in range(3)]
    status = {"state": "running", "updated": 0.0, "run": str(run), "seconds": 5.0, "losses": {}, "devices": devices}
    (made.state / STATUS).write_text(json.dumps(status))
    return made


@pytest.fixture
def visited(fleet: FleetFolder, run: Path) -> Iterator[Visit]:
    with visit([run.parent]) as found:
        yield found


class Server:
    """Holds the lock of a fleet and answers commands, as a server does."""

    def __init__(self, fleet: FleetFolder, obey: Callable[[CommandBox, Command], tuple[bool, str]]) -> None:
        self.fleet, self.obey = fleet, obey
        self.taken: list[Command] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> "Server":
        self._file = (self.fleet.state / LOCK).open("wb")
        lock(self._file, "")
        self._box = CommandBox(self.fleet.state / COMMANDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._file.close()

    def _work(self) -> None:
        while not self._ended.wait(0.01):
            for command in self._box.take():
                self.taken.append(command)
                self._box.answer(command, *self.obey(self._box, command))


def act(visited: Visit, what: str) -> Any:
    [fleet] = visited.site.shelf.fleets
    headers = {"X-CSRF-Token": visited.log_in()}
    return visited.client.post(f"/api/fleets/{fleet}/{what}", json={"confirm": True}, headers=headers)


def test_the_fleet_is_shown_with_its_run(visited: Visit) -> None:
    overview = visited.get("/api/runs")
    [fleet], [run] = overview["fleets"], overview["runs"]
    assert run["fleet"] == fleet["id"]
    assert fleet["run"] == run["id"]
    assert not fleet["running"]
    page = visited.get(f"/api/fleets/{fleet['id']}")
    assert page["devices"]["online"] == [True, False, True]
    assert page["devices"]["declined"] == [NASTY] * 3
    assert page["actions"] == {"model": True, "stop": False, "remove": True}
    assert visited.client.get("/api/fleets/nothing").status_code == 404
    assert "ca.key" not in json.dumps(page)


def test_devices_that_are_not_connected_are_away(visited: Visit, fleet: FleetFolder) -> None:
    import time

    status = json.loads((fleet.state / STATUS).read_text()) | {"updated": time.time()}
    (fleet.state / STATUS).write_text(json.dumps(status))
    with Server(fleet, lambda *_: (True, "")):
        header, arrays = visited.fleet()
        states = [header["states"][code] for code in arrays["state"]]
        assert header["live"]
        assert states[1] == "away"
        assert states[3:] == ["away"] * 9
        assert "away" not in (states[0], states[2])
        earlier, _ = visited.fleet(time=30)
        assert not earlier["live"]
        assert visited.of_run("/device/1")["status"]["online"] is False


def test_stop_after_the_jobs_in_flight(visited: Visit, fleet: FleetFolder) -> None:
    with Server(fleet, lambda *_: (True, "stops after 2 jobs in flight")) as server:
        response = act(visited, "stop")
    assert (response.status_code, response.json()) == (200, {"text": "stops after 2 jobs in flight"})
    assert [(command.kind, command.values) for command in server.taken] == [("stop", {"at_once": False})]


def test_a_stop_that_is_refused_or_has_nobody_to_obey(visited: Visit, fleet: FleetFolder) -> None:
    with Server(fleet, lambda *_: (False, "stop: the run has not started yet")):
        response = act(visited, "stop")
    assert (response.status_code, response.json()) == (409, {"error": "stop: the run has not started yet"})
    response = act(visited, "stop")
    assert (response.status_code, response.json()) == (409, {"error": "stop: no server runs on this fleet"})


def test_the_model_of_a_run_that_goes_on(visited: Visit, fleet: FleetFolder, tmp_path: Path) -> None:
    def export(box: CommandBox, command: Command) -> tuple[bool, str]:
        box.attachment(command).write_bytes(b"the model")
        return True, "version 3"

    with Server(fleet, export):
        response = act(visited, "model")
    assert (response.status_code, response.content) == (200, b"the model")
    assert "attachment" in response.headers["content-disposition"]
    assert list((fleet.state / COMMANDS).iterdir()) == []


def test_the_model_of_a_run_that_is_finished(visited: Visit, run: Path) -> None:
    response = act(visited, "model")
    assert response.status_code == 200, response.text
    assert response.content == (run / "model.safetensors").read_bytes()


def test_the_model_of_a_run_that_has_none(visited: Visit, run: Path) -> None:
    for name in ("model.safetensors", "checkpoint.json"):
        (run / name).unlink()
    response = act(visited, "model")
    assert response.status_code == 409
    assert "model.safetensors: cannot be read" in response.json()["error"]


def test_shutting_a_device_out(visited: Visit, fleet: FleetFolder) -> None:
    with Server(fleet, lambda *_: (True, "removed: 1")) as server:
        response = act(visited, "devices/1/remove")
    assert response.status_code == 200, response.text
    assert response.json()["text"].startswith("device 1 is shut out")
    assert fleet.device_ids() == {0, 2}
    assert [(command.kind, command.values) for command in server.taken] == [("removed", {"devices": [1]})]
    page = visited.get(f"/api/fleets/{next(iter(visited.site.shelf.fleets))}")
    assert page["devices"]["removed"] == [False, True, False]


def test_shutting_out_a_device_that_is_not_there(visited: Visit, fleet: FleetFolder) -> None:
    response = act(visited, "devices/7/remove")
    assert response.status_code == 409
    assert "no such device" in response.json()["error"]
    assert fleet.device_ids() == {0, 1, 2}


def test_a_fleet_that_has_become_a_link_is_not_acted_upon(visited: Visit, fleet: FleetFolder) -> None:
    elsewhere = fleet.path.parent.parent / "elsewhere"
    fleet.path.rename(elsewhere)
    fleet.path.symlink_to(elsewhere)
    assert act(visited, "devices/1/remove").status_code == 404
    assert FleetFolder.load(elsewhere).device_ids() == {0, 1, 2}


def test_one_model_is_written_at_a_time(visited: Visit) -> None:
    with actions._exporting:
        response = act(visited, "model")
    assert response.status_code == 409
    assert response.json()["error"].startswith("model: another one is being written")
    assert act(visited, "model").status_code == 200
