"""Flower's SuperLink as a process: the options it needs here."""

import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # else it calls on hosts outside


@dataclass(frozen=True)
class Certificates:
    """Of the server: the CA, the certificate it signed, the key to it."""

    authority: Path
    certificate: Path
    key: Path


def superlink_command(
    port: int,
    database: Path | None = None,
    certificates: Certificates | None = None,
    authenticate: bool = False,
    own_server: bool = True,
) -> list[str]:
    """A SuperLink on loopback. With a database it survives a restart.

    ``authenticate`` admits devices with a registered key only; without ``own_server`` it starts server apps itself.
    """
    words = [flower("flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--disable-runtime-dependency-installation"]
    words += ["--isolation", "process"] if own_server else []
    words += ["--database", str(database)] if database else []
    words += ["--enable-supernode-auth"] if authenticate else []
    if certificates is None:
        return [*words, "--insecure"]
    files = zip(
        ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"),
        (certificates.authority, certificates.certificate, certificates.key),
        strict=True,
    )
    return [*words, *(word for option, file in files for word in (option, str(file)))]


def flower(program: str) -> str:
    """One of Flower's commands, that of this Python environment."""
    return str(Path(sys.executable).with_name(program))


def flower_environment(home: Path) -> dict[str, str]:
    """The environment Flower's processes are started with; ``home`` is theirs to write to."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_reachable(port: int, seconds: float = 60.0) -> None:
    """Until something on this machine listens."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port} after {seconds:.0f} s")
        time.sleep(0.1)
