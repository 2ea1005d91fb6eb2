"""Starts a fleet's SuperLink and public port as child processes."""

import os
import sys
from pathlib import Path

from cabafl.deployment.folder.layout import FleetFolder
from cabafl.errors import UserError
from cabafl.processes.children import LOOPBACK, Child, Children, answers


def environment(flower_home: Path) -> dict[str, str]:
    """Environment of Flower's programs: no telemetry, files in ``flower_home``, this Python's programs first."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {
        **os.environ,
        "PATH": path,
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), "localhost", LOOPBACK))),
        "PYTHONUNBUFFERED": "1",
    }


def start_superlink(children: Children, fleet: FleetFolder) -> Child:
    """Starts the SuperLink; returns when it accepts connections."""
    return _start(children, fleet, ["superlink.sh"], "superlink_port", fleet.settings.superlink_port)


def start_proxy(children: Children, fleet: FleetFolder) -> Child:
    """Starts nginx on the public port; returns when it accepts connections."""
    # Under root, nginx workers would run as a user who cannot read the folder.
    words = ["-g", "user root;"] if os.geteuid() == 0 else []
    return _start(children, fleet, ["proxy.sh", *words], "port", fleet.settings.port)


def _start(children: Children, fleet: FleetFolder, words: list[str], setting: str, port: int) -> Child:
    if answers(port):
        raise UserError(f"{setting} = {port}: in use on this machine; accepted: a free port")
    command = [str(fleet.path / words[0]), *words[1:]]
    child = children.start(words[0].removesuffix(".sh"), command, environment(fleet.state / "flower"), fleet.path)
    child.wait_for_port(port)
    return child
