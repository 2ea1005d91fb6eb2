"""A standing fleet changes: devices removed and added, certificates renewed, with a real broker that keeps running."""

import datetime
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cryptography import x509

from cabafl.deployment.broker import find_mosquitto, start_broker
from cabafl.deployment.folder.certificates import load_certificate, load_revocations, problem
from cabafl.deployment.folder.layout import Device, FleetFolder
from cabafl.deployment.folder.membership import remove_devices, renew
from cabafl.deployment.folder.provision import add_devices
from cabafl.errors import UserError
from cabafl.processes.children import Child, Children
from tests.deployment.raw_mqtt import OK, PATIENCE, Client, certificate_of, clients, local_fleet, raw, refusal, tls

CERTIFICATE_REVOKED = "SSLV3_ALERT_CERTIFICATE_REVOKED"
needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="needs Mosquitto 2 (Debian: apt-get install mosquitto)"
)


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    return local_fleet(tmp_path / "fleet", 3)


@pytest.fixture
def broker(fleet: FleetFolder) -> Iterator[Child]:
    with Children(fleet.state / "logs") as children:
        yield start_broker(children, fleet)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def reloads(broker: Child) -> int:
    return broker.output().count("Reloading config")


def revoked_serials(fleet: FleetFolder) -> set[int]:
    found = load_revocations(fleet.path / "crl.pem")
    assert found is not None
    return {entry.serial_number for entry in found}


@needs_mosquitto
def test_a_removed_device_is_mute_at_once_and_refused_when_it_returns(fleet: FleetFolder, broker: Child) -> None:
    with clients(fleet, None, 0, 1) as (server, removed, kept):
        server.subscribe("fleet/+/up")
        removed.subscribe("fleet/device-000/down", "fleet/all/#")
        assert removed.publish("fleet/device-000/up") == OK
        assert server.receive()[0] == "fleet/device-000/up"
        change = remove_devices(fleet, [0])
        assert (change.listed, change.reloaded) == (True, True)
        until(lambda: reloads(broker) == 1)
        assert removed.publish("fleet/device-000/up") == "Not authorized"
        assert kept.publish("fleet/device-001/up") == OK
        assert server.receive()[0] == "fleet/device-001/up"
        assert server.publish("fleet/device-000/down") == OK
        assert server.publish("fleet/all/ask") == OK
        kept.subscribe("fleet/device-001/down")
        assert server.publish("fleet/device-001/down") == OK
        assert kept.receive()[0] == "fleet/device-001/down"
        assert removed.messages.empty()
    assert refusal(fleet, tls(fleet, fleet.path / "revoked" / "000" / "device.crt")) == CERTIFICATE_REVOKED
    raw(fleet, tls(fleet, certificate_of(fleet, 1))).close()


@needs_mosquitto
def test_a_second_list_replaces_the_first_in_a_running_broker(fleet: FleetFolder, broker: Child) -> None:
    """OpenSSL keeps both in memory and follows the one with the later date, down to the second."""
    for number in (0, 1):
        remove_devices(fleet, [number])
        until(lambda expected=number + 1: reloads(broker) == expected)  # type: ignore[misc]
        assert (
            refusal(fleet, tls(fleet, fleet.path / f"revoked/00{number}/device.crt"))
            == "SSLV3_ALERT_CERTIFICATE_REVOKED"
        )
    raw(fleet, tls(fleet, certificate_of(fleet, 2))).close()


@needs_mosquitto
def test_a_removed_device_cannot_resume_its_tls_session(fleet: FleetFolder, broker: Child) -> None:
    """A resumed session skips the certificates; a reload ends all sessions of TLS."""
    context = tls(fleet, certificate_of(fleet, 0))
    with raw(fleet, context) as first:
        session = first.session
    with raw(fleet, context, session) as again:
        assert again.session_reused
    remove_devices(fleet, [0])
    until(lambda: reloads(broker) == 1)
    assert refusal(fleet, context, session) == CERTIFICATE_REVOKED


def test_the_list_needs_the_authoritys_key_and_the_access_list_does_not(fleet: FleetFolder) -> None:
    """On the server, which has no such key."""
    key = fleet.path / "ca.key"
    hidden = key.rename(fleet.path.parent / "ca.key")
    change = remove_devices(fleet, [1])
    assert (change.listed, change.reloaded) == (False, False)
    assert "user device-001\ntopic deny #\n" in (fleet.path / "acl").read_text()
    assert revoked_serials(fleet) == set()
    with pytest.raises(UserError, match=r"ca\.key: cannot be read; accepted: the fleet folder of the machine that has"):
        add_devices(fleet, 1)
    hidden.rename(key)
    assert remove_devices(fleet, [1]).listed  # once more, where the key is
    assert revoked_serials(fleet) == {load_certificate(fleet.path / "revoked/001/device.crt").serial_number}


def test_the_number_of_a_removed_device_is_never_used_again(fleet: FleetFolder) -> None:
    remove_devices(fleet, [2, 0])
    assert [device.id for device in add_devices(fleet, 1)] == [3]
    assert fleet.device_ids() == {1, 3}
    shutil.copytree(fleet.path / "revoked" / "002", fleet.path / "devices" / "002")  # a careless copy
    assert fleet.device_ids() == {1, 3}


def test_an_unknown_device_is_one_line_and_nothing_changes(fleet: FleetFolder) -> None:
    with pytest.raises(UserError, match=r"^--remove = 7: no such device; accepted: 0, 1, 2$"):
        remove_devices(fleet, [1, 7])
    assert fleet.device_ids() == {0, 1, 2}
    assert "deny" not in (fleet.path / "acl").read_text()


def test_renewed_certificates_have_the_same_keys_and_the_new_names(fleet: FleetFolder) -> None:
    files = [fleet.path / "broker.crt", fleet.certificate, *(device.certificate for device in fleet.devices())]
    before = [load_certificate(file) for file in files]
    (fleet.path / "devices/000/device.key").unlink()  # it is on the device only
    own = fleet.path / "devices/000/device.toml"
    own.write_text(own.read_text() + "nice = 7\n")  # in the last table, [limits]
    changed, _ = renew(fleet, {"name": ["new.example.org"], "packet_limit": 8})
    after = [load_certificate(file) for file in files]
    for old, new in zip(before, after, strict=True):
        assert old.serial_number != new.serial_number
        assert old.public_key() == new.public_key()
        assert old.subject == new.subject
    names = after[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["new.example.org", "localhost"]
    assert changed == FleetFolder.load(fleet.path)
    assert (changed.settings.name, changed.settings.packet_limit) == (("new.example.org",), 8)
    device = Device.load(own.parent)
    assert (device.server, device.limits.nice) == (f"new.example.org:{fleet.settings.port}", 7)
    assert "max_packet_size 8388608\n" in (fleet.path / "mosquitto.conf").read_text()


def test_all_certificates_of_a_device_are_revoked_with_it(fleet: FleetFolder) -> None:
    first = load_certificate(certificate_of(fleet, 0)).serial_number
    renew(fleet, {})
    second = load_certificate(certificate_of(fleet, 0)).serial_number
    remove_devices(fleet, [0])
    assert revoked_serials(fleet) == {first, second}
    renew(fleet, {})
    assert revoked_serials(fleet) == {first, second}


@needs_mosquitto
def test_a_running_broker_takes_its_renewed_certificate_and_the_old_ones_of_devices(
    fleet: FleetFolder, broker: Child
) -> None:
    old = Path(shutil.copytree(fleet.path / "devices" / "000", fleet.path.parent / "old"))
    _, change = renew(fleet, {})
    assert change.reloaded
    until(lambda: reloads(broker) == 1)
    for certificate in (certificate_of(fleet, 0), old / "device.crt"):
        with raw(fleet, tls(fleet, certificate)) as connection:
            served = connection.getpeercert(binary_form=True)
        assert served is not None
        assert x509.load_der_x509_certificate(served) == load_certificate(fleet.path / "broker.crt")


@needs_mosquitto
def test_sessions_survive_a_restart_of_the_broker(fleet: FleetFolder) -> None:
    """A restart is the remedy where a reload is not enough."""
    with Children(fleet.state / "logs") as children:
        broker = start_broker(children, fleet)
        away = Client(fleet, 0, expiry=3600)
        away.subscribe("fleet/device-000/down")
        away.close()
        with clients(fleet, None) as [server]:
            assert server.publish("fleet/device-000/down", b"missed") == OK
            assert server.publish("fleet/all/run", b"greeting", retain=True) == OK
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(PATIENCE) == 0
        assert not fleet.pid_file.exists()
        start_broker(children, fleet)
        back = Client(fleet, 0, expiry=3600)
        assert back.resumed
        assert back.receive() == ("fleet/device-000/down", b"missed")
        back.subscribe("fleet/all/#")
        assert back.receive() == ("fleet/all/run", b"greeting")
        back.close()


@needs_mosquitto
def test_what_the_server_misses_is_bounded(tmp_path: Path) -> None:
    """A device that floods an absent server fills its queue and no more."""
    fleet = local_fleet(tmp_path / "fleet", 1, packet_limit=1, queue_limit=2)
    with Children(fleet.state / "logs") as children:
        broker = start_broker(children, fleet)
        server = Client(fleet, None, expiry=3600)
        server.subscribe("fleet/+/up")
        server.close()
        with clients(fleet, 0) as [device]:
            for _ in range(8):
                assert device.publish("fleet/device-000/up", bytes(1 << 19)) == OK
        server = Client(fleet, None, expiry=3600)
        until(lambda: server.messages.qsize() >= 4)
        time.sleep(0.2)
        assert server.messages.qsize() in (4, 5)
        server.close()
        assert "Outgoing messages are being dropped for client server" in broker.output()


@pytest.mark.parametrize(("days", "line"), [(3651, "expired on"), (-2, "valid from"), (0, None)])
def test_a_certificate_that_is_not_valid_now_is_named(fleet: FleetFolder, days: int, line: str | None) -> None:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    found = problem(fleet.certificate, "server", now)
    assert (found is None) == (line is None)
    assert line is None or f"server.crt: {line}" in str(found)


def test_a_certificate_of_another_user_is_named(fleet: FleetFolder) -> None:
    found = problem(certificate_of(fleet, 0), "device-001")
    assert found is not None
    assert found.endswith("device.crt: belongs to device-000; accepted: the certificate of device-001")


def test_the_commands_say_what_is_left_to_do(fleet: FleetFolder) -> None:
    def init(*words: str) -> str:
        command = [sys.executable, "-m", "cabafl", "deploy", "init", str(fleet.path), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    said = init("--remove", "0,2")
    assert "Removed: device 0, device 2." in said
    assert "Copy acl and crl.pem to the fleet folder of the one that does" in said
    said = init("--renew", "--ip", "192.0.2.1", "--port", "99")
    assert "broker 192.0.2.1:99, server and 1 devices" in said
    assert "needs a restart of the broker" in said
