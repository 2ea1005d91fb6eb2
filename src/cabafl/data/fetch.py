"""Fetches a data set: either all files, verified, or none. What was downloaded before an interruption is kept."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from cabafl.data.catalogue import DESCRIPTIONS, folder_of, is_present
from cabafl.data.files import one_line
from cabafl.data.sources import RECIPES, SOURCES, take
from cabafl.data.transfer import Progress, SourceError, Unreachable, Workplace
from cabafl.data.verify import check
from cabafl.errors import UserError
from cabafl.files import lock
from cabafl.validation import nearest


def fetch(name: str, root: Path | None = None, progress: Progress | None = None, given: Path | None = None) -> Path:
    """Downloads the files of ``name`` to ``root`` (default: its folder in `data_home`) and returns that folder.

    ``given`` is an archive, a file or a folder that is already on this machine: then nothing is downloaded.
    ``progress`` is called with (text, done, total), see `transfer.Progress`. A failure or an interruption leaves the
    target unchanged; unfinished downloads stay in a hidden folder beside it, and the next call continues them.
    """
    _check_name(name)
    report = progress or (lambda text, done, total: None)
    target = folder_of(name, root)
    if is_present(name, root):
        report(f"{name} is already present in {target}", 0, 0)
        return target
    try:
        if target.is_file() or (target.is_dir() and any(target.iterdir())):
            raise UserError(f"{target} exists but is not a complete {name}; remove it or choose another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _workplace(name, target, report) as work:
            files = _collect(name, work) if given is None else _take_given(name, Path(given).expanduser(), work)
            files.rename(target)
            shutil.rmtree(work.downloads, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{name} cannot be stored in {target}: {one_line(error)}") from None
    return target


def _check_name(name: str) -> None:
    fetchable = ", ".join(SOURCES)
    if name not in DESCRIPTIONS:
        raise UserError(f"data set {name!r} is unknown{nearest(name, SOURCES)}; accepted: {fetchable}")
    if name not in SOURCES:
        raise UserError(f"data set {name} cannot be fetched: {DESCRIPTIONS[name].get}; accepted: {fetchable}")


@contextlib.contextmanager
def _workplace(name: str, target: Path, report: Progress) -> Iterator[Workplace]:
    """A hidden folder beside the target, for one process at a time. Only unfinished downloads outlive it."""
    place = target.with_name(f".{target.name}.download")
    place.mkdir(exist_ok=True)
    downloads, scratch = place / "downloads", place / "scratch"
    with (place / "lock").open("w") as file:
        lock(file, f"{name} is being fetched to {target} by another process; wait for it to end")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield Workplace(downloads, scratch, report)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if not any(path.is_file() for path in downloads.rglob("*")):
                shutil.rmtree(place, ignore_errors=True)


def _collect(name: str, work: Workplace) -> Path:
    """Returns a folder with all files, from the first source that works."""
    failures = []
    for number, source in enumerate(SOURCES[name]):
        folder = work.scratch / f"files{number}"
        place = Workplace(work.downloads / str(number), work.scratch / f"scratch{number}", work.report)
        folder.mkdir()
        place.scratch.mkdir()
        work.report(f"{name} from {source.label}", 0, 0)
        try:
            source.get(folder, place)
            work.report(check(name, folder), 0, 0)
        except SourceError as error:
            work.report(f"failed: {error}", 0, 0)
            failures.append(str(error))
            if not isinstance(error, Unreachable):
                shutil.rmtree(place.downloads, ignore_errors=True)
        else:
            return folder
        shutil.rmtree(folder)
        shutil.rmtree(place.scratch)
    kept = sum(path.stat().st_size for path in work.downloads.rglob("*") if path.is_file())
    again = f" ({kept:,} bytes are kept: the same command continues them)" if kept else ""
    raise UserError(
        f"data set {name} could not be fetched: {'; '.join(failures)}{again}; --from PATH takes files you have"
    )


def _take_given(name: str, material: Path, work: Workplace) -> Path:
    if not material.exists():
        raise UserError(f"--from {material} does not exist; accepted: an archive, a file or a folder of {name}")
    folder, scratch = work.scratch / "files", work.scratch / "given"
    folder.mkdir()
    scratch.mkdir()
    work.report(f"{name} from {material}", 0, 0)
    try:
        take(material.resolve(), RECIPES[name], folder, Workplace(work.downloads, scratch, work.report))
        work.report(check(name, folder, whole=False), 0, 0)
    except SourceError as error:
        raise UserError(f"--from {material} is not a complete {name}: {error}") from None
    return folder
