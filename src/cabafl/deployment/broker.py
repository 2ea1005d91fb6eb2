"""Mosquitto, started from a fleet folder. Nothing else in the package depends on this broker."""

import os
import shutil
import signal
import socket
import ssl
import time
from pathlib import Path

from cabafl.deployment.folder.layout import FleetFolder
from cabafl.errors import RunStopped, UserError
from cabafl.processes.children import LOOPBACK, Child, Children, answers

PROGRAM = "mosquitto"
PATIENCE = 60.0  # seconds until a broker must have started
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


def find_mosquitto() -> str | None:
    """The path of the program, or None if it is not installed."""
    return shutil.which(PROGRAM, path=_PATH)


def require_broker() -> None:
    """Raises `UserError` if the broker is not installed."""
    if find_mosquitto() is None:
        raise UserError("mosquitto: not installed; accepted: version 2.0 or newer (Debian: apt-get install mosquitto)")


def start_broker(children: Children, fleet: FleetFolder) -> Child:
    """Starts the broker of a fleet that listens on loopback; returns when it accepts connections."""
    require_broker()
    port = fleet.settings.port
    if answers(port):
        raise UserError(f"port = {port}: in use on this machine; accepted: a free port")
    child = children.start("broker", [str(fleet.path / "broker.sh")], {**os.environ, "PATH": _PATH}, fleet.path)
    deadline = time.monotonic() + PATIENCE
    while not _handshakes(fleet):
        child.wait_for_port(port)  # raises when the program has ended
        if time.monotonic() > deadline:
            raise RunStopped(f"{child.name} does not accept connections after {PATIENCE:g} s; see {child.log}")
        time.sleep(0.05)
    return child


def _handshakes(fleet: FleetFolder) -> bool:
    """Whether TLS works: the port opens before Mosquitto has read its key."""
    context = ssl.create_default_context(cafile=fleet.ca)
    context.load_cert_chain(fleet.certificate, fleet.key)
    try:
        with (
            socket.create_connection((LOOPBACK, fleet.settings.port), 5.0) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except ssl.SSLCertVerificationError as error:
        raise RunStopped(f"{fleet.path}: the broker's certificate is not accepted: {error.verify_message}") from None
    except OSError:
        return False


def reload_broker(fleet: FleetFolder) -> bool:
    """Makes a running broker read access list, revocation list and certificates again; False if none was started from
    this folder, or by another user."""
    try:
        number = int(fleet.pid_file.read_text(encoding="utf-8"))
        process = Path("/proc") / str(number)
        if process.joinpath("comm").read_text(encoding="utf-8").strip() != PROGRAM:
            return False
        if process.joinpath("cwd").resolve(strict=True) != fleet.path.resolve():
            return False
        os.kill(number, signal.SIGHUP)
    except (OSError, ValueError):
        return False
    return True
