"""One run over a fleet of real devices: from its start, or from where a killed server left it, to its end."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from cabafl.assembly import check_fit, make_data, make_method, make_task, slots_for
from cabafl.config import Experiment, load_experiment
from cabafl.data.dataset import Dataset
from cabafl.data.partition import Partition
from cabafl.deployment.carrier import Forgotten, Hiccup, Interrupted
from cabafl.deployment.engine import Deployment
from cabafl.deployment.flower_carrier import FlowerCarrier, Grid
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.journal import Journal
from cabafl.deployment.server import Server
from cabafl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from cabafl.errors import UserError
from cabafl.execution.base import Executor
from cabafl.execution.choice import open_executor
from cabafl.learning.task import Task
from cabafl.methods.base import FeatureKind, Method
from cabafl.recording.environment import environment
from cabafl.recording.events import Evaluated, Event
from cabafl.recording.folder import EXPERIMENT, JOURNAL, SUMMARY, RunFolder, as_json, out_of_space, write_atomic
from cabafl.runner import Stopped, complete, draw, limits_of, signals, summary_of
from cabafl.toml import experiment_toml

POLL = 0.15  # seconds between two looks for answers
TELL = 2.0  # seconds between two status files
HICCUP = 2.0  # seconds after a failed call of the network
MESSAGE = 100_000  # bytes of a reply beside its numbers
STATUS = "status.json"
CLOCK = "wall"

Listener = Callable[[Event], None]
Warn = Callable[[str], None]


class Network(Protocol):
    """How a service gets at its grid, the first time and after the network has lost its memory."""

    def nodes(self) -> Mapping[int, int]:
        """Nodes of the network by device; exactly these are admitted."""

    def open(self, max_bytes: int, resumed: bool, again: bool = False) -> Grid:
        """A grid whose replies have at most so many bytes. ``resumed``: that of an earlier process if it is still
        known; with ``again`` a new one for sure."""

    def interrupt(self) -> None:
        """Calls that wait for the network are given up; called by a signal."""

    def close(self, finished: bool) -> None:
        """Leaves the run to whoever comes next, or ends it for good."""


def serve(
    experiment: Experiment,
    network: Network,
    out: Path,
    *,
    status: Path | None = None,
    listener: Listener | None = None,
    warn: Warn,
) -> dict[str, Any] | None:
    """Carries a run out, or goes on with the one in ``out``; its summary, or None if it is complete already."""
    if experiment.run.wall_time is None and experiment.run.max_dispatches is None:
        raise UserError("run.wall_time: missing; accepted: the seconds the run lasts, e.g. run.wall_time=3600")
    nodes = network.nodes()
    if not nodes:
        raise UserError("devices: the fleet has none; accepted: one or more (`cabafl deploy init DIR --add 1`)")
    places = places_of(experiment, out, max(nodes) + 1)
    experiment = for_devices(experiment, places)
    method, parameters = make_method(experiment)
    slots_for(experiment, places, method)
    toml = experiment_toml(experiment, parameters)
    if (out / EXPERIMENT).exists() and (out / EXPERIMENT).read_text(encoding="utf-8") != toml:
        raise UserError(f"{out}: holds the run of another experiment; accepted: the same experiment, or another --out")
    if (out / SUMMARY).exists():
        return None
    with open_executor(experiment, warn) as workers, ExitStack() as cleanup:
        task = server_task(experiment)
        check_fit(experiment, parameters, task)
        if getattr(parameters, "features", None) == "labels":
            warn("method.features = labels: every device tells the server how many samples of each class it has")
        executor = workers.for_task(task)
        begun = (out / EXPERIMENT).exists()
        folder = RunFolder.reopen(out) if begun else RunFolder.create(out, toml, environment(), CLOCK)
        cleanup.callback(folder.close)
        checkpoint = load_checkpoint(out, toml)
        if begun:
            folder.rewind(None if checkpoint is None else checkpoint.positions, CLOCK)
        run = _Service(experiment, method, task, executor, network, nodes, folder, listener, warn)
        run.status_file = status
        cleanup.callback(run.journal.close)
        return run.carry_out(checkpoint)


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


def server_task(experiment: Experiment) -> Task:
    """Test samples and network; the training samples are on the devices."""
    dataset, _ = make_data(experiment)
    nothing = dataset.train.select(torch.zeros(0, dtype=torch.int64))
    nobody = Partition(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return make_task(experiment, dataset.with_train(nothing), nobody)


def feature_width(task: Task, kind: FeatureKind) -> int:
    """How many numbers a device's features have: seen at one test sample."""
    one: Dataset = task.dataset.with_train(task.dataset.test.select(torch.zeros(1, dtype=torch.int64)))
    alone = Partition(np.zeros(1, dtype=np.int64), np.array([0, 1]))
    probe = Task(one, alone, task.model, task.settings, task.seed, task.feature_layer, str(task.device))
    return int(probe.features(task.model.save(), kind, [0]).shape[1])


@dataclass(frozen=True)
class DeviceStatus:
    """A line of ``cabafl deploy status``."""

    device: int
    online: bool
    samples: int
    job: int | None
    slot: int | None
    since: float | None  # the run's time when the job was sent
    seen: float | None  # seconds since the epoch
    jobs: int


class _Service:
    def __init__(
        self,
        experiment: Experiment,
        method: Method,
        task: Task,
        executor: Executor,
        network: Network,
        nodes: Mapping[int, int],
        folder: RunFolder,
        listener: Listener | None,
        warn: Warn,
    ) -> None:
        torch.set_num_threads(1)
        self.experiment = experiment
        self.task = task
        self.network = network
        self.folder = folder
        self.listener = listener
        self.status_file: Path | None = None
        self.rows: list[Evaluated] = []
        self.signal: int | None = None
        self.checkpoints = 0
        self.saved = time.perf_counter()
        self.told = -TELL
        self.journal = Journal(folder.path, keep=experiment.deploy.keep_journal)
        training, deploy = experiment.training, experiment.deploy
        places = experiment.data.devices
        assert isinstance(places, int)
        self.engine = Deployment(
            method,
            places,
            executor,
            task.model.save(),
            seed=experiment.seed,
            slots=experiment.slots(places),
            limits=limits_of(experiment, experiment.run.wall_time),
            parameters=task.model.layout.parameters,
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            norm_bound=deploy.norm_bound,
            emit=self._emit,
        )
        self.max_bytes = 8 * task.model.layout.size + MESSAGE  # twice the model: a wrong layout is told from an attack
        self.warn = warn
        self.carrier = FlowerCarrier(
            network.open(self.max_bytes, resumed=self.journal.length > 0),
            Greeting.of(experiment, task, places).text(),
            task.model.layout.size,
            lambda kind: feature_width(task, kind),
            deploy.job_ttl,
        )
        self.server = Server(
            self.engine,
            self.carrier,
            self.journal,
            {node: device for device, node in nodes.items()},
            enough=min(deploy.start_devices or len(nodes), len(nodes)),
            clock=time.monotonic,
            warn=warn,
        )

    def carry_out(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        finished = False
        try:
            with signals(self._stop):
                self._begin(checkpoint)
                while not self._over():
                    self._look_around()
                self.engine.finish()
                finished = True
        except Stopped:
            self._save()
            raise
        finally:
            draw(self.folder.path, self.experiment, self.rows, CLOCK)
            summary = self._finish() if finished else None
            self._tell("complete" if finished else "stopped")
            self.network.close(finished)
        assert summary is not None
        return summary

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """A run that was killed goes on where its journal ends."""
        first, now = 0, 0.0
        if checkpoint is not None:
            self.engine.restore(checkpoint.engine)
            self.server.started = self.engine.started
            first, now = checkpoint.engine["journal"], self.engine.now
            self.checkpoints = checkpoint.number
            self.rows = self.folder.rows()
        for given in self.journal.inputs(first):
            self.server.replay(given)
            now = max(now, given.t)
        if self.journal.length:
            self._try(lambda: self.server.resume(now))

    def _over(self) -> bool:
        limit = self.engine.limits.seconds
        if limit is not None and self.server.now() >= limit:
            self.engine.pass_time(limit)
        return self.server.started and self.engine.over

    def _look_around(self) -> None:
        before = self.journal.length
        self._try(self.server.step)
        if time.perf_counter() - self.saved > self.experiment.run.checkpoint_every:
            self._save()
        if time.perf_counter() - self.told > TELL:
            self._tell("running" if self.server.started else "waiting for devices")
        if self.journal.length == before:
            time.sleep(POLL)

    def _try(self, work: Callable[[], object]) -> None:
        """Until it succeeds, or this process is to end. A network that has forgotten the run gets all of it again."""
        while True:
            if self.signal is not None:
                raise Stopped(self.signal)
            try:
                work()
                return
            except Forgotten:
                self.warn("the network has forgotten this run: jobs under way are sent again")
                work = self._reconnect
            except Hiccup as error:
                self.warn(f"the network does not do its part: {error}; trying again")
                time.sleep(HICCUP)
            except Interrupted:
                assert self.signal is not None

    def _reconnect(self) -> None:
        self.carrier.grid = self.network.open(self.max_bytes, resumed=True, again=True)
        self.server.resume(self.server.now())

    def _stop(self, number: int) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt  # asked twice: at once
        self.signal = number
        self.network.interrupt()

    def _emit(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.rows.append(event)
        self.folder(event)
        if self.listener is not None:
            self.listener(event)

    def _save(self) -> None:
        """Everything in the journal so far is in the checkpoint too."""
        self.saved = time.perf_counter()
        if not self.server.started:
            return
        self.checkpoints += 1
        try:
            state = self.engine.state() | {"journal": self.journal.length}
            checkpoint = Checkpoint(self.checkpoints, state, self.folder.positions(), self.engine.now)
            save_checkpoint(self.folder.path, checkpoint, (self.folder.path / EXPERIMENT).read_text(encoding="utf-8"))
        except OSError as error:
            raise out_of_space(error, self.folder.path) from error
        self.journal.forget(self.journal.length)

    def _tell(self, what: str) -> None:
        self.told = time.perf_counter()
        if self.status_file is None:
            return
        engine = self.engine
        status = {
            "state": what,
            "updated": time.time(),
            "run": str(self.folder.path),
            "method": self.experiment.method.name,
            "seconds": self.server.now(),
            "wall_time": self.experiment.run.wall_time,
            "version": engine.version,
            "uploads": engine.ledger.uploads,
            "losses": dict(engine.ledger.losses),
            "accuracy": self.rows[-1].accuracy if self.rows else None,
            "devices": [asdict(line) for line in self._devices()],
        }
        with suppress(OSError):
            write_atomic(self.status_file, as_json(status))

    def _devices(self) -> Iterator[DeviceStatus]:
        holds = {flight.device: flight for flight in self.engine.flights.values()}
        for device in range(len(self.engine.sizes)):
            flight = holds.get(device)
            yield DeviceStatus(
                device,
                device in self.engine.present,
                int(self.engine.sizes[device]),
                None if flight is None else flight.number,
                None if flight is None else flight.tag,
                None if flight is None else flight.started,
                self.server.seen.get(device),
                int(self.engine.selections[device]),
            )

    def _finish(self) -> dict[str, Any]:
        summary = summary_of(self.experiment, self.engine, self.rows, self.engine.now)
        complete(self.folder, self.task.model.layout.tensors(self.engine.model), summary)
        if not self.journal.keep:
            self.journal.close()
            shutil.rmtree(self.folder.path / JOURNAL, ignore_errors=True)
        return summary


def read_status(path: Path) -> dict[str, Any]:
    """What a server last told about itself."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no server has run here yet (`cabafl deploy server`)") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(status, dict):
        raise UserError(f"{path}: not a status file")
    return status
