"""The fleet folder: certificates that verify, private keys, one-line errors for wrong input."""

import ipaddress
import os
import pty
import re
import shutil
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from cabafl.deployment.folder.certificates import common_name, problem
from cabafl.deployment.folder.layout import Device, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import add_devices, make_fleet
from cabafl.errors import UserError
from cabafl.validation import validated
from tests.cli.program import refused

SETTINGS = FleetSettings(name=("server.example.org", "backup.example.org"), ip=("192.0.2.7", "2001:db8::7"))
CLIENTS = ("server.crt", "devices/000/device.crt", "devices/001/device.crt")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    return make_fleet(tmp_path_factory.mktemp("made") / "fleet", SETTINGS, 2)


def init(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cabafl", "deploy", "init", *words]
    return subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_private_keys_are_readable_by_their_owner_only(fleet: FleetFolder) -> None:
    keys = {str(path.relative_to(fleet.path)): path for path in fleet.path.rglob("*.key")}
    assert sorted(keys) == ["broker.key", "ca.key", "devices/000/device.key", "devices/001/device.key", "server.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.values()} == {0o600}
    folders = (fleet.path, fleet.state, *fleet.device_folders().values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_a_key_file_is_private_before_it_has_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    real = os.open

    def watched(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".key"):
            modes.append(mode)
        return real(path, flags, mode)

    monkeypatch.setattr("cabafl.deployment.folder.certificates.os.open", watched)
    make_fleet(tmp_path / "fleet", SETTINGS, 1)
    assert modes == [0o600] * 4


def test_the_brokers_certificate_has_the_given_names_and_loopback(fleet: FleetFolder) -> None:
    extensions = certificate(fleet.path / "broker.crt").extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "backup.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(ip) for ip in ("192.0.2.7", "2001:db8::7", "127.0.0.1", "::1")
    ]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_certificates_are_signed_by_a_ca_that_cannot_sign_further_cas(fleet: FleetFolder) -> None:
    authority = certificate(fleet.path / "ca.crt")
    for name in ("broker.crt", *CLIENTS):
        certificate(fleet.path / name).verify_directly_issued_by(authority)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_the_common_name_of_a_client_is_its_user_name(fleet: FleetFolder) -> None:
    found = [certificate(fleet.path / name) for name in CLIENTS]
    assert [common_name(each) for each in found] == ["server", "device-000", "device-001"]
    for each in found:
        purposes = each.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        key = each.public_key()
        assert isinstance(key, EllipticCurvePublicKey)
        assert isinstance(key.curve, SECP256R1)


def test_the_revocation_list_is_signed_empty_and_valid_as_long_as_the_ca(fleet: FleetFolder) -> None:
    """OpenSSL refuses every client if the list has expired."""
    authority = certificate(fleet.path / "ca.crt")
    revoked = x509.load_pem_x509_crl((fleet.path / "crl.pem").read_bytes())
    assert revoked.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    assert len(revoked) == 0
    assert revoked.next_update_utc == authority.not_valid_after_utc
    assert certificate(fleet.certificate).not_valid_after_utc < authority.not_valid_after_utc


@pytest.mark.parametrize(("name", "accepted"), [("server.example.org", True), ("127.0.0.1", True), ("evil.org", False)])
def test_a_strict_client_accepts_the_certificate_for_its_names_only(
    fleet: FleetFolder, name: str, accepted: bool
) -> None:
    assert handshake(strict_client(fleet), server(fleet, "broker"), name) == accepted


def test_a_device_cannot_pose_as_the_broker(fleet: FleetFolder) -> None:
    """Its certificate is for clients only, whatever names a thief would like."""
    client = strict_client(fleet)
    client.check_hostname = False
    assert handshake(client, server(fleet, "broker"), "evil.org")
    assert not handshake(client, server(fleet, "devices/000/device"), "evil.org")


def strict_client(fleet: FleetFolder) -> ssl.SSLContext:
    client = ssl.create_default_context(cafile=fleet.ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    return client


def server(fleet: FleetFolder, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fleet.path / f"{name}.crt", fleet.path / f"{name}.key")
    return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return ends[0].version() in ("TLSv1.2", "TLSv1.3")


def test_a_device_folder_is_complete_in_itself(fleet: FleetFolder, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(fleet.path / "devices" / "001", tmp_path / "device"))
    device = Device.load(moved)
    assert device == Device(moved, "server.example.org:8883", 1, 1)
    assert (device.user, device.endpoint) == ("device-001", ("server.example.org", 8883))
    private = load_pem_private_key(device.key.read_bytes(), None)
    assert private.public_key() == certificate(device.certificate).public_key()
    assert device.ca.read_bytes() == fleet.ca.read_bytes()
    assert problem(device.certificate, device.user) is None


def test_a_fleet_reads_back_as_made(fleet: FleetFolder) -> None:
    again = FleetFolder.load(fleet.path)
    assert again.settings == SETTINGS
    assert [device.id for device in again.devices()] == [0, 1]
    assert again.device_ids() == {0, 1}


def test_where_the_broker_is_reached() -> None:
    assert FleetSettings(ip=("2001:db8::7",)).address == "[2001:db8::7]:8883"
    assert SETTINGS.endpoint == ("127.0.0.1", 8883)
    assert FleetSettings(name=("a",), listen="::").endpoint == ("::1", 8883)
    own = FleetSettings(name=("a",), listen="192.0.2.9", port=99)
    assert own.endpoint == ("192.0.2.9", 99)
    assert "192.0.2.9" in own.certified[1]
    assert FleetSettings(name=("a",), broker="[2001:db8::7]:99").endpoint == ("2001:db8::7", 99)


def test_a_packet_is_never_larger_than_mqtt_allows() -> None:
    assert FleetSettings(name=("a",)).packet_bytes == 64 << 20
    assert FleetSettings(name=("a",), packet_limit=256).packet_bytes == (256 << 20) - 1


def test_no_placeholder_is_left(fleet: FleetFolder) -> None:
    texts = [path for path in fleet.path.rglob("*") if path.is_file()]
    assert [path for path in texts if re.search(r"@\w+@", path.read_text(encoding="utf-8"))] == []


def test_added_devices_have_their_own_keys(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", SETTINGS, 1)
    assert [device.id for device in add_devices(fleet, 2)] == [1, 2]
    keys = {path.read_bytes() for path in fleet.path.glob("devices/*/device.key")}
    assert len(keys) == 3
    result = init("fleet", "--add", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert fleet.device_ids() == {0, 1, 2, 3}


def test_a_folder_that_could_not_be_completed_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    fleet = make_fleet(tmp_path / "other", SETTINGS, 1)
    monkeypatch.setattr("cabafl.deployment.folder.provision.write_key", broken)
    with pytest.raises(UserError, match="No space left on device"):
        make_fleet(tmp_path / "fleet", SETTINGS, 1)
    with pytest.raises(UserError, match="No space left on device"):
        add_devices(fleet, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert [path.name for path in (fleet.path / "devices").iterdir()] == ["000"]


def test_the_command_makes_a_fleet_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    result = init("fleet", "--devices", "1", "--name", "localhost", "--port", "443", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "localhost:443" in result.stdout
    assert "CAP_NET_BIND_SERVICE" in (tmp_path / "fleet/systemd/cabafl-broker.service").read_text()
    assert len(list((tmp_path / "fleet/install").glob("cabafl-*-py3-none-any.whl"))) == 1


def test_the_command_asks_for_names_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"server.example.org, 192.0.2.7\n")
    command = [sys.executable, "-m", "cabafl", "deploy", "init", "fleet", "--devices", "1"]
    subprocess.run(command, cwd=tmp_path, stdin=theirs, capture_output=True, timeout=60, check=True)
    for end in (ours, theirs):
        os.close(end)
    settings = FleetFolder.load(tmp_path / "fleet").settings
    assert (settings.name, settings.ip) == (("server.example.org",), ("192.0.2.7",))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name, ip: none given"),
        (["--ip", "1.2.3"], "ip.0 = '1.2.3': not an IP address; accepted: 192.0.2.7"),
        (["--name", "*.example.org"], "name.0 = '*.example.org': not a DNS name; accepted: server.example.org"),
        (["--name", "192.0.2.7"], "name.0 = '192.0.2.7': not a DNS name"),
        (["--name", "a", "--port", "70000"], "port = 70000: input should be less than or equal to 65535"),
        (["--name", "a", "--packet-limit", "257"], "packet_limit = 257: input should be less than or equal to 256"),
        (["--name", "a", "--queue-limit", "8"], "queue_limit = 8: less than one packet; accepted: packet_limit (64)"),
        (["--name", "a", "--broker", "b"], "broker = 'b': not an address; accepted: server.example.org:8883"),
        (["--name", "a", "--home", "a b"], "home = 'a b': not usable in a unit file; accepted: an absolute path"),
        (["--name", "a", "--devices", "0"], "--devices = 0: accepted: 1 to 100000"),
        (["--add", "2", "--port", "1"], "--add = 2: cannot be combined; accepted: no other option"),
        (["--add", "2", "--renew"], "--add = 2: cannot be combined; accepted: no other option"),
        (["--renew", "--devices", "2"], "--renew = True: cannot be combined; accepted: the options of init but"),
        (["--remove", "x"], "--remove = 'x': accepted: numbers of devices, such as 3 or 3,7"),
        (["--add", "2"], "fleet.toml: cannot be read (No such file or directory); accepted: a folder made by"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refused(["deploy", "init", "fleet", *words], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "file").touch()
    result = init("fleet", "--name", "a", cwd=tmp_path)
    assert result.returncode == 2
    assert "fleet: exists and is not an empty folder; accepted: a new or empty folder" in result.stderr


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'port'"):
        validated(FleetSettings, {"name": ["a"], "ports": 1})
    (tmp_path / "fleet.toml").write_text('name = ["a"]\nports = 1\n')
    with pytest.raises(UserError, match=r"fleet\.toml: ports = 1: unknown key, did you mean 'port'"):
        FleetFolder.load(tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fleet = make_fleet(home / "fleet", FleetSettings(name=("a",), home=str(home)), 1)
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "cabafl").symlink_to(sys.executable)
    units = [*fleet.path.glob("systemd/*.service"), *fleet.path.glob("devices/*/*.service")]
    assert len(units) == 3
    verdict = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, units)],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in verdict.stderr.splitlines() if "cabafl-" in line] == []
