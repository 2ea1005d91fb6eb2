"""Overhead of a dispatch to a real device: Flower's default against cabafl's device processes, which stay in memory.

``python -m cabafl.bench.deploy ADDRESS`` runs such a device without TLS; ``... FOLDER`` with its key and certificate.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message

from cabafl.bench import deploy_flower
from cabafl.bench.deploy_flower import DEVICES, SECONDS, timed
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.bench.timing import Spread
from cabafl.deployment import wire
from cabafl.deployment.device.loop import serve
from cabafl.deployment.flower.admission import admit, server_link
from cabafl.deployment.flower.grid import FleetGrid, open_grid
from cabafl.deployment.flower.internals import Link
from cabafl.deployment.folder.layout import CA, PRIVATE_KEY, Device, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.messages import TrainingJob, TrainingReply
from cabafl.deployment.testbed.programs import environment, start_proxy, start_superlink
from cabafl.deployment.testbed.testbed import has_proxy
from cabafl.methods.base import PLAIN
from cabafl.processes.children import LOOPBACK, Children, free_ports

SIZES = (1_000_000, 45_000_000)  # bytes of a model
POLL = 0.1  # seconds
TIME_LIMIT = 600.0  # seconds for Flower's run
MESSAGE = 100_000  # upper bound on the bytes of a reply besides its weights
DEFAULT, OURS, FLEET = "Flower's default", "cabafl, bare", "cabafl, as deployed"

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
    """Command of a SuperLink on loopback for benchmarks and tests: no TLS, every device is admitted.

    With ``database`` its messages survive a restart. With ``own_server`` = False it starts server apps itself.
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


def ours(sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    """Seconds per dispatch of cabafl without TLS, keys and database."""
    [port] = free_ports(1)
    link = Link(f"127.0.0.1:{port}", insecure=True)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with Children(home) as children:
            _start_superlink(children, superlink_command(port), port, home)
            for number in range(DEVICES):
                _start_device(children, number, link.address, home)
            return _timed(open_grid(link, max_bytes=2 * max(sizes) + MESSAGE), sizes, times)


def fleet(sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    """Seconds per dispatch as deployed: TLS, keys, a SuperLink with a database, behind nginx if it is installed."""
    port, superlink_port = free_ports(2)
    settings = FleetSettings(ip=(LOOPBACK,), port=port, superlink_port=superlink_port, listen=LOOPBACK)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        made = make_fleet(home / "fleet", settings, DEVICES)
        with Children(home / "logs") as children:
            start_superlink(children, made)
            if has_proxy():
                start_proxy(children, made)
            admit(made)
            for device in made.devices():
                _start_device(children, device.id, str(device.folder), home)
            return _timed(open_grid(server_link(made), max_bytes=2 * max(sizes) + MESSAGE), sizes, times)


def _timed(grid: FleetGrid, sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    try:
        return timed(
            grid,
            lambda message: _exchange(grid, message),
            sizes,
            times,
            pack=lambda weights: wire.encode_job(TrainingJob(0, weights, PLAIN)),
            unpack=lambda reply: wire.decode_reply(reply.content, _numbers(reply)).weights,
        )
    finally:
        grid.finish()
        grid.close()


def _numbers(message: Message) -> int:
    """The number of weights in a message; in a real run the device knows it from its task."""
    records = [record for record in message.content.values() if isinstance(record, ConfigRecord)]
    return sum(len(record["numbers"]) for record in records if isinstance(record["numbers"], bytes)) // 4


def _start_device(children: Children, number: int, where: str, home: Path) -> None:
    command = [sys.executable, "-m", "cabafl.bench.deploy", where]
    children.start(f"device-{number}", command, environment(home), home)


def handle(message: Message, context: Context) -> Message:
    """Does the same as `deploy_flower.handle`, with cabafl's messages."""
    job = wire.decode_job(message.content, _numbers(message))
    weights = torch.from_numpy(job.weights)
    time.sleep(SECONDS)
    return Message(
        content=wire.encode_reply(TrainingReply((weights + 1).numpy(), SECONDS, 0.0, None)), reply_to=message
    )


def default(sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    """Seconds per dispatch of `flwr run` with unmodified SuperNodes."""
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
                    raise RuntimeError(f"Flower's run did not finish within {TIME_LIMIT:.0f} s")
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


def measure(sizes: Sequence[int] = SIZES, times: int = 8) -> BenchSection:
    """Measures all three set-ups: about four minutes on an idle machine, most of it for Flower's default."""
    taken = {DEFAULT: default(sizes, times), OURS: ours(sizes, times), FLEET: fleet(sizes, times)}
    spreads = {name: {size: Spread.of(values) for size, values in found.items()} for name, found in taken.items()}
    titles = [f"{size / 1e6:g} MB" for size in sizes]
    rows = [(name, *(spreads[name][str(size)].text(2) for size in sizes)) for name in taken]
    return BenchSection(
        "deploy",
        "Overhead of a dispatch to a real device",
        [BenchTable("s per dispatch beyond training", ("set-up", *titles), rows)],
        [
            f"SuperLink and {DEVICES} devices on loopback, one dispatch at a time, devices in turn; {times} dispatches "
            "after a warm-up; median (lowest to highest).",
            f"The handler imports torch and sleeps {SECONDS} s; random weights both ways.",
            "Flower's default: `flwr run`, `flower-supernode`, `Grid.send_and_receive`, one array; no TLS. "
            f"cabafl: devices stay in memory, bytes in one record, the server polls every {POLL} s; bare: without TLS, "
            "keys and database; as deployed: with all of them"
            + (" and behind nginx." if has_proxy() else "; nginx is not installed here."),
        ],
        {name: {size: spread.figures() for size, spread in found.items()} for name, found in spreads.items()},
        [
            Check(
                f"{name}: s beyond training, {titles[0]} model",
                spreads[name][str(sizes[0])].median,
                1.0,
                above=False,
            )
            for name in (OURS, FLEET)
        ],
    )


def _main(where: str) -> None:
    """Runs a device: without TLS at an address, or as configured in its folder."""
    if not Path(where).is_dir():
        serve(Link(where, insecure=True), handle)
        return
    own = Device.load(Path(where))
    serve(Link(own.server, own.folder / CA), handle, private_key=own.folder / PRIVATE_KEY)


if __name__ == "__main__":
    _main(sys.argv[1])
