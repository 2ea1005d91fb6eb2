"""Makes fleet folders: keys, certificates, configuration of the broker, systemd units.

Every folder is built under a temporary name and then renamed: a folder that exists is complete.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.x509 import Certificate

from cabafl.deployment.folder.certificates import Authority, make_key, pem, write_key
from cabafl.deployment.folder.layout import (
    BROKER,
    CA,
    CA_KEY,
    DEVICE,
    DEVICE_USER,
    DEVICES,
    ISSUED,
    OWN,
    REVOCATIONS,
    REVOKED,
    SERVER,
    SETTINGS,
    Device,
    FleetFolder,
    FleetSettings,
)
from cabafl.deployment.folder.writing import access_list, hand_over, render, template_values
from cabafl.errors import UserError

MAX_DEVICES = 100_000  # per call
SERVER_FILES = ("mosquitto.conf", "broker.sh", "README.md")
SERVER_UNITS = ("cabafl-broker.service", "cabafl-server.service")
DEVICE_UNIT = "cabafl-device.service"


def make_fleet(path: Path, settings: FleetSettings, devices: int) -> FleetFolder:
    """Makes a fleet folder, or raises `UserError` and leaves nothing behind."""
    _check_number("--devices", devices)
    with _atomic_folder(path) as folder:
        fleet = FleetFolder(folder, settings)
        for name in (DEVICES, REVOKED, "systemd"):
            (folder / name).mkdir()
        fleet.state.mkdir(mode=0o700)
        authority = Authority.make()
        _write_certificates(fleet, authority)
        write_configuration(fleet)
        for number in range(devices):
            _make_device(fleet, authority, number)
    return FleetFolder.load(path)


def add_devices(fleet: FleetFolder, count: int) -> list[Device]:
    """Adds devices with the next free IDs; the ID of a removed device is not free."""
    _check_number("--add", count)
    authority = load_authority(fleet)
    first = max(fleet.device_ids() | fleet.revoked_ids(), default=-1) + 1
    return [Device.load(_make_device(fleet, authority, number)) for number in range(first, first + count)]


def load_authority(fleet: FleetFolder) -> Authority:
    """The fleet's authority; raises `UserError` on a machine that does not have its key."""
    return Authority.load(fleet.path / CA_KEY, fleet.ca)


def write_configuration(fleet: FleetFolder) -> None:
    """Writes what follows from the settings: all files but keys, certificates and devices."""
    values = template_values(fleet.settings)
    for name in SERVER_FILES:
        render(fleet.path / name, values)
    (fleet.path / "broker.sh").chmod(0o700)
    for name in SERVER_UNITS:
        render(fleet.path / "systemd" / name, values)
    access_list(fleet)
    (fleet.path / SETTINGS).write_text(fleet.settings.toml(), encoding="utf-8")


def issue(fleet: FleetFolder, user: str, path: Path, certificate: Certificate) -> None:
    """Writes a certificate, and its serial number into the list of those that were issued: a renewed certificate
    leaves an older one behind, which is revoked with it."""
    with (fleet.path / ISSUED).open("a", encoding="utf-8") as file:
        file.write(f"{certificate.serial_number:x} {user}\n")
    path.write_bytes(pem(certificate))


def _write_certificates(fleet: FleetFolder, authority: Authority) -> None:
    folder = fleet.path
    write_key(folder / CA_KEY, authority.key)
    (folder / CA).write_bytes(pem(authority.certificate))
    (folder / REVOCATIONS).write_bytes(authority.revoke((), None))
    broker, server = make_key(), make_key()
    write_key(folder / f"{BROKER}.key", broker)
    write_key(folder / f"{SERVER}.key", server)
    certificate = authority.sign_broker(broker.public_key(), *fleet.settings.certified)
    issue(fleet, BROKER, folder / f"{BROKER}.crt", certificate)
    issue(fleet, SERVER, folder / f"{SERVER}.crt", authority.sign_client(server.public_key(), SERVER))


def _make_device(fleet: FleetFolder, authority: Authority, number: int) -> Path:
    target = fleet.path / DEVICES / f"{number:03}"
    values = {**template_values(fleet.settings), "id": str(number)}
    with _atomic_folder(target) as folder:
        key = make_key()
        write_key(folder / f"{OWN}.key", key)
        certificate = authority.sign_client(key.public_key(), DEVICE_USER.format(number))
        issue(fleet, DEVICE_USER.format(number), folder / f"{OWN}.crt", certificate)
        shutil.copyfile(fleet.ca, folder / CA)
        render(folder / DEVICE, values)
        render(folder / DEVICE_UNIT, values)
        hand_over(folder, fleet.path)
    return target


def _check_number(option: str, value: int) -> None:
    if not 1 <= value <= MAX_DEVICES:
        raise UserError(f"{option} = {value}: accepted: 1 to {MAX_DEVICES}")


@contextmanager
def _atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder of mode 0700 next to ``path``; renames it to ``path`` on success, else deletes it."""
    path = path.resolve()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path}: exists and is not an empty folder; accepted: a new or empty folder")
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)
        yield Path(temporary)
        Path(temporary).rename(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {error.strerror}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
