"""Runs one experiment on a fleet of real devices, from the beginning or from where a killed server left off."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabafl.assembly import Parts, announce, assemble_server, engine_setup
from cabafl.checked import make_method
from cabafl.config import Experiment, load_experiment
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.server.carrier import Carrier, Network, RunOnFleet
from cabafl.deployment.server.dispatcher import MAX_OFFENCES, Dispatcher, Quarantined
from cabafl.deployment.server.driver import FleetDriver
from cabafl.deployment.server.operator import CommandBox, StatusFile
from cabafl.engine.checkpoint import Checkpoint, load_checkpoint
from cabafl.engine.journal import Journal
from cabafl.engine.wall import WallEngine
from cabafl.errors import RunStopped, UserError
from cabafl.execution.choice import open_executor
from cabafl.files import write_atomic
from cabafl.learning.task import Task
from cabafl.lifecycle.run import Lifecycle, Listener
from cabafl.recording.environment import environment
from cabafl.recording.folder import EXPERIMENT, JOURNAL, SUMMARY, RunFolder
from cabafl.toml import experiment_toml

RUN_ID = "run-id"


@dataclass(frozen=True)
class Station:
    """Where a server works: the run folder, and, if there is a fleet folder, its status file and commands."""

    out: Path
    log: Log
    status: Path | None = None
    commands: Path | None = None
    listener: Listener | None = None


def serve(experiment: Experiment, network: Network, station: Station) -> dict[str, Any] | None:
    """Starts a run in ``station.out`` or continues the one there. Returns its summary, or None if it is already
    complete.

    Raises `Stopped` after SIGINT or SIGTERM; a run that was stopped or killed continues with the same call.
    """
    check_end(experiment)
    devices = network.devices
    if not devices:
        raise UserError("devices: the fleet has none; accepted: one or more (`cabafl deploy init DIR --add 1`)")
    out = station.out
    capacity = capacity_of(experiment, out, max(devices) + 1)
    experiment = for_devices(experiment, capacity)
    toml = experiment_toml(experiment, make_method(experiment).parameters)
    if (out / EXPERIMENT).exists() and (out / EXPERIMENT).read_text(encoding="utf-8") != toml:
        raise UserError(f"{out}: holds the run of another experiment; accepted: the same experiment, or another --out")
    if (out / SUMMARY).exists():
        return None
    announce(make_method(experiment), station.log.warn)
    return _serve(experiment, network, station, toml)


def _serve(experiment: Experiment, network: Network, station: Station, toml: str) -> dict[str, Any]:
    """Begins again from the last checkpoint whenever an input or an alarm is put into quarantine."""
    enough = min(experiment.deploy.start_devices or len(network.devices), len(network.devices))
    failed_alarms = 0
    carrier: Carrier | None = None
    commands: CommandBox | None = None
    finished = False
    try:
        while True:
            try:
                with ExitStack() as cleanup:
                    server = _open(experiment, station, toml, cleanup)
                    offences = server.journal.quarantine.offences
                    if carrier is None:
                        carrier = network.open(server.run_on_fleet(), station.log)
                    commands = commands or CommandBox(station.commands)  # those for a server that runs are not ours
                    summary = server.carry_out(carrier, commands, enough)
                    finished = True
                    return summary
            except Quarantined as error:
                failed_alarms += error.device is None
                if failed_alarms > 2 * MAX_OFFENCES:
                    raise RunStopped(f"{error}; it is not the first: the method itself fails") from error
                if error.device is not None and offences[error.device] > 2 * MAX_OFFENCES:
                    raise RunStopped(f"{error}; without that device too: the method itself fails") from error
                if carrier is not None:
                    carrier.close(finished=False)
                    carrier = None
                what = "telling it" if error.device is None else "that input"
                station.log.warn(f"{error}; the run goes on without {what}", error.device)
    finally:
        if commands is not None:
            commands.close()
        if carrier is not None:
            carrier.close(finished)


@dataclass(frozen=True)
class _Server:
    """The parts of a run that are made anew after a quarantine."""

    parts: Parts
    engine: WallEngine
    run: Lifecycle
    journal: Journal
    checkpoint: Checkpoint | None
    station: Station

    def run_on_fleet(self) -> RunOnFleet:
        """How the network announces this run."""
        task, experiment = self.parts.task, self.parts.experiment
        greeting = Greeting.of(experiment, task, len(self.engine.sizes)).text()
        name = _run_id(self.station.out)
        ttl, devices = experiment.deploy.job_ttl, len(self.engine.sizes)
        return RunOnFleet(name, greeting, task.model.layout.size, task.feature_width, ttl, devices)

    def carry_out(self, carrier: Carrier, commands: CommandBox, enough: int) -> dict[str, Any]:
        """Runs to the end, or until `Quarantined`."""
        log, offences = self.station.log, self.journal.quarantine.offences
        excluded = frozenset(device for device, count in offences.items() if count >= MAX_OFFENCES)
        dispatcher = Dispatcher(self.engine, carrier, self.journal, log, enough=enough, excluded=excluded)
        status = StatusFile(self.station.status, self.run, dispatcher)
        return FleetDriver(dispatcher, self.run, status, commands).carry_out(self.checkpoint)


def _open(experiment: Experiment, station: Station, toml: str, cleanup: ExitStack) -> _Server:
    workers = cleanup.enter_context(open_executor(experiment, station.log.warn))
    assert experiment.data.devices != "auto"
    parts = assemble_server(experiment, experiment.data.devices, station.log.info)
    executor = workers.for_task(parts.task)
    folder, checkpoint = open_folder(station.out, toml, parts.task)
    cleanup.callback(folder.close)
    journal = Journal(station.out, keep=experiment.deploy.keep_journal)
    cleanup.callback(journal.close)
    run = Lifecycle(experiment, parts.task.model.layout, folder, station.listener, station.log.warn)
    setup = engine_setup(parts, executor, run.emit, experiment.run.wall_time)
    engine = WallEngine(setup, experiment.data.devices, experiment.deploy.norm_bound)
    engine.skipped = journal.quarantine.alarms.keys()
    return _Server(parts, engine, run, journal, checkpoint, station)


def check_end(experiment: Experiment) -> None:
    """Raises `UserError` if a run on real devices would not end."""
    if experiment.run.wall_time is None and experiment.run.max_dispatches is None:
        raise UserError("run.wall_time: missing; accepted: the seconds the run lasts, e.g. run.wall_time=3600")


def _run_id(out: Path) -> str:
    """Random, the same for the whole life of a run: devices and server ignore messages of other runs."""
    path = out / JOURNAL / RUN_ID
    if not path.exists():
        write_atomic(path, secrets.token_hex(16).encode())
    return path.read_text(encoding="utf-8")


def open_folder(out: Path, toml: str, task: Task) -> tuple[RunFolder, Checkpoint | None]:
    """Creates a run folder, or reopens that of an interrupted run and truncates its record to the checkpoint."""
    if not (out / EXPERIMENT).exists():
        about = environment(WallEngine.clock, task.goal.metrics[0].info)
        return RunFolder.create(out, toml, about, task.spec.model_dump_json(indent=2)), None
    folder = RunFolder.reopen(out)
    try:
        checkpoint = load_checkpoint(out, toml)
        folder.rewind(None if checkpoint is None else checkpoint.positions)
    except BaseException:
        folder.close()
        raise
    return folder, checkpoint


def capacity_of(experiment: Experiment, out: Path, needed: int) -> int:
    """The number of devices that can ever join the run: ``data.devices``; if that is "auto", the number the run in
    ``out`` started with, or ``needed`` for a new run. Raises `UserError` if a new run has fewer than ``needed``."""
    capacity = experiment.data.devices
    started = (out / EXPERIMENT).exists()
    if capacity == "auto" and started:
        capacity = load_experiment(out / EXPERIMENT).data.devices
    if capacity == "auto":
        return needed
    if capacity < needed and not started:
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
