"""Runs one experiment on a fleet of real devices, from the beginning or from where a killed server left off."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cabafl.assembly import Parts, announce, assemble_server, engine_setup, make_method
from cabafl.config import Experiment, load_experiment
from cabafl.deployment.flower.carrier import FlowerCarrier, reply_limit
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.server.dispatcher import Dispatcher
from cabafl.deployment.server.driver import FleetDriver, Transport
from cabafl.deployment.server.status import StatusFile
from cabafl.engine.checkpoint import Checkpoint, load_checkpoint
from cabafl.engine.journal import Journal
from cabafl.engine.wall import WallEngine
from cabafl.errors import UserError
from cabafl.execution.choice import open_executor
from cabafl.lifecycle.run import Lifecycle, Listener
from cabafl.recording.environment import environment
from cabafl.recording.folder import EXPERIMENT, SUMMARY, RunFolder
from cabafl.toml import experiment_toml

Warn = Callable[[str], None]


def serve(
    experiment: Experiment,
    transport: Transport,
    out: Path,
    *,
    status: Path | None = None,
    listener: Listener | None = None,
    warn: Warn,
) -> dict[str, Any] | None:
    """Starts a run in ``out`` or continues the one there. Returns its summary, or None if it is already complete.

    Raises `Stopped` after SIGINT or SIGTERM; a run that was stopped or killed continues with the same call.
    """
    nodes = nodes_of(experiment, transport)
    capacity = capacity_of(experiment, out, max(nodes) + 1)
    experiment = for_devices(experiment, capacity)
    toml = experiment_toml(experiment, make_method(experiment).parameters)
    if (out / EXPERIMENT).exists() and (out / EXPERIMENT).read_text(encoding="utf-8") != toml:
        raise UserError(f"{out}: holds the run of another experiment; accepted: the same experiment, or another --out")
    if (out / SUMMARY).exists():
        return None
    with open_executor(experiment, warn) as workers, ExitStack() as cleanup:
        parts = assemble_server(experiment, capacity)
        announce(parts.method, warn)
        executor = workers.for_task(parts.task)
        folder, checkpoint = open_folder(out, toml)
        cleanup.callback(folder.close)
        journal = Journal(out, keep=experiment.deploy.keep_journal)
        cleanup.callback(journal.close)
        run = Lifecycle(experiment, parts.task.model.layout, folder, listener)
        setup = engine_setup(parts, executor, run.emit, experiment.run.wall_time)
        engine = WallEngine(setup, capacity, experiment.deploy.norm_bound)
        carrier = make_carrier(parts, capacity, transport, resumed=journal.length > 0)
        devices = {node: device for device, node in nodes.items()}
        enough = min(experiment.deploy.start_devices or len(nodes), len(nodes))
        dispatcher = Dispatcher(engine, carrier, journal, devices, enough=enough, warn=warn)
        driver = FleetDriver(dispatcher, carrier, transport, StatusFile(status, run, dispatcher), run.check_stop)
        return driver.carry_out(run, checkpoint)


def nodes_of(experiment: Experiment, transport: Transport) -> Mapping[int, int]:
    """Admits the fleet's devices; returns nodes by device. Raises `UserError` if there are none, or if the experiment
    sets no end of the run."""
    if experiment.run.wall_time is None and experiment.run.max_dispatches is None:
        raise UserError("run.wall_time: missing; accepted: the seconds the run lasts, e.g. run.wall_time=3600")
    nodes = transport.nodes()
    if not nodes:
        raise UserError("devices: the fleet has none; accepted: one or more (`cabafl deploy init DIR --add 1`)")
    return nodes


def open_folder(out: Path, toml: str) -> tuple[RunFolder, Checkpoint | None]:
    """Creates a run folder, or reopens that of an interrupted run and truncates its record to the checkpoint."""
    if not (out / EXPERIMENT).exists():
        return RunFolder.create(out, toml, environment(WallEngine.clock)), None
    folder = RunFolder.reopen(out)
    try:
        checkpoint = load_checkpoint(out, toml)
        folder.rewind(None if checkpoint is None else checkpoint.positions)
    except BaseException:
        folder.close()
        raise
    return folder, checkpoint


def make_carrier(parts: Parts, capacity: int, transport: Transport, resumed: bool) -> FlowerCarrier:
    """Opens the network of a run."""
    task = parts.task
    length = task.model.layout.size
    grid = transport.open(reply_limit(length), resumed)
    greeting = Greeting.of(parts.experiment, task, capacity).text()
    return FlowerCarrier(grid, greeting, length, task.feature_width, parts.experiment.deploy.job_ttl)


def capacity_of(experiment: Experiment, out: Path, needed: int) -> int:
    """The number of devices that can ever join the run: ``data.devices``; if that is "auto", the number the run in
    ``out`` started with, or ``needed`` for a new run. Raises `UserError` if it is less than ``needed``."""
    capacity = experiment.data.devices
    if capacity == "auto" and (out / EXPERIMENT).exists():
        capacity = load_experiment(out / EXPERIMENT).data.devices
    if capacity == "auto":
        return needed
    if capacity < needed:
        raise UserError(
            f"data.devices = {capacity}: the fleet has a device {needed - 1}; accepted: {needed} or more, set when the "
            "run starts"
        )
    return capacity


def for_devices(experiment: Experiment, capacity: int) -> Experiment:
    """The experiment with ``data.devices`` set to ``capacity`` and ``run.workers`` resolved."""
    try:
        experiment.slots(capacity)
    except ValueError as error:
        raise UserError(str(error)) from None
    data = experiment.data.model_copy(update={"devices": capacity})
    workers = 1 if experiment.run.workers == "auto" else experiment.run.workers  # the server only evaluates
    run = experiment.run.model_copy(update={"workers": workers})
    return experiment.model_copy(update={"data": data, "run": run})
