"""A fleet on one machine, without its processes: which boards it imitates, and what a kill leaves behind."""

import io
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.config import Experiment, load_experiment
from cabafl.deployment.folder.layout import Device, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.log import Log
from cabafl.deployment.testbed import testbed
from cabafl.deployment.testbed.testbed import LocalFleet, paces, with_defaults
from cabafl.errors import UserError
from cabafl.processes.children import Child, Children

NANO, PI = (10.0, 2.0), (6.4, 2.7)  # watts: training, idle


def experiment(devices: int, *settings: str) -> Experiment:
    return with_defaults(load_experiment(None, list(settings)), devices)


def power(devices: int, *settings: str) -> Counter[tuple[float, float]]:
    lines = paces(experiment(devices, *settings), devices, 5.0)
    assert not any(line["sensor"] for line in lines), "that of this machine is not the board's"
    return Counter((line["watts"], line["idle_watts"]) for line in lines)


def test_the_boards_of_the_paper_with_their_own_speed_and_watts() -> None:
    assert power(10) == {NANO: 4, PI: 6}
    for line in paces(experiment(10), 10, 5.0):
        mean = {10.0: 15.0, 6.4: 30.0}[line["watts"]] / 5
        assert 0.5 * mean < line["pace"] < 1.5 * mean
    fast, slow = (paces(experiment(10), 10, scale) for scale in (5.0, 1.0))
    assert [line["pace"] * 5 for line in fast] == pytest.approx([line["pace"] for line in slow])


def test_watts_of_the_experiment_come_first() -> None:
    assert power(10, "fleet.compute_watts=7.0") == {(7.0, 0.0): 10}
    assert power(5, "fleet.tier_compute_watts={high=9.0,low=6.4}") == {(9.0, 0.0): 2, PI: 3}
    assert power(4, "fleet.tiers={medium=4}") == {(15.0, 0.0): 4}


@pytest.mark.parametrize(
    ("devices", "settings", "tiers"),
    [
        (1, [], {"high": 0, "low": 1}),
        (10, [], {"high": 4, "low": 6}),
        (4, ["fleet.tiers={high=4,low=6}"], {"high": 2, "low": 2}),
        (7, ["fleet.tiers={high=1,medium=1,low=1}"], {"high": 3, "medium": 2, "low": 2}),
    ],
)
def test_tiers_keep_their_shares(devices: int, settings: list[str], tiers: dict[str, int]) -> None:
    assert experiment(devices, *settings).fleet.tiers == tiers
    assert len(paces(experiment(devices, *settings), devices, 1.0)) == devices


def test_tiers_without_a_device_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"--devices = 3: fleet\.tiers: the counts add up to 0"):
        paces(experiment(3, "fleet.tiers={high=0}"), 3, 1.0)


def test_a_fleet_that_exists_has_the_settings_of_its_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, given = testbed.Testbed(tmp_path / "bed", 2, 5.0), experiment(2, "data.root=digits")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(testbed, "toml_value", killed)
        with pytest.raises(KeyboardInterrupt):
            bed._fleet(given)
    assert not (bed.path / "fleet").exists()
    made = bed._fleet(given)
    assert [device.pace for device in made.devices()] == [line["pace"] for line in paces(given, 2, 5.0)]
    assert {device.root for device in made.devices()} == {str(Path("digits").resolve())}
    assert [path.name for path in bed.path.iterdir()] == ["fleet"]
    again = testbed.Testbed(bed.path, 2, 1.0)._fleet(given)
    assert again.devices() == made.devices(), "it stays as it is"


def test_a_device_that_has_ended_starts_again_before_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_fleet(tmp_path / "fleet", FleetSettings(ip=("192.0.2.7",)), 2)
    started: list[str] = []

    def start(children: Children, device: Device, name: str | None = None) -> Child:
        started.append(name or f"device-{device.id}")
        code = "raise SystemExit('no memory')" if started[-1] == "device-1" else "import time; time.sleep(60)"
        return children.start(started[-1], [sys.executable, "-c", code], {}, tmp_path)

    monkeypatch.setattr(testbed, "start_device", start)
    said = io.StringIO()
    with Children(tmp_path / "logs") as children:
        fleet = LocalFleet(FleetFolder.load(folder.path), children)
        processes = children._running
        processes[1].process.wait(60)
        fleet.revive(Log(file=said))
        fleet.revive(Log(file=said))
        assert started == ["device-0", "device-1", "device-1-2"]
        assert [child.process.poll() is None for child in processes] == [True, False, True]
        fleet.stop()
        assert processes[0].process.wait(60) != 0
    assert said.getvalue().count("its process has ended (no memory); starts again") == 1
    assert "no memory" in (tmp_path / "logs/device-1.log").read_text(), "the log of the first is kept"
