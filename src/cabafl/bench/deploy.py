"""What a dispatch to a real device costs beyond the training: Flower as it comes, and with a resident device.

``python -m cabafl.bench.deploy ADDRESS`` is such a device.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flwr.app import Message

from cabafl.bench import deploy_flower
from cabafl.bench.deploy_flower import DEVICES, SECONDS, timed
from cabafl.bench.report import Check, Section, Table
from cabafl.bench.timing import Spread
from cabafl.deployment.children import Children, free_ports
from cabafl.deployment.device import serve
from cabafl.deployment.flower_internals import Link
from cabafl.deployment.grid import FleetGrid, open_grid
from cabafl.deployment.pieces import environment

SIZES = (1_000_000, 45_000_000)  # bytes of a model
POLL = 0.1
TIME_LIMIT = 600.0  # seconds for Flower's run
DEFAULT, OURS, DATABASE = "Flower's default", "cabafl", "cabafl, SuperLink with a database"

_APP = """
[project]
name = "cabafl-bench"
version = "1.0.0"
[tool.flwr.app]
publisher = "cabafl"
[tool.flwr.app.components]
serverapp = "overhead.app:server"
clientapp = "overhead.app:client"
[tool.flwr.app.config]
out = {out}
sizes = {sizes}
times = {times}
"""


def superlink_command(port: int, database: Path | None = None, own_server: bool = True) -> list[str]:
    """A SuperLink on loopback for measurements and tests: no TLS, every device is admitted.

    With a database it survives a restart; without ``own_server`` it starts server apps itself.
    """
    words = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--disable-runtime-dependency-installation"]
    words += ["--isolation", "process"] if own_server else []
    return words + (["--database", str(database)] if database else [])


def _exchange(grid: FleetGrid, message: Message) -> Message:
    ids = grid.push_messages([message])
    while not (replies := grid.pull_messages(ids)):
        time.sleep(POLL)
    return replies[0]


def ours(sizes: Sequence[int], times: int, database: bool = False) -> dict[str, list[float]]:
    """This process drives the SuperLink, the devices stay in memory. With a database the SuperLink can restart."""
    [port] = free_ports(1)
    link = Link(f"127.0.0.1:{port}", insecure=True)
    device = [sys.executable, "-m", "cabafl.bench.deploy", link.address]
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with Children(home) as children:
            _start_superlink(children, superlink_command(port, home / "state.db" if database else None), port, home)
            for number in range(DEVICES):
                children.start(f"device-{number}", device, environment(home), home)
            grid = open_grid(link, max_bytes=2 * max(sizes))
            try:
                return timed(grid, lambda message: _exchange(grid, message), sizes, times)
            finally:
                grid.close()


def default(sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    """`flwr run` of a server app and a client app, with SuperNodes as they come."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        app, out = home / "app", home / "out.json"
        (app / "overhead").mkdir(parents=True)
        (app / "overhead" / "__init__.py").touch()
        shutil.copyfile(deploy_flower.__file__, app / "overhead" / "app.py")
        words = json.dumps(" ".join(map(str, sizes)))
        (app / "pyproject.toml").write_text(_APP.format(out=json.dumps(str(out)), sizes=words, times=times))
        (home / "config.toml").write_text(f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
        with Children(home) as children:
            _start_superlink(children, superlink_command(port, own_server=False), port, home)
            for number, own in enumerate(free_ports(DEVICES)):
                command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
                command += ["--host", "127.0.0.1", "--port", str(own)]
                children.start(f"supernode-{number}", command, environment(home), home)
            _flwr_run(app, home)
            deadline = time.monotonic() + TIME_LIMIT
            while not out.exists():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Flower's run did not end within {TIME_LIMIT:.0f} s")
                time.sleep(0.5)
            taken: dict[str, list[float]] = json.loads(out.read_text())
    return taken


def _start_superlink(children: Children, command: list[str], port: int, home: Path) -> None:
    children.start("superlink", command, environment(home), home).wait_for_port(port)


def _flwr_run(app: Path, home: Path) -> None:
    program = str(Path(sys.executable).with_name("flwr"))
    words = [program, "run", str(app), "bench"]
    done = subprocess.run(words, env=environment(home), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"flwr run failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")


def measure(sizes: Sequence[int] = SIZES, times: int = 8) -> Section:
    """About three minutes on an idle machine, most of it for Flower's default."""
    taken = {DEFAULT: default(sizes, times), OURS: ours(sizes, times), DATABASE: ours(sizes, times, database=True)}
    spreads = {name: {size: Spread.of(values) for size, values in found.items()} for name, found in taken.items()}
    titles = [f"{size / 1e6:g} MB" for size in sizes]
    rows = [(name, *(spreads[name][str(size)].text(2) for size in sizes)) for name in taken]
    return Section(
        "deploy",
        "Overhead of a dispatch to a real device",
        [Table("s per dispatch beyond the training", ("set-up", *titles), rows)],
        [
            f"SuperLink and {DEVICES} devices on loopback without TLS, one dispatch at a time, each device in turn; "
            f"{times} dispatches after one that warms up; median (lowest to highest).",
            f"The handler imports torch and sleeps {SECONDS} s; weights are random, one flat array, there and back.",
            "Flower's default: `flwr run`, `flower-supernode`, `Grid.send_and_receive`. "
            f"cabafl: devices stay in memory, the server asks for replies every {POLL} s.",
        ],
        {name: {size: spread.figures() for size, spread in found.items()} for name, found in spreads.items()},
        [
            Check(
                f"{name}: s beyond the training, {titles[0]} model",
                spreads[name][str(sizes[0])].median,
                1.0,
                above=False,
            )
            for name in (OURS, DATABASE)
        ],
    )


if __name__ == "__main__":
    serve(Link(sys.argv[1], insecure=True), deploy_flower.handle)
