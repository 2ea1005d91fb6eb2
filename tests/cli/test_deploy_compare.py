"""`cabafl deploy compare`: what is wrong is one line, before anything is started or written."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.cli.main import app
from cabafl.comparison.study import LOCAL, Study
from cabafl.deployment import broker
from cabafl.deployment.folder.layout import FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.server.operator import LOCK
from cabafl.errors import UserError
from cabafl.files import lock

QUICK = ["data.dataset=synthetic", "model.name=mlp"]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "find_mosquitto", lambda: "/usr/sbin/mosquitto")


def refused(out: Path, *words: str) -> str:
    """The line of a command that fails."""
    result = CliRunner().invoke(app, ["deploy", "compare", *QUICK, *words, "--out", str(out)])
    assert isinstance(result.exception, UserError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--devices", "0"], "--devices = 0: accepted: 1 to 1000"),
        (["--devices", "-3"], "--devices = -3: accepted: 1 to 1000"),
        (["--devices", "1001"], "--devices = 1001: accepted: 1 to 1000"),
        (["--time-scale", "0"], "--time-scale = 0: accepted: 0.01 or more"),
        (["--time-scale", "nan"], "--time-scale = nan: accepted: 0.01 or more"),
        (["--methods", "cabafl,fedavgg"], "--methods = 'fedavgg': unknown, did you mean 'fedavg'?"),
        (["--methods", ""], "--methods = '': unknown"),
        (["--methods", "cabafl,cabafl"], "--methods = 'cabafl,cabafl': two methods called cabafl"),
        (["--methods", "cabafl", "fedavg.k=3"], "fedavg: a setting for a method that is not compared"),
        (["--methods", "cabafl", "cabafl.kk=3"], "method.kk = 3: unknown key"),
        (["fleet.slots=5", "--devices", "4"], "fleet.slots = 5: at most the number of devices, 4"),
        (["fleet.tiers={high=0}"], "--devices = 10: fleet.tiers: the counts add up to 0"),
        (["--targets", "200"], "--targets = '200': accepted: percentages"),
        (["--log", "xml"], "--log = 'xml': unknown; accepted: text, json"),
        (["run.wall_time=-1"], "run.wall_time = -1: "),
        (["data.dataset=cifar10", "data.root=/nowhere"], "data set cifar10: /nowhere/"),
    ],
)
def test_wrong_words(words: list[str], line: str, tmp_path: Path) -> None:
    assert refused(tmp_path / "out", *words).startswith(line)
    assert not (tmp_path / "out").exists()


def test_without_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "find_mosquitto", lambda: None)
    assert refused(tmp_path / "out").startswith("mosquitto: not installed; accepted: version 2.0 or newer")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert "holds something else; accepted: a new or empty folder" in refused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file").endswith("file: cannot be read: Not a directory")


def test_another_fleet_than_before(tmp_path: Path) -> None:
    Study(LOCAL, 10, 5.0).store(tmp_path)
    assert refused(tmp_path, "--devices", "4").startswith(f"--devices = 4: the study in {tmp_path} has 10; accepted:")
    assert refused(tmp_path, "--time-scale", "1").startswith("--time-scale = 1.0: the study in")


def test_a_fleet_elsewhere(tmp_path: Path) -> None:
    out, timed = tmp_path / "out", "run.wall_time=60"
    assert "a folder made by `cabafl deploy init`" in refused(out, timed, "--fleet", str(tmp_path))
    fleet = make_fleet(tmp_path / "fleet", FleetSettings(ip=("192.0.2.7",)), 2)
    words = ["--fleet", str(fleet.path)]
    assert refused(out, timed, *words, "--devices", "3").startswith("--devices = 3: cannot be combined with --fleet")
    assert refused(out, *words).startswith("run.wall_time: missing")
    assert refused(out, timed, *words, "data.devices=1").startswith("data.devices = 1: the fleet has a device 1;")
    fleet.state.mkdir(exist_ok=True)
    with (fleet.state / LOCK).open("w") as file:
        lock(file, "busy")
        assert "another server runs on this fleet; accepted: one at a time" in refused(out, timed, *words)
    (fleet.path / "devices").rename(fleet.path / "gone")
    assert "has no devices; accepted: one or more" in refused(out, timed, *words)
    assert not out.exists()
