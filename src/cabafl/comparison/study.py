"""Several methods one after the other on the same fleet of real devices."""

import json
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cabafl.assembly import check_fit, make_server_task, slots_for
from cabafl.checked import make_method
from cabafl.comparison.grid import LOCK, GridRun, make_grid
from cabafl.config import Experiment
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.log import Log
from cabafl.deployment.server.carrier import Network
from cabafl.deployment.server.serve import check_end, for_devices, serve
from cabafl.deployment.testbed.testbed import OpenFleet
from cabafl.errors import RunStopped, UserError
from cabafl.files import as_json, write_atomic
from cabafl.lifecycle.run import Listener
from cabafl.recording.folder import EVENTS

STUDY = "study.json"
LOCAL = "local"
TOO_SLOW = 1.1  # median job time of the imitated boards, as a multiple of what it should be
Outputs = Callable[[GridRun], AbstractContextManager[tuple[Listener | None, Log]]]


@dataclass(frozen=True)
class Study:
    """The fleet that all runs of a study share; in the study's folder as ``study.json``."""

    fleet: str  # its folder; LOCAL: imitated by processes of this machine, in the study's own folder
    devices: int  # numbers of devices are below this
    time_scale: float | None = None  # of an imitated fleet

    def store(self, out: Path) -> None:
        """Writes the file, unless it is there."""
        if not (out / STUDY).exists():
            write_atomic(out / STUDY, as_json(asdict(self)))


def stored_study(out: Path) -> Study | None:
    """The study of a folder; None if the folder is new or empty. Raises `UserError` if it holds something else."""
    if not out.exists():
        return None
    try:
        if not (out / STUDY).exists():
            if any(path.name != LOCK for path in out.iterdir()):
                accepted = "a new or empty folder, or that of an earlier `cabafl deploy compare`"
                raise UserError(f"--out = {out}: holds something else; accepted: {accepted}")
            return None
        return Study(**json.loads((out / STUDY).read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be read: {error.strerror}") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{out / STUDY}: damaged ({error}); accepted: what `cabafl deploy compare` writes") from None


def check_same(out: Path, study: Study) -> None:
    """Raises `UserError` unless ``out`` is free, or holds a study on the same fleet."""
    before = stored_study(out)
    if before is None or before == study:
        return
    given, known = asdict(study), asdict(before)
    key = next(key for key in given if given[key] != known[key])
    option = f"--{key.replace('_', '-')}"
    raise UserError(
        f"{option} = {given[key]}: the study in {out} has {known[key]}; accepted: the same, or another --out"
    )


def make_study(
    base: Experiment, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], out: Path, devices: int
) -> list[GridRun]:
    """The runs in their order: every method with the first seed, then with the next. Raises `UserError` for methods
    that do not fit and for folders that hold another run; writes nothing."""
    check_end(base)
    base = for_devices(base, devices)
    runs = make_grid(base, variants, seeds, out)
    if not all(run.done for run in runs):
        task = make_server_task(base)
        for run in runs[: len(variants)]:
            method = make_method(run.experiment)
            slots_for(run.experiment, devices, method)
            check_fit(method, task)
    return runs


def run_study(runs: Sequence[GridRun], fleet: OpenFleet, network: Network, outputs: Outputs) -> None:
    """Serves the unfinished runs one after the other; an interrupted one continues from its journal. A run that fails
    gets its ``failure``, and the others go on.

    ``outputs`` is entered around each run. Raises `Stopped` after SIGINT or SIGTERM; the same call continues.
    """
    for run in runs:
        if run.done:
            continue
        with outputs(run) as (listener, log):
            fleet.revive(log)
            try:
                serve(run.experiment, network, fleet.station(run.folder, log, listener))
            except UserError:
                raise
            except RunStopped as error:
                run.failure = str(error)
            except Exception as error:  # a mistake in one method
                run.log = run.folder.with_suffix(".log")
                run.log.write_text(traceback.format_exc(), encoding="utf-8")
                run.failure = f"{type(error).__name__}: {error}; see {run.log}"


def slow_boards(runs: Sequence[GridRun], fleet: FleetFolder) -> list[str]:
    """A line about each finished run in which this machine could not keep up with the boards it imitates."""
    paces = {device.id: device.pace for device in fleet.devices() if device.pace is not None}
    lines = []
    for run in runs:
        shares = list(_shares_of_pace(run.folder / EVENTS, paces)) if run.done else []
        middle = statistics.median(shares) if shares else 0.0
        if middle > TOO_SLOW:
            lines.append(
                f"{run.label}, seed {run.seed}: a job took {middle:.1f} times as long (median) as on the imitated "
                "board, because this machine is too slow; a smaller --time-scale or data.train_limit helps"
            )
    return lines


def _shares_of_pace(events: Path, paces: Mapping[int, float]) -> Iterator[float]:
    """Seconds of each answered job, as a multiple of its device's pace."""
    devices: dict[int, int] = {}
    with events.open(encoding="utf-8") as lines:
        for line in lines:
            if '"event":"dispatch"' not in line and '"event":"answer"' not in line:
                continue
            event = json.loads(line)
            if event["event"] == "dispatch":
                devices[event["job"]] = event["device"]
            elif (pace := paces.get(devices.pop(event["job"], -1))) is not None:
                yield event["seconds"] / pace
