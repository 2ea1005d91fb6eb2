"""Which runs the requested tables and figures need; equal experiments are one run, whoever asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cabafl.comparison.grid import GridRun
from cabafl.config import Experiment
from cabafl.data import DESCRIPTIONS
from cabafl.data.catalogue import folder_of
from cabafl.errors import UserError
from cabafl.paper.artefact import Artefact
from cabafl.paper.definitions import ArtefactLayout, layout, narrowed, setting_experiment
from cabafl.paper.identity import digest, identity

RUNS = "runs"


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    artefacts: Sequence[Artefact]
    scale: str
    out: Path
    seeds: int = 1
    methods: Sequence[str] | None = None
    only: str | None = None
    roots: Mapping[str, str] = field(default_factory=dict)
    part: tuple[int, int] = (1, 1)
    device: str = "cpu"


def layouts(request: Request) -> list[ArtefactLayout]:
    """The requested artefacts. Raises `UserError` if ``--only`` leaves nothing of any of them."""
    found = [layout(artefact, request.scale, request.methods, request.roots) for artefact in request.artefacts]
    if request.only is None:
        return found
    kept = [table for table in (narrowed(table, request.only) for table in found) if table.cells]
    if not kept:
        names = sorted({entry.setting or entry.id for table in found for entry in (*table.rows, *table.columns)})
        accepted = f"part of {', '.join(names)}" if names else "all of it: it has no runs"
        raise UserError(f"--only = {request.only!r}: matches no row or column; accepted: {accepted}")
    return kept


def plan_runs(request: Request, tables: Sequence[ArtefactLayout]) -> list[GridRun]:
    """One run per experiment and seed in the order of the artefacts; of these, the share of this part."""
    found: dict[Path, GridRun] = {}
    for table in tables:
        for cell in table.cells:
            for seed in range(1, request.seeds + 1):
                run = cell.experiment.run.model_copy(update={"device": request.device})
                experiment = cell.experiment.model_copy(update={"seed": seed, "run": run})
                folder = request.out / RUNS / folder_name(experiment)
                names = dict.fromkeys([cell.setting, table.rows[cell.row].id, table.columns[cell.column].id])
                label = ", ".join(names)
                found.setdefault(folder, GridRun(label, seed, experiment, folder))
    part, parts = request.part
    return list(found.values())[part - 1 :: parts]


def folder_name(experiment: Experiment) -> str:
    """Readable, and different for different results: ``cifar10-cnn-beta0.1-cabafl-1a2b3c4d5e-seed1``."""
    data, model = experiment.data, experiment.model.name.rpartition(":")[2]
    spread = f"beta{data.beta}" if data.partition == "dirichlet" else data.partition
    method = experiment.method.name.rpartition(":")[2]
    code = digest(identity(experiment.model_copy(update={"seed": 0})))
    return f"{data.dataset}-{model}-{spread}-{method}-{code}-seed{experiment.seed}"


def missing_data(request: Request, tables: Sequence[ArtefactLayout]) -> dict[str, list[str]]:
    """Data sets that are not there -> names of the artefacts that need them."""
    missing: dict[str, list[str]] = {}
    for table in tables:
        experiments = [cell.experiment for cell in table.cells]
        if table.artefact.observe is not None:
            setting = table.artefact.observe.setting
            experiments.append(setting_experiment(table.artefact, request.scale, setting, request.roots))
        for name in sorted({experiment.data.dataset for experiment in experiments if not is_there(experiment)}):
            missing.setdefault(name, []).append(table.artefact.name)
    return missing


def is_there(experiment: Experiment) -> bool:
    """Whether the data set needs no files, or has some where it is read from."""
    data = experiment.data
    if data.dataset in ("mnist5k", "synthetic"):
        return True
    path = folder_of(data.dataset, Path(data.root).expanduser() if data.root else None)
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def how_to_get(name: str) -> str:
    """One line about a missing data set."""
    return DESCRIPTIONS[name].get if name in DESCRIPTIONS else f"--data {name}=PATH"
