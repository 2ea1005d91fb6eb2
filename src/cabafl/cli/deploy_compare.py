"""`cabafl deploy compare`"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cabafl.cli.arguments import ExperimentFile, Quiet, Targets
from cabafl.cli.compare import MethodNames, MethodSettings, read_comparison
from cabafl.cli.console import console, print_notice
from cabafl.cli.deploy_output import LogForm, make_log, outputs, require_deploy
from cabafl.cli.grid import Seeds
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.comparison.grid import GridRun
    from cabafl.comparison.study import Study
    from cabafl.config import Experiment
    from cabafl.deployment.log import Log
    from cabafl.lifecycle.run import Listener

DEVICES, TIME_SCALE, MOST_DEVICES = 10, 5.0, 1000

Devices = Annotated[
    int | None, typer.Option(help="Number of device processes; default: data.devices if it is a number, else 10.")
]
TimeScale = Annotated[
    float | None, typer.Option(help="Speed-up over the training times of the imitated boards; default: 5.")
]
Fleet = Annotated[
    Path | None,
    typer.Option("--fleet", metavar="DIR", help="Folder of an existing fleet, whose broker and devices are running."),
]
Out = Annotated[
    Path, typer.Option(help="Folder for fleet, logs, runs and report; an interrupted comparison continues.")
]


def compare(
    file: ExperimentFile = None,
    settings: MethodSettings = None,
    methods: MethodNames = "paper",
    devices: Devices = None,
    time_scale: TimeScale = None,
    fleet: Fleet = None,
    seeds: Seeds = 1,
    targets: Targets = None,
    out: Out = Path("testbed"),
    log: LogForm = "text",
    quiet: Quiet = False,
) -> None:
    """Run several methods one after the other on the same devices, imitated here or real, and report on them."""
    require_deploy()
    from cabafl.assembly import metric_of
    from cabafl.cli.report import parse_targets
    from cabafl.cli.run import stoppable
    from cabafl.comparison.study import make_study

    out = out.resolve()
    make_log(log)  # an unknown form is an error before anything starts
    base, variants = read_comparison(file, settings, methods)
    chosen = parse_targets(targets, metric_of(base))
    if fleet is None:
        base, study = _imitated(base, devices, time_scale, out)
    else:
        study = _elsewhere(base, fleet, {"--devices": devices, "--time-scale": time_scale}, out)
    runs = make_study(base, variants, range(base.seed, base.seed + seeds), out, study.devices)
    with stoppable(out, f"the same command and --out {out}"):
        notes = _carry_out(runs, study, base, out, log, quiet)
        _report(runs, out, chosen, quiet, notes)
    if any(run.failure is not None for run in runs):
        raise typer.Exit(1)


def _imitated(
    base: "Experiment", devices: int | None, time_scale: float | None, out: Path
) -> tuple["Experiment", "Study"]:
    """The experiment and the study on processes of this machine; everything that can be wrong is found here."""
    from cabafl.comparison.study import LOCAL, Study, check_same
    from cabafl.deployment.broker import require_broker
    from cabafl.deployment.testbed.testbed import paces, with_defaults

    known = base.data.devices
    count = devices if devices is not None else DEVICES if known == "auto" else known
    if not 1 <= count <= MOST_DEVICES:
        raise UserError(f"--devices = {count}: accepted: 1 to {MOST_DEVICES}")
    scale = TIME_SCALE if time_scale is None else time_scale
    if not 0.01 <= scale < float("inf"):
        raise UserError(f"--time-scale = {scale:g}: accepted: 0.01 or more")
    require_broker()
    base = base.model_copy(update={"data": base.data.model_copy(update={"devices": count})})
    base, study = with_defaults(base, count), Study(LOCAL, count, scale)
    paces(base, count, scale)
    check_same(out, study)
    return base, study


def _elsewhere(base: "Experiment", folder: Path, others: dict[str, float | None], out: Path) -> "Study":
    """The study on a fleet that is there. A fleet that grows meanwhile keeps the split of the data it started with."""
    from cabafl.comparison.study import Study, check_same, stored_study
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.server.operator import LOCK, is_running

    for option, value in others.items():
        if value is not None:
            raise UserError(f"{option} = {value:g}: cannot be combined with --fleet; accepted: without it")
    found = FleetFolder.load(folder)
    if not found.device_ids():
        raise UserError(
            f"--fleet = {folder}: has no devices; accepted: one or more (`cabafl deploy init {folder} --add 1`)"
        )
    if is_running(found.state / LOCK):
        raise UserError(f"--fleet = {folder}: another server runs on this fleet; accepted: one at a time")
    before, needed, known = stored_study(out), max(found.device_ids()) + 1, base.data.devices
    if known != "auto" and known < needed and before is None:
        raise UserError(f"data.devices = {known}: the fleet has a device {needed - 1}; accepted: {needed} or more")
    study = Study(str(found.path), known if known != "auto" else needed if before is None else before.devices)
    check_same(out, study)
    return study


def _carry_out(
    runs: "Sequence[GridRun]", study: "Study", base: "Experiment", out: Path, log: str, quiet: bool
) -> list[str]:
    """Runs what is not finished. Returns remarks for the report."""
    from cabafl.comparison.grid import locked
    from cabafl.comparison.study import LOCAL, run_study, slow_boards
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.mqtt.fleet import MqttFleet
    from cabafl.deployment.testbed.testbed import OpenFleet, Testbed

    left = [run for run in runs if not run.done]
    _announce(runs, left, quiet)
    with locked(out):
        study.store(out)
        bed = Testbed(out, study.devices, study.time_scale or TIME_SCALE) if study.fleet == LOCAL else None
        folder = out / "fleet" if bed is not None else Path(study.fleet)
        if left:
            context: AbstractContextManager[OpenFleet] = (
                nullcontext(OpenFleet(FleetFolder.load(folder))) if bed is None else bed.standing(base)
            )
            with context as fleet:
                run_study(left, fleet, MqttFleet(fleet.folder), lambda run: _outputs(run, runs, log, quiet))
        return [] if bed is None or not folder.exists() else slow_boards(runs, FleetFolder.load(folder))


def _announce(runs: "Sequence[GridRun]", left: "Sequence[GridRun]", quiet: bool) -> None:
    if quiet:
        return
    if len(left) < len(runs):
        console.print(f"{len(runs) - len(left)} of {len(runs)} runs are already finished.")
    seconds = [run.experiment.run.wall_time for run in left]
    if left and all(seconds):
        console.print(f"{len(left)} runs to go, {sum(filter(None, seconds)) / 60:.0f} minutes and what starting takes.")


@contextmanager
def _outputs(
    run: "GridRun", runs: "Sequence[GridRun]", log: str, quiet: bool
) -> Iterator[tuple["Listener | None", "Log"]]:
    with ExitStack() as stack:
        listener, writer = outputs(stack, run.experiment, log, quiet)
        writer.info(f"run {list(runs).index(run) + 1} of {len(runs)}: {run.label}, seed {run.seed}")
        yield listener, writer


def _report(
    runs: "Sequence[GridRun]", out: Path, targets: Sequence[float] | None, quiet: bool, notes: Sequence[str]
) -> None:
    from cabafl.cli.report import write_report

    for line in notes:
        print_notice("warning", line)
    failures = [f"{run.label}, seed {run.seed}: {run.failure}" for run in runs if run.failure is not None]
    for line in failures:
        print_notice("failed", line)
    finished = {run.folder: run.label for run in runs if run.done}
    if finished:
        write_report(finished, out, targets, quiet, [*(f"failed: {line}" for line in failures), *notes])
