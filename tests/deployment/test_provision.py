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
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'cabafl[deploy]'")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from cabafl.deployment.flower.version import require_flower
from cabafl.deployment.folder.layout import Device, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import CALLS, add_devices, make_fleet
from cabafl.errors import UserError
from cabafl.validation import validated

SETTINGS = FleetSettings(name=("server.example.org", "backup.example.org"), ip=("192.0.2.7", "2001:db8::7"))


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
    keys = list(fleet.path.rglob("*.key"))
    assert len(keys) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (fleet.path, fleet.state)} == {0o700}


def test_the_certificate_has_the_given_names_and_loopback(fleet: FleetFolder) -> None:
    extensions = certificate(fleet.path / "server.crt").extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "backup.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(ip) for ip in ("192.0.2.7", "2001:db8::7", "127.0.0.1")
    ]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_certificate_is_signed_by_a_ca_that_cannot_sign_further_cas(fleet: FleetFolder) -> None:
    authority = certificate(fleet.path / "ca.crt")
    certificate(fleet.path / "server.crt").verify_directly_issued_by(authority)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


@pytest.mark.parametrize(("name", "accepted"), [("server.example.org", True), ("127.0.0.1", True), ("evil.org", False)])
def test_a_strict_client_accepts_the_certificate_for_its_names_only(
    fleet: FleetFolder, name: str, accepted: bool
) -> None:
    client = ssl.create_default_context(cafile=fleet.path / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(fleet.path / "server.crt", fleet.path / "server.key")
    assert handshake(client, server, name) == accepted


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
    assert Device.load(moved) == Device(moved, "server.example.org:9092", 1, 1)
    private: Any = load_ssh_private_key((moved / "device.key").read_bytes(), None)
    assert private.public_key() == load_ssh_public_key((moved / "device.pub").read_bytes())
    assert private.curve.name == "secp384r1"
    assert (moved / "ca.crt").read_bytes() == (fleet.path / "ca.crt").read_bytes()


def test_a_fleet_reads_back_as_made(fleet: FleetFolder) -> None:
    again = FleetFolder.load(fleet.path)
    assert again.settings == SETTINGS
    assert [device.id for device in again.devices()] == [0, 1]
    assert FleetSettings(ip=("2001:db8::7",)).address == "[2001:db8::7]:9092"


def test_no_placeholder_is_left(fleet: FleetFolder) -> None:
    texts = [path for path in fleet.path.rglob("*") if path.is_file() and path.suffix not in (".key", ".pub")]
    assert [path for path in texts if re.search(r"@\w+@", path.read_text(encoding="utf-8"))] == []


def test_added_devices_have_their_own_keys(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", SETTINGS, 1)
    assert [device.id for device in add_devices(fleet, 2)] == [1, 2]
    keys = {path.read_bytes() for path in fleet.path.glob("devices/*/device.pub")}
    assert len(keys) == 3
    result = init("fleet", "--add", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(fleet.device_folders()) == [0, 1, 2, 3]


def test_a_folder_that_could_not_be_completed_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError(28, "No space left on device")

    fleet = make_fleet(tmp_path / "other", SETTINGS, 1)
    monkeypatch.setattr("cabafl.deployment.folder.provision.make_device_key", broken)
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
    assert "CAP_NET_BIND_SERVICE" in (tmp_path / "fleet/systemd/cabafl-proxy.service").read_text()


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
        (["--name", "a", "--port", "9093"], "superlink_port = 9093: the same as port"),
        (["--name", "a", "--upload-limit", "5"], "upload_limit = 5: input should be greater than 5"),
        (["--name", "a", "--home", "a b"], "home = 'a b': not usable in a unit file; accepted: an absolute path"),
        (["--name", "a", "--devices", "0"], "--devices = 0: accepted: 1 to 100000"),
        (["--add", "2", "--port", "1"], "--add = 2: cannot be combined with other options"),
        (["--add", "2"], "fleet.toml: cannot be read (No such file or directory); accepted: a folder made by"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], line: str, tmp_path: Path) -> None:
    result = init("fleet", *words, cwd=tmp_path)
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "file").touch()
    result = init("fleet", "--name", "a", cwd=tmp_path)
    assert result.returncode == 2
    assert "fleet: exists and is not an empty folder; accepted: a new or empty folder" in result.stderr


def test_a_damaged_device_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "device.toml").write_text('server = "https://server"\nid = 0\npartition-id = 0\n')
    with pytest.raises(
        UserError, match=r"server = 'https://server': not an address; accepted: server.example.org:9092"
    ):
        Device.load(tmp_path)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'port'"):
        validated(FleetSettings, {"name": ["a"], "ports": 1})


def test_another_flower_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.deployment.flower.version.version", lambda name: "1.42.0")
    with pytest.raises(UserError, match=r"^flwr = 1.42.0: accepted: 1.41.\*, by pip install 'cabafl\[deploy\]'$"):
        require_flower()


def test_all_fleet_calls_pass_the_public_port_except_registration() -> None:
    from flwr.superlink.routers.fleet.router import router

    paths = {getattr(route, "path", "").removeprefix("/v1/fleet/") for route in router.routes}
    assert paths - set(CALLS) == {"register-node", "unregister-node"}
    assert set(CALLS) <= paths


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fleet = make_fleet(home / "fleet", FleetSettings(name=("a",), home=str(home)), 1)
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "cabafl").symlink_to(sys.executable)
    units = [*fleet.path.glob("systemd/*.service"), *fleet.path.glob("devices/*/*.service")]
    assert len(units) == 4
    verdict = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, units)],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in verdict.stderr.splitlines() if "cabafl-" in line] == []
