"""What a fleet folder brings along: the wheel of the package, what a device needs beside it, the scripts."""

import csv
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.deployment.folder.layout import FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.folder.wheel import DEVICE_NEEDS, build_wheel, device_requirements, write_installer

STUB = '#!/bin/sh\necho "$(basename "$0") $*" >>"$CALLS"\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    """Two devices, to be installed below a folder of the test."""
    folder = tmp_path_factory.mktemp("made")
    made = make_fleet(folder / "fleet", FleetSettings(name=("localhost",), home=str(folder / "home")), 2)
    write_installer(made)
    return made


def wheel_of(fleet: FleetFolder) -> Path:
    [wheel] = (fleet.path / "install").glob("*.whl")
    return wheel


def test_the_wheel_is_complete(fleet: FleetFolder) -> None:
    with zipfile.ZipFile(wheel_of(fleet)) as archive:
        names = archive.namelist()
        info = f"cabafl-{version('cabafl')}.dist-info"
        rows = list(csv.reader(archive.read(f"{info}/RECORD").decode().splitlines()))
    assert [row[0] for row in rows] == names
    for name in ("cabafl/py.typed", "cabafl/deployment/templates/mosquitto.conf", f"{info}/entry_points.txt"):
        assert name in names
    assert not [name for name in names if "__pycache__" in name or "direct_url" in name]


def test_the_same_package_gives_the_same_wheel(fleet: FleetFolder, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel_of(fleet).read_bytes()


def test_the_wheel_installs_and_its_own_wheel_is_the_same(fleet: FleetFolder, tmp_path: Path) -> None:
    """From the wheel, not from this source tree: a fleet can be made by an installation that came from a fleet."""
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(target), str(wheel_of(fleet))], check=True, timeout=120)
    assert (target / "bin" / "cabafl").exists()
    program = (
        "import sys, cabafl; from pathlib import Path; from cabafl.deployment.folder.wheel import build_wheel\n"
        "print(cabafl.__version__, Path(cabafl.__file__).parent); build_wheel(Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    said = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.split() == [version("cabafl"), str(target / "cabafl")]
    [again] = tmp_path.glob("*.whl")
    assert again.read_bytes() == wheel_of(fleet).read_bytes()


def test_a_device_needs_a_part_of_what_the_package_requires(fleet: FleetFolder) -> None:
    lines = (fleet.path / "install" / "requirements-device.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == device_requirements()
    assert [re.split(r"[<>=]", line)[0] for line in device_requirements()] == list(DEVICE_NEEDS)
    required = {re.split(r"[ <>=;\[]", line)[0] for line in distribution("cabafl").requires or ()}
    assert {"pandas", "matplotlib", "pillow"} <= required - set(DEVICE_NEEDS)


def test_a_device_imports_nothing_else() -> None:
    unwanted = ["matplotlib", "pandas", "PIL", "safetensors", "sklearn", "scipy", "ray", "opacus"]
    program = (
        f"import sys\nfor name in {unwanted!r}: sys.modules[name] = None\n"
        "import cabafl.cli.main, cabafl.deployment.device.participant, cabafl.deployment.folder.certificates\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def stubs(folder: Path, *names: str) -> dict[str, str]:
    """Programs that only note how they were called, in the file CALLS."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(STUB)
    (folder / "id").write_text('#!/bin/sh\n[ "$1" = -u ] && echo 0\nexit 0\n')
    (folder / "ssh").write_text(
        '#!/bin/sh\nshift 2\n[ "$1" = unreachable ] && { echo "no route" >&2; exit 255; }\nexec sh -c "$2"\n'
    )
    (folder / "python3").write_text(
        '#!/bin/sh\necho "python3 $*" >>"$CALLS"\n[ "$1" = -m ] || exit 0\nmkdir -p "$3/bin"\n'
        'for name in pip cabafl; do cp "$(dirname "$0")/systemctl" "$3/bin/$name"; done\n'
    )
    for path in folder.iterdir():
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}


@pytest.fixture
def machine(fleet: FleetFolder, tmp_path: Path) -> dict[str, str]:
    """A machine to install on: root, without systemd and without network."""
    shutil.rmtree(fleet.settings.home, ignore_errors=True)
    (tmp_path / "units").mkdir()
    environment = stubs(tmp_path / "bin", "useradd", "systemctl", "chown", "mosquitto")
    return {**environment, "UNITS": str(tmp_path / "units"), "TMPDIR": str(tmp_path)}


def run(environment: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def calls(environment: dict[str, str]) -> str:
    return Path(environment["CALLS"]).read_text()


def test_a_device_is_installed(fleet: FleetFolder, machine: dict[str, str]) -> None:
    done = run(machine, fleet.path / "install" / "install.sh", fleet.path / "devices" / "001")
    assert done.returncode == 0, done.stderr
    device = Path(fleet.settings.home) / "device"
    assert sorted(path.name for path in device.iterdir()) == [
        *("ca.crt", "cabafl-device.service", "device.crt", "device.key", "device.toml")
    ]
    assert (device / "device.key").stat().st_mode & 0o777 == 0o600
    assert (Path(machine["UNITS"]) / "cabafl-device.service").exists()
    done_calls = calls(machine)
    assert f"--requirement {fleet.path}/install/requirements-device.txt" in done_calls
    assert f"--no-deps --force-reinstall {wheel_of(fleet)}" in done_calls
    assert "systemctl enable cabafl-device\nsystemctl restart cabafl-device\n" in done_calls
    assert f"chown -R cabafl: {device}" in done_calls


def test_an_upgrade_keeps_the_owners_settings_and_the_key(
    fleet: FleetFolder, machine: dict[str, str], tmp_path: Path
) -> None:
    run(machine, fleet.path / "install" / "install.sh", fleet.path / "devices" / "001")
    installed = Path(fleet.settings.home) / "device"
    own = installed / "device.toml"
    own.write_text(own.read_text() + "nice = 3\n")
    key = (installed / "device.key").read_bytes()
    renewed = Path(shutil.copytree(fleet.path / "devices" / "001", tmp_path / "renewed"))
    (renewed / "device.key").unlink()
    (renewed / "device.crt").write_text("renewed")
    (renewed / "device.toml").write_text('server = "new.example.org:99"\nid = 1\npartition-id = 1\nwatts = 99.0\n')
    done = run(machine, fleet.path / "install" / "install.sh", renewed)
    assert done.returncode == 0, done.stderr
    text = own.read_text()
    assert text.startswith('server = "new.example.org:99"\n')
    assert text.endswith("nice = 3\n")
    assert "watts = 99.0" not in text
    assert (installed / "device.crt").read_text() == "renewed"
    assert (installed / "device.key").read_bytes() == key


def test_a_server_is_installed_without_keys_it_does_not_need(fleet: FleetFolder, machine: dict[str, str]) -> None:
    done = run(machine, fleet.path / "install" / "install.sh", fleet.path)
    assert done.returncode == 0, done.stderr
    installed = Path(fleet.settings.home) / "fleet"
    assert sorted(path.name for path in installed.rglob("*.key")) == ["broker.key", "server.key"]
    assert FleetFolder.load(installed).device_ids() == {0, 1}
    assert (installed / "state").is_dir()
    assert sorted(path.name for path in Path(machine["UNITS"]).iterdir()) == [
        *("cabafl-broker.service", "cabafl-server.service")
    ]
    assert "restart cabafl-broker\n" in calls(machine)


def test_a_device_removed_on_the_server_stays_removed(fleet: FleetFolder, machine: dict[str, str]) -> None:
    """The folder that is copied over the server's does not know of it."""
    run(machine, fleet.path / "install" / "install.sh", fleet.path)
    installed = Path(fleet.settings.home) / "fleet"
    for name in ("000", "001"):
        (installed / "devices" / name).rename(installed / "revoked" / name)
    again = run(machine, fleet.path / "install" / "install.sh", fleet.path)
    assert again.returncode == 0, again.stderr
    assert FleetFolder.load(installed).device_ids() == frozenset()
    assert f"cabafl deploy init {installed} --remove 000,001\n" in calls(machine)


def test_an_upgrade_in_place_copies_nothing_onto_itself(fleet: FleetFolder, machine: dict[str, str]) -> None:
    run(machine, fleet.path / "install" / "install.sh", fleet.path)
    run(machine, fleet.path / "install" / "install.sh", fleet.path / "devices" / "000")
    for name in ("fleet", "device"):
        installed = Path(fleet.settings.home) / name
        before = {path: path.read_bytes() for path in installed.rglob("*") if path.is_file()}
        done = run(machine, fleet.path / "install" / "install.sh", installed)
        assert done.returncode == 0, done.stderr
        assert {path: path.read_bytes() for path in installed.rglob("*") if path.is_file()} == before


def test_all_devices_are_installed_over_ssh(fleet: FleetFolder, machine: dict[str, str], tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# the lab\n-\n\nroot@board-1\n")
    done = run(machine, fleet.path / "install-all.sh", hosts)
    assert (done.returncode, done.stdout) == (0, "device 1 on root@board-1: installed\n"), done.stderr
    assert "id = 1" in (Path(fleet.settings.home) / "device" / "device.toml").read_text()


def test_a_machine_that_cannot_be_reached_is_named(fleet: FleetFolder, machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("unreachable\nboard-1\n")
    done = run(machine | {"JOBS": "1"}, fleet.path / "install-all.sh", tmp_path / "hosts")
    assert done.returncode != 0
    failed, installed = done.stdout.splitlines()
    assert failed.startswith("device 0 on unreachable: failed, no route (")
    assert installed == "device 1 on board-1: installed"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "accepted: one argument, the folder of a device or of a fleet"),
        (["/nowhere"], "/nowhere: no device.toml or fleet.toml there"),
    ],
)
def test_wrong_arguments_are_one_line(fleet: FleetFolder, machine: dict[str, str], words: list[str], line: str) -> None:
    done = run(machine, fleet.path / "install" / "install.sh", *words)
    assert (done.returncode, done.stderr) == (2, f"install.sh: {line}\n")
    assert not Path(fleet.settings.home).exists()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing(fleet: FleetFolder) -> None:
    scripts = [fleet.path / "broker.sh", fleet.path / "install-all.sh", fleet.path / "install" / "install.sh"]
    subprocess.run(["shellcheck", *map(str, scripts)], check=True)
