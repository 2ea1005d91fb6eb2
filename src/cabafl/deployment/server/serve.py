"""Runs one experiment on a fleet of real devices, from the beginning or from where a killed server left it."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cabafl.assembly import Parts, announce, assemble_server, engine_setup, make_method
from cabafl.config import Experiment, load_experiment
from cabafl.deployment.flower.carrier import FlowerCarrier, most_bytes
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
from cabafl.recording.folder import EXPERIMENT, JOURNAL, SUMMARY, RunFolder
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
    """Carries a run out, or continues the one in ``out``; its summary, or None if it is complete already."""
    if experiment.run.wall_time is None and experiment.run.max_dispatches is None:
        raise UserError("run.wall_time: missing; accepted: the seconds the run lasts, e.g. run.wall_time=3600")
    nodes = transport.nodes()
    if not nodes:
        raise UserError("devices: the fleet has none; accepted: one or more (`cabafl deploy init DIR --add 1`)")
    places = places_of(experiment, out, max(nodes) + 1)
    experiment = for_devices(experiment, places)
    toml = experiment_toml(experiment, make_method(experiment).parameters)
    if (out / EXPERIMENT).exists() and (out / EXPERIMENT).read_text(encoding="utf-8") != toml:
        raise UserError(f"{out}: holds the run of another experiment; accepted: the same experiment, or another --out")
    if (out / SUMMARY).exists():
        return None
    with open_executor(experiment, warn) as workers, ExitStack() as cleanup:
        parts = assemble_server(experiment, places)
        announce(parts.method, warn)
        executor = workers.for_task(parts.task)
        folder, checkpoint = open_folder(out, toml)
        cleanup.callback(folder.close)
        journal = Journal(out, keep=experiment.deploy.keep_journal)
        cleanup.callback(journal.close)
        run = Lifecycle(experiment, parts.task.model.layout, folder, listener)
        setup = engine_setup(parts, executor, run.emit, experiment.run.wall_time)
        engine = WallEngine(setup, places, experiment.deploy.norm_bound)
        carrier = make_carrier(parts, places, transport, resumed=journal.length > 0)
        devices = {node: device for device, node in nodes.items()}
        enough = min(experiment.deploy.start_devices or len(nodes), len(nodes))
        dispatcher = Dispatcher(engine, carrier, journal, devices, enough=enough, warn=warn)
        driver = FleetDriver(dispatcher, carrier, transport, StatusFile(status, run, dispatcher), run.check_stop)
        summary = driver.carry_out(run, checkpoint)
    if not journal.keep:
        shutil.rmtree(out / JOURNAL, ignore_errors=True)
    return summary


def open_folder(out: Path, toml: str) -> tuple[RunFolder, Checkpoint | None]:
    """A new run folder, or that of an interrupted run, cut back to its checkpoint."""
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


def make_carrier(parts: Parts, places: int, transport: Transport, resumed: bool) -> FlowerCarrier:
    """Opens the network of a run."""
    task = parts.task
    length = task.model.layout.size
    grid = transport.open(most_bytes(length), resumed)
    greeting = Greeting.of(parts.experiment, task, places).text()
    return FlowerCarrier(grid, greeting, length, task.feature_width, parts.experiment.deploy.job_ttl)


def places_of(experiment: Experiment, out: Path, needed: int) -> int:
    """How many devices the run can ever have: as given, as when it began, or as many as there are."""
    places = experiment.data.devices
    if places == "auto" and (out / EXPERIMENT).exists():
        places = load_experiment(out / EXPERIMENT).data.devices
    if places == "auto":
        return needed
    if places < needed:
        raise UserError(
            f"data.devices = {places}: the fleet has a device {needed - 1}; accepted: from {needed}, given when the "
            "run begins"
        )
    return places


def for_devices(experiment: Experiment, places: int) -> Experiment:
    """The experiment for a fleet of so many places."""
    try:
        experiment.slots(places)
    except ValueError as error:
        raise UserError(str(error)) from None
    data = experiment.data.model_copy(update={"devices": places})
    workers = 1 if experiment.run.workers == "auto" else experiment.run.workers  # the server only evaluates
    run = experiment.run.model_copy(update={"workers": workers})
    return experiment.model_copy(update={"data": data, "run": run})
