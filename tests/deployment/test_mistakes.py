"""What goes wrong in the hands of people: a key used twice, two servers, old certificates, wrong clocks. Each is named
in one line, and survived where it can be."""

import datetime
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cryptography.x509 import Certificate

from cabafl.deployment.broker import find_mosquitto, start_broker
from cabafl.deployment.folder import certificates
from cabafl.deployment.folder.certificates import PublicKey, load_certificate, pem, public_key
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.folder.provision import load_authority
from cabafl.deployment.log import Log
from cabafl.deployment.mqtt.carrier import MqttCarrier
from cabafl.deployment.mqtt.fleet import MqttFleet
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.errors import RunStopped
from cabafl.processes.children import Child, Children
from tests.deployment.bed import ROOT, SETTINGS, bare_greeting, bed, check_that_every_job_ends_once, losses, uploaders
from tests.deployment.raw_mqtt import PATIENCE, local_fleet

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path / "logs") as made:
        yield made


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    return local_fleet(tmp_path / "fleet", 1)


def start_device(children: Children, fleet: FleetFolder) -> Child:
    words = [sys.executable, "-m", "cabafl", "deploy", "device", str(fleet.path), "--id", "0"]
    return children.start("device", words, ENVIRONMENT, fleet.path)


def wait_for(text: str, child: Child) -> str:
    """The line of its log with this text."""
    deadline = time.monotonic() + 3 * PATIENCE
    while text not in child.output():
        assert child.process.poll() is None, child.output()
        assert time.monotonic() < deadline, child.output()
        time.sleep(0.1)
    [line] = [line for line in child.output().splitlines() if text in line]
    return line


def renewed(path: Path, sign: Callable[[PublicKey], Certificate]) -> None:
    """Replaces a certificate by another for the same key."""
    path.write_bytes(pem(sign(public_key(load_certificate(path)))))


def test_a_device_with_an_expired_certificate_says_so(children: Children, fleet: FleetFolder) -> None:
    authority = load_authority(fleet)
    hour = datetime.timedelta(hours=1)
    own = fleet.device_folders()[0] / "device.crt"
    renewed(own, lambda key: authority.sign_client(key, "device-000", valid=-hour))
    start_broker(children, fleet)
    device = start_device(children, fleet)
    line = wait_for("expired on", device)
    assert "--renew" in line
    renewed(own, lambda key: authority.sign_client(key, "device-000"))


@pytest.mark.parametrize(
    ("shift", "text"),
    [(2, "not valid yet: this machine's clock is behind"), (-9, "has expired, or this machine's clock is ahead")],
)
def test_a_device_with_a_wrong_clock_says_so(
    children: Children, fleet: FleetFolder, monkeypatch: pytest.MonkeyPatch, shift: int, text: str
) -> None:
    """The broker's certificate is valid at another time."""
    authority = load_authority(fleet)
    monkeypatch.setattr(certificates, "_BACKDATED", datetime.timedelta(days=-shift))
    monkeypatch.setattr(certificates.Authority._leaf, "__defaults__", (datetime.timedelta(days=shift + 1),))
    monkeypatch.setattr("cabafl.deployment.broker._handshakes", lambda fleet: True)
    renewed(fleet.path / "broker.crt", lambda key: authority.sign_broker(key, *fleet.settings.certified))
    start_broker(children, fleet)
    wait_for(text, start_device(children, fleet))


def test_a_second_server_on_the_same_fleet_is_refused_in_one_line(
    children: Children, fleet: FleetFolder, tmp_path: Path
) -> None:
    start_broker(children, fleet)
    first = MqttFleet(fleet)
    carrier = first.open(announced("first"), Log(file=io.StringIO()))
    try:
        words = ["deploy", "server", str(fleet.path), *SETTINGS, "fleet.slots=1", "--out", str(tmp_path / "second")]
        done = subprocess.run(
            [sys.executable, "-m", "cabafl", *words],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        carrier.close(finished=True)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: {fleet.path}: another server runs on this fleet; accepted: one at a time"


def test_a_server_from_a_copy_of_the_folder_is_noticed(children: Children, fleet: FleetFolder, tmp_path: Path) -> None:
    """It gives up with a helpful line; the one that was there before goes on."""
    start_broker(children, fleet)
    shutil.copytree(fleet.path, tmp_path / "copy", ignore=shutil.ignore_patterns("state"))
    servers = [MqttFleet(fleet).open(announced("ours"), Log(file=io.StringIO()))]
    ours = servers[0]
    try:
        while not ours.connections:
            ours.receive(0.1)
        copy = FleetFolder.load(tmp_path / "copy")
        servers.append(MqttFleet(copy).open(announced("theirs"), Log(file=io.StringIO())))
        assert "another server has started a run on this fleet" in gives_up(servers)
        assert servers == [ours]
        deadline = time.monotonic() + PATIENCE
        while not ours.link.online.is_set():
            ours.receive(0.1)
            assert time.monotonic() < deadline
    finally:
        for server in servers:
            server.close(finished=True)


def announced(run: str) -> RunOnFleet:
    return RunOnFleet(run, bare_greeting(10), 10, lambda kind: 1, 60.0)


def gives_up(servers: list[MqttCarrier]) -> str:
    """Why the first of the servers stops; it is removed from the list."""
    deadline = time.monotonic() + 3 * PATIENCE
    while time.monotonic() < deadline:
        for server in servers:
            try:
                server.receive(0.05)
            except RunStopped as error:
                server.close(finished=False)
                servers.remove(server)
                return str(error)
    raise AssertionError("none")


@pytest.mark.deploy
def test_a_key_used_twice(tmp_path: Path) -> None:
    """A second process with the certificate of device 0: both say so, and the run goes on."""
    with bed(tmp_path, 3) as fleet:
        fleet.odd({1: "honest", 2: "honest"})
        fleet.device(0)
        fleet.serve("method.name=fedasync", "fleet.slots=2")
        fleet.wait_for_uploads(5, "the start")
        fleet.device(0, name="clone")
        text = "the broker ends each connection soon: another process may use this device's certificate"
        clones = [fleet.running[name] for name in ("device-0", "clone")]
        deadline = time.monotonic() + 60
        while not all(text in child.output() for child in clones):
            fleet.wait_for_uploads(1)
            assert time.monotonic() < deadline
        fleet.wait_for_uploads(10)
        events = fleet.stop()
        check_that_every_job_ends_once(events, 2)
        assert uploaders(events).keys() == {0, 1, 2}
        assert losses(events).keys() <= {0}
        assert all(child.output().count(text) == 1 for child in clones)
