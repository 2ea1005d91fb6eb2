"""Runs what is missing and writes the artefacts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cabafl.comparison.grid import GridRun, check_folder
from cabafl.errors import UserError
from cabafl.files import copy_whole, write_atomic
from cabafl.paper.definitions import ArtefactLayout, artefacts
from cabafl.reproduction.claims import CLAIMS
from cabafl.reproduction.page import index_page
from cabafl.reproduction.plan import RUNS, Request, is_there, layouts, missing_data, plan_runs
from cabafl.reproduction.pool import RunPool
from cabafl.reproduction.result import ArtefactResult, build, read_results, write_result
from cabafl.reproduction.similarities import measure_similarities, observation_path, observed

INDEX = "index.html"


@dataclass
class Reproduction:
    """A request with its tables; ``elsewhere`` are more folders with finished runs."""

    request: Request
    elsewhere: Sequence[Path] = ()
    tables: list[ArtefactLayout] = field(init=False)
    outdated: list[Path] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.tables = layouts(self.request)
        for folder in self.elsewhere:
            if not folder.is_dir():
                raise UserError(f"--runs = {folder}: not a folder; accepted: folders that contain run folders")

    def without_rows(self) -> list[str]:
        """The artefacts of which ``--only`` leaves nothing."""
        kept = {table.artefact.name for table in self.tables}
        return [artefact.name for artefact in self.request.artefacts if artefact.name not in kept]

    def pool(self) -> RunPool:
        """The finished runs of all folders, as of now."""
        pool = RunPool([self.request.out / RUNS, *self.elsewhere])
        self.outdated = pool.outdated
        return pool

    def runs(self, pool: RunPool) -> tuple[list[GridRun], int]:
        """The runs of this part that are still to be made, and how many there are in all."""
        planned = plan_runs(self.request, self.tables)
        missing = [run for run in planned if pool.find(run.experiment) is None and is_there(run.experiment)]
        for run in missing:
            check_folder(run)
        return missing, len(planned)

    def missing_data(self) -> dict[str, list[str]]:
        """Data sets that are not there -> artefacts that need them. Their runs are left out."""
        return missing_data(self.request, self.tables)

    def data_that_are_there(self) -> list[str]:
        """The data sets of the cells that can be run."""
        cells = [cell for table in self.tables for cell in table.cells]
        return sorted({cell.setting.split("-")[0] for cell in cells if is_there(cell.experiment)})

    def observe(self, tell: Callable[[str], None], measure: bool = True) -> None:
        """Takes over similarities from elsewhere and measures what is still missing; it belongs to the first part."""
        scale, roots = self.request.scale, self.request.roots
        for artefact in (
            table.artefact for table in self.tables if table.artefact.observe and self.request.part[0] == 1
        ):
            path = observation_path(artefact, scale, self.request.out / RUNS, roots)
            if path.exists():
                continue
            found = next((p for folder in self.elsewhere for p in folder.rglob(path.name)), None)
            if found is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                copy_whole(found, path)
            elif measure and is_there(observed(artefact, scale, roots)):
                tell(f"measuring {artefact.number}")
                measure_similarities(artefact, scale, path, roots)

    def results(self) -> list[ArtefactResult]:
        """The artefacts from the runs that are there."""
        pool = self.pool()
        return [build(table, pool, self.request.out, self.request.roots) for table in self.tables]

    def write(self, results: Sequence[ArtefactResult]) -> Path:
        """Writes the artefacts and the page of all artefacts in the folder; returns the page's path."""
        out = self.request.out
        try:
            for result in results:
                write_result(result, out / result.name)
            everything = read_results(out, [CLAIMS, *artefacts()])
            write_atomic(out / INDEX, index_page(everything).encode())
        except OSError as error:
            raise UserError(f"--out = {out}: cannot be written: {error.strerror or error}") from None
        return out / INDEX
