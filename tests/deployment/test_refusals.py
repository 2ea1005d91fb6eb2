"""What the broker refuses: a real Mosquitto with the configuration of `cabafl deploy init`, on loopback."""

import datetime
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.deployment.broker import find_mosquitto, reload_broker, start_broker
from cabafl.deployment.folder.certificates import make_key, pem, write_key
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.folder.provision import load_authority, make_fleet
from cabafl.errors import RunStopped, UserError
from cabafl.processes.children import LOOPBACK, Children, answers
from tests.deployment.raw_mqtt import (
    OK,
    PATIENCE,
    Client,
    certificate_of,
    clients,
    connect_packet,
    local_fleet,
    raw,
    refusal,
    tls,
)

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFolder]:
    """Two devices and a running broker."""
    made = local_fleet(tmp_path_factory.mktemp("fleet") / "fleet", 2, packet_limit=1)
    with Children(made.state / "logs") as children:
        start_broker(children, made)
        yield made


def test_server_and_device_reach_each_other(fleet: FleetFolder) -> None:
    with clients(fleet, None, 0) as (server, device):
        server.subscribe("fleet/+/up", "fleet/+/here")
        device.subscribe("fleet/device-000/down", "fleet/all/#")
        assert server.publish("fleet/device-000/down", b"job") == OK
        assert device.receive() == ("fleet/device-000/down", b"job")
        assert server.publish("fleet/all/ask", b"question") == OK
        assert device.receive() == ("fleet/all/ask", b"question")
        for topic in ("fleet/device-000/up", "fleet/device-000/here"):
            assert device.publish(topic, b"answer") == OK
            assert server.receive() == (topic, b"answer")


def test_no_certificate(fleet: FleetFolder) -> None:
    assert refusal(fleet, tls(fleet, None)) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"


def test_a_certificate_of_a_foreign_authority(fleet: FleetFolder, tmp_path: Path) -> None:
    """The foreign authority has the same name, and the device too."""
    foreign = make_fleet(tmp_path / "foreign", fleet.settings, 1)
    assert refusal(fleet, tls(fleet, certificate_of(foreign, 0))) in (
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_DECRYPT_ERROR",
    )


def test_an_expired_certificate(fleet: FleetFolder, tmp_path: Path) -> None:
    key = make_key()
    write_key(tmp_path / "old.key", key)
    old = load_authority(fleet).sign_client(key.public_key(), "device-000", valid=-datetime.timedelta(hours=1))
    (tmp_path / "old.crt").write_bytes(pem(old))
    assert refusal(fleet, tls(fleet, tmp_path / "old.crt")) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"


def test_the_brokers_own_certificate_as_a_client(fleet: FleetFolder) -> None:
    assert refusal(fleet, tls(fleet, fleet.path / "broker.crt")) == "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"


def test_plain_tcp(fleet: FleetFolder) -> None:
    with socket.create_connection((LOOPBACK, fleet.settings.port), PATIENCE) as connection:
        connection.sendall(connect_packet("device-000"))
        try:
            answer = connection.recv(100)
        except ConnectionResetError:
            answer = b""
    assert answer[:1] != b"\x20"  # no CONNACK: nothing, or an alert of TLS


@pytest.mark.parametrize(
    "topic",
    [
        "fleet/device-001/up",
        "fleet/device-001/here",
        "fleet/device-000/down",
        "fleet/all/run",
        "fleet/all/model/1",
        "fleet/server/up",
        "$SYS/broker/uptime",
        "other",
    ],
)
def test_a_device_writes_to_its_own_topics_only(fleet: FleetFolder, topic: str) -> None:
    with clients(fleet, None, 0) as (server, device):
        server.subscribe("fleet/#")
        assert device.publish(topic, retain=True) == "Not authorized"
        assert device.publish("fleet/device-000/up", b"own") == OK
        assert server.receive() == ("fleet/device-000/up", b"own")  # the first message: the other went nowhere


@pytest.mark.parametrize("topic", ["fleet/device-001/down", "fleet/device-001/up", "fleet/+/down", "fleet/#", "#"])
def test_a_device_reads_its_own_topics_only(fleet: FleetFolder, topic: str) -> None:
    """The broker grants the subscription and delivers nothing."""
    with clients(fleet, None, 0) as (server, device):
        device.subscribe(topic, "fleet/device-000/down")
        for other in ("fleet/device-001/down", "fleet/device-001/up"):
            assert server.publish(other, b"secret") == OK
        assert server.publish("fleet/device-000/down", b"own") == OK
        assert device.receive() == ("fleet/device-000/down", b"own")


def test_a_retained_message_of_another_is_not_delivered(fleet: FleetFolder) -> None:
    with clients(fleet, 1, 0, None) as (other, device, server):
        assert other.publish("fleet/device-001/here", b"here", retain=True) == OK
        device.subscribe("fleet/+/here", "fleet/device-000/down")
        assert server.publish("fleet/device-000/down", b"own") == OK
        assert device.receive() == ("fleet/device-000/down", b"own")
        assert other.publish("fleet/device-001/here", b"", retain=True) == OK


def test_a_will_for_another_is_not_published(fleet: FleetFolder) -> None:
    with clients(fleet, None) as [server]:
        server.subscribe("fleet/#")
        Client(fleet, 0, will="fleet/device-001/here").vanish()
        Client(fleet, 0, will="fleet/device-000/here").vanish()
        assert server.receive() == ("fleet/device-000/here", b"gone")


def test_the_certificate_decides_the_client_id(fleet: FleetFolder) -> None:
    """A device that calls itself by another's name takes neither its session nor its messages."""
    with clients(fleet, 1, None) as (victim, server):
        victim.subscribe("fleet/device-001/down")
        for name in ("device-001", "server"):
            thief = Client(fleet, 0, client_id=name, expiry=60)
            assert not thief.resumed
            thief.subscribe("fleet/device-001/down")
            assert thief.publish("fleet/device-001/up") == "Not authorized"
            assert thief.publish("fleet/device-000/up") == OK
            assert server.publish("fleet/device-001/down", b"job") == OK
            assert victim.receive() == ("fleet/device-001/down", b"job")
            with pytest.raises(queue.Empty):
                thief.messages.get(timeout=0.2)
            thief.close()
            Client(fleet, 0).close()  # a clean start ends the thief's session


def test_a_cloned_key_throws_the_other_out(fleet: FleetFolder) -> None:
    """Mosquitto 2.0.11 closes the older connection without a word, others may say why."""
    with raw(fleet, tls(fleet, certificate_of(fleet, 0))) as first, raw(fleet, tls(fleet, certificate_of(fleet, 0))):
        assert first.recv(100) in (b"", b"\xe0\x01\x8e")  # closed, or DISCONNECT, session taken over


def test_an_oversized_packet_is_refused_unread(fleet: FleetFolder) -> None:
    """Its first bytes announce the length."""
    with raw(fleet, tls(fleet, certificate_of(fleet, 0))) as connection:
        length = MIB + 1
        connection.sendall(b"\x30" + bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14]))
        try:
            answer = connection.recv(100)
        except ConnectionResetError:
            answer = b""
    assert answer in (b"", b"\xe0\x01\x95")  # closed, or DISCONNECT, packet too large


def test_the_largest_packet_passes(fleet: FleetFolder) -> None:
    with clients(fleet, None, 0) as (server, device):
        server.subscribe("fleet/device-000/up")
        topic = "fleet/device-000/up"
        header = 4 + 2 + len(topic) + 2 + 1  # type and length, topic, number, no properties
        assert device.publish(topic, bytes(MIB - header)) == OK
        assert len(server.receive()[1]) == MIB - header


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    fleet = local_fleet(tmp_path / "fleet", 1)
    with (
        Children(tmp_path / "logs") as children,
        socket.create_server((LOOPBACK, fleet.settings.port)),
        pytest.raises(
            UserError, match=f"^port = {fleet.settings.port}: in use on this machine; accepted: a free port$"
        ),
    ):
        start_broker(children, fleet)


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    fleet = local_fleet(tmp_path / "fleet", 1)
    (fleet.path / "broker.key").unlink()
    with (
        Children(tmp_path / "logs") as children,
        pytest.raises(RunStopped, match=r"broker ended with code \d+: .*"),
    ):
        start_broker(children, fleet)
    assert "broker.key" in (tmp_path / "logs" / "broker.log").read_text()


def test_a_missing_broker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.deployment.broker._PATH", str(tmp_path))
    fleet = local_fleet(tmp_path / "fleet", 1)
    with (
        Children(tmp_path / "logs") as children,
        pytest.raises(UserError, match=r"^mosquitto: not installed; accepted:"),
    ):
        start_broker(children, fleet)


def test_the_broker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    fleet = local_fleet(tmp_path / "fleet", 1)
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from cabafl.processes.children import Children\nfrom cabafl.deployment.folder.layout import FleetFolder\n"
        "from cabafl.deployment.broker import start_broker\n"
        "start_broker(Children(Path(sys.argv[2])), FleetFolder.load(Path(sys.argv[1])))\nprint('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(fleet.path), str(tmp_path / "logs")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert answers(fleet.settings.port)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while answers(fleet.settings.port):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_only_the_broker_of_the_folder_is_signalled(tmp_path: Path) -> None:
    """SIGHUP would end any other process that has its number by now."""
    fleet = local_fleet(tmp_path / "fleet", 1)
    assert not reload_broker(fleet)
    fleet.pid_file.parent.mkdir()
    for text in (str(os.getpid()), "999999999", "no number", ""):
        fleet.pid_file.write_text(text)
        assert not reload_broker(fleet)
