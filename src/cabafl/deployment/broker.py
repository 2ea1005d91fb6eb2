"""Mosquitto, started from a fleet folder. Nothing else in the package depends on this broker."""

import os
import shutil
import signal
from pathlib import Path

from cabafl.deployment.folder.layout import FleetFolder
from cabafl.errors import UserError
from cabafl.processes.children import Child, Children, answers

PROGRAM = "mosquitto"
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


def find_mosquitto() -> str | None:
    """The path of the program, or None if it is not installed."""
    return shutil.which(PROGRAM, path=_PATH)


def start_broker(children: Children, fleet: FleetFolder) -> Child:
    """Starts the broker of a fleet that listens on loopback; returns when it accepts connections."""
    if find_mosquitto() is None:
        raise UserError("mosquitto: not installed; accepted: version 2.0 or newer (Debian: apt-get install mosquitto)")
    port = fleet.settings.port
    if answers(port):
        raise UserError(f"port = {port}: in use on this machine; accepted: a free port")
    child = children.start("broker", [str(fleet.path / "broker.sh")], {**os.environ, "PATH": _PATH}, fleet.path)
    child.wait_for_port(port)
    return child


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
