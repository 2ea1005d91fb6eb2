"""Makes fleet folders: keys, certificates, configuration, systemd units.

Every folder is built under a temporary name and then renamed: a folder that exists is complete.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from cabafl.deployment.folder.certificates import (
    make_authority,
    make_device_key,
    make_server,
    write_certificate,
    write_device_key,
    write_key,
)
from cabafl.deployment.folder.layout import (
    CA,
    DEVICE,
    DEVICES,
    PRIVATE_KEY,
    PUBLIC_KEY,
    SETTINGS,
    Device,
    FleetFolder,
    FleetSettings,
    bracketed,
)
from cabafl.errors import UserError
from cabafl.processes.children import LOOPBACK

CALLS = (  # of the fleet API; without register-node and unregister-node, so that a device cannot admit itself
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
MAX_DEVICES = 100_000  # per call
_SERVER_UNITS = ("cabafl-superlink.service", "cabafl-proxy.service", "cabafl-server.service")


def make_fleet(path: Path, settings: FleetSettings, devices: int) -> FleetFolder:
    """Makes a fleet folder, or raises `UserError` and leaves nothing behind."""
    _check_number("--devices", devices)
    with _atomic_folder(path) as folder:
        values = _values(settings)
        _write_certificates(folder, settings)
        for name in ("superlink.sh", "proxy.sh"):
            _write(folder / name, values)
            (folder / name).chmod(0o700)
        for name in ("nginx.conf", "README.md"):
            _write(folder / name, values)
        (folder / "systemd").mkdir()
        for name in _SERVER_UNITS:
            _write(folder / "systemd" / name, values)
        (folder / "state").mkdir(mode=0o700)
        (folder / DEVICES).mkdir()
        (folder / SETTINGS).write_text(settings.toml(), encoding="utf-8")
        for number in range(devices):
            _make_device(FleetFolder(folder, settings), number)
    return FleetFolder.load(path)


def add_devices(fleet: FleetFolder, count: int) -> list[Device]:
    """Adds devices with the next free IDs."""
    _check_number("--add", count)
    first = max(fleet.device_folders(), default=-1) + 1
    return [Device.load(_make_device(fleet, number)) for number in range(first, first + count)]


def _write_certificates(folder: Path, settings: FleetSettings) -> None:
    """The server's certificate is also valid on loopback, where the proxy and the server connect to the SuperLink."""
    authority_key, authority = make_authority()
    names = dict.fromkeys((*settings.name, "localhost"))
    key, certificate = make_server(authority_key, names, dict.fromkeys((*settings.ip, LOOPBACK)))
    write_key(folder / "ca.key", authority_key)
    write_certificate(folder / CA, authority)
    write_key(folder / "server.key", key)
    write_certificate(folder / "server.crt", certificate)


def _make_device(fleet: FleetFolder, number: int) -> Path:
    target = fleet.path / DEVICES / f"{number:03}"
    values = {**_values(fleet.settings), "id": str(number)}
    with _atomic_folder(target) as folder:
        write_device_key(folder / PRIVATE_KEY, folder / PUBLIC_KEY, make_device_key())
        shutil.copyfile(fleet.path / CA, folder / CA)
        _write(folder / DEVICE, values)
        _write(folder / "cabafl-device.service", values)
    return target


def _values(settings: FleetSettings) -> dict[str, str]:
    """The values of the placeholders in the templates."""
    return {
        **{key: str(value) for key, value in settings.model_dump().items()},
        "address": settings.address,
        "superlink": settings.superlink,
        "loopback": LOOPBACK,
        "listen": bracketed(settings.listen),
        "hosts": ", ".join((*settings.name, *settings.ip)),
        "calls": "|".join(CALLS),
        "capability": "CAP_NET_BIND_SERVICE" if settings.port < 1024 else "",
    }


def _write(path: Path, values: Mapping[str, str]) -> None:
    """Writes the template of the same name with its placeholders filled in."""
    template = (files("cabafl.deployment") / "templates" / path.name).read_text(encoding="utf-8")
    path.write_text(re.sub(r"@(\w+)@", lambda match: values[match[1]], template), encoding="utf-8")


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
