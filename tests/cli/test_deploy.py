"""What an operator sees of `cabafl deploy status | stop | export | set`: answers and one-line errors."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

pytest.importorskip("cryptography", reason="cryptography is not installed (extra `deploy`)")

from cabafl import load_experiment, simulate
from cabafl.cli.main import app
from cabafl.deployment.folder.layout import FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.server.operator import COMMANDS, LOCK, STATUS, CommandBox
from cabafl.errors import UserError
from cabafl.files import lock
from tests.runs import settings

LINE = {
    "device": 0,
    "online": True,
    "samples": 10,
    "job": 7,
    "slot": 1,
    "since": 5.0,
    "seen": time.time(),
    "jobs": 3,
    "faults": 0,
    "clipped": 2,
    "declined": None,
}
FOUND = {
    "state": "running",
    "updated": time.time(),
    "run": "/somewhere/run",
    "method": "cabafl",
    "seconds": 12.0,
    "wall_time": None,
    "version": 4,
    "uploads": 9,
    "losses": {"crash": 1},
    "quarantined": 0,
    "in_flight": 1,
    "online": 1,
    "since_upload": 1.0,
    "metric": {"name": "accuracy", "more_is_better": True, "percent": True},
    "value": None,
    "devices": [LINE, {**LINE, "device": 1, "online": False, "seen": None, "since": None, "declined": "not [red] now"}],
}


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    made = make_fleet(tmp_path / "fleet", FleetSettings(ip=("192.0.2.7",)), 2)
    made.state.mkdir(exist_ok=True)
    return made


@pytest.fixture
def server(fleet: FleetFolder) -> Iterator[None]:
    """A server that accepts everything but settings that end with an x; `stop` ends it."""
    box, end = CommandBox(fleet.state / COMMANDS), threading.Event()
    (fleet.state / STATUS).write_text(json.dumps({**FOUND, "state": "complete"}))

    def work() -> None:
        with (fleet.state / LOCK).open("w") as file:
            lock(file, "busy")
            ready.set()
            while not end.is_set():
                for command in box.take():
                    if command.kind == "export":
                        model = fleet.state / "attached"
                        box.attachment(command).write_bytes(model.read_bytes() if model.exists() else b"model")
                    settings = command.values.get("settings", [])
                    box.answer(command, not any(text.endswith("x") for text in settings), f"{command.values}")
                    if command.kind == "stop":
                        end.set()
                time.sleep(0.01)

    ready, thread = threading.Event(), threading.Thread(target=work)
    thread.start()
    ready.wait()
    yield
    end.set()
    thread.join()


def run(*words: str | Path) -> str:
    """The output of a command that succeeds."""
    result = CliRunner().invoke(app, ["deploy", *map(str, words)], env={"COLUMNS": "200"})
    assert result.exception is None, result.exception
    return result.output


def refused(*words: str | Path) -> str:
    """The line of a command that fails."""
    result = CliRunner().invoke(app, ["deploy", *map(str, words)])
    assert isinstance(result.exception, UserError), result.exception
    assert "\n" not in str(result.exception)
    return str(result.exception)


# Without a server


def test_without_a_server_there_is_nothing_to_operate(fleet: FleetFolder, tmp_path: Path) -> None:
    assert "no server has run here yet" in refused("status", fleet.path)
    for line in (refused("stop", fleet.path), refused("set", fleet.path, "run.wall_time=50")):
        assert line.endswith("accepted: while `cabafl deploy server`, `local` or `compare` runs")
    assert "no server has run here yet" in refused("export", fleet.path, "--out", tmp_path / "model")
    (fleet.state / STATUS).write_text(json.dumps({**FOUND, "run": str(tmp_path / "run")}))
    assert "has no model yet" in refused("export", fleet.path, "--out", tmp_path / "model")


@pytest.mark.parametrize("command", ["status", "stop", "export", "set", "server", "device"])
def test_a_folder_that_is_no_fleet(tmp_path: Path, command: str) -> None:
    more = {"export": ["--out", str(tmp_path / "model")], "set": ["a.b=1"]}.get(command, [])
    assert "a folder made by `cabafl deploy init`" in refused(command, tmp_path, *more)


def test_a_device_that_does_not_exist_and_a_log_of_no_form(fleet: FleetFolder) -> None:
    assert refused("device", fleet.path, "--id", "7") == "--id = 7: no such device; accepted: 0, 1"
    assert refused("device", fleet.path, "--id", "1", "--log", "xml") == "--log = 'xml': unknown; accepted: text, json"
    assert refused("server", fleet.path, "--log", "xml") == "--log = 'xml': unknown; accepted: text, json"
    assert "run.wall_time: missing" in refused("server", fleet.path)


# Status


def test_the_status_as_table_and_as_json(fleet: FleetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.cli.console.console._width", 200)  # whatever an earlier test has made of it
    (fleet.state / STATUS).write_text(json.dumps(FOUND))
    shown = run("status", fleet.path)
    assert "cabafl: running, 12 s of -; version 4, accuracy -, 9 uploads" in shown
    assert "jobs lost: 1 crash" in shown
    assert "not [red] now" in shown
    assert "never" in shown
    assert json.loads(run("status", fleet.path, "--json")) == FOUND
    mse = {"metric": {"name": "mse", "more_is_better": False, "percent": False}, "value": 0.51234}
    (fleet.state / STATUS).write_text(json.dumps({**FOUND, **mse}))
    assert "version 4, mse 0.5123, 9 uploads" in run("status", fleet.path)


def test_a_status_that_is_damaged(fleet: FleetFolder) -> None:
    for text in ("{", "[]"):
        (fleet.state / STATUS).write_text(text)
        assert str(fleet.state / STATUS) in refused("status", fleet.path)


def test_the_folder_of_deploy_local_stands_for_its_fleet(fleet: FleetFolder) -> None:
    (fleet.state / STATUS).write_text(json.dumps(FOUND))
    assert "9 uploads" in run("status", fleet.path.parent)


# With a server


@pytest.mark.usefixtures("server")
def test_set_is_passed_on_and_refused_in_one_line(fleet: FleetFolder) -> None:
    assert run("set", fleet.path, "run.wall_time=50", "a=1").strip() == "{'settings': ['run.wall_time=50', 'a=1']}"
    assert refused("set", fleet.path, "run.x") == "{'settings': ['run.x']}"


@pytest.mark.usefixtures("server")
def test_export_writes_a_new_file(fleet: FleetFolder, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    assert run("export", fleet.path, "--out", out).replace("\n", "").endswith(str(out))
    assert out.read_bytes() == b"model"
    assert refused("export", fleet.path, "--out", out).endswith("exists; accepted: a new file")
    assert refused("export", fleet.path, "--out", tmp_path / "no/model").endswith("its folder does not exist")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with two models: the average and the last one."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    words = settings("fedavg", "run.workers=0", "run.virtual_time=20", "run.average=polynomial")
    simulate(load_experiment(None, words), folder)
    return folder


def test_export_in_a_format_without_a_server(fleet: FleetFolder, finished: Path, tmp_path: Path) -> None:
    (fleet.state / STATUS).write_text(json.dumps({**FOUND, "run": str(finished)}))
    out = tmp_path / "model.pt"
    shown = run("export", fleet.path, "--out", out, "--format", "torchscript")
    assert "Checked on 1,000 test samples: the same predictions" in shown
    assert out.with_name("model.pt.md").exists()
    assert refused("export", fleet.path, "--out", tmp_path / "m", "--format", "tflite").endswith("safetensors")
    plain, same = tmp_path / "plain", tmp_path / "same"
    run("export", fleet.path, "--out", plain)
    run("export", fleet.path, "--out", same, "--format", "safetensors")
    one, other = load_file(plain), load_file(same)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("server")
def test_export_in_a_format_takes_the_model_of_the_server(fleet: FleetFolder, finished: Path, tmp_path: Path) -> None:
    (fleet.state / STATUS).write_text(json.dumps({**FOUND, "run": str(finished)}))
    (fleet.state / "attached").write_bytes((finished / "model-raw.safetensors").read_bytes())
    out = tmp_path / "model.safetensors"
    assert f"{out}: the current model" in run("export", fleet.path, "--out", out, "--format", "safetensors")
    found, raw = load_file(out), load_file(finished / "model-raw.safetensors")
    assert all(np.array_equal(found[name], raw[name]) for name in raw)


@pytest.mark.usefixtures("server")
def test_stop_waits_for_the_end(fleet: FleetFolder) -> None:
    assert run("stop", fleet.path, "--now").split("\n")[:2] == ["{'at_once': True}", "complete: /somewhere/run"]
    assert "no server runs on this fleet" in refused("stop", fleet.path)


@pytest.mark.usefixtures("server")
def test_stop_without_waiting(fleet: FleetFolder) -> None:
    assert run("stop", fleet.path, "--no-wait").strip() == "{'at_once': False}"


def test_status_needs_no_extra_and_loads_no_large_package(fleet: FleetFolder) -> None:
    (fleet.state / STATUS).write_text(json.dumps(FOUND))
    done = without_the_extra("deploy", "status", str(fleet.path))
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "running" in done.stdout


@pytest.mark.parametrize("words", [["server", "x"], ["device", "x"], ["local"], ["compare"], ["init", "x"]])
def test_without_the_extra_a_line_says_what_to_install(words: list[str]) -> None:
    done = without_the_extra("deploy", *words)
    line, _ = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("error: ")
    assert line.endswith("pip install 'cabafl[deploy]'")


def without_the_extra(*words: str) -> "subprocess.CompletedProcess[str]":
    program = (
        "import sys\nfor name in ('cryptography', 'paho'): sys.modules[name] = None\n"
        f"sys.argv = ['cabafl', *{words!r}]\nfrom cabafl.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print([name for name in ('torch', 'pandas', 'matplotlib') if name in sys.modules], file=sys.stderr)\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
