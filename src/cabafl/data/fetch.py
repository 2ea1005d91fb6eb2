"""Getting a data set's files: complete and verified, or not at all."""

import shutil
import tempfile
from pathlib import Path

from cabafl.data.catalogue import DESCRIPTIONS, NAMES, folder_of
from cabafl.data.files import one_line
from cabafl.data.sources import FILES, SOURCES
from cabafl.data.transfer import Progress, SourceError
from cabafl.errors import UserError


def fetch(name: str, root: Path | None = None, progress: Progress | None = None) -> Path:
    """Brings the files of ``name`` into ``root`` (default: its folder in `data_home`) and returns that folder.

    ``progress`` hears (text, done, total); total 0 is a plain message. The files are gathered in a folder beside the
    target, which is renamed at the end, so a failure or an interruption leaves the target as it was.
    """
    _check_name(name)
    report = progress or (lambda text, done, total: None)
    target = folder_of(name, root)
    if is_present(name, root):
        report(f"{name} is already present in {target}", 0, 0)
        return target
    try:
        if target.is_file() or (target.is_dir() and any(target.iterdir())):
            raise UserError(f"{target} exists but does not hold a complete {name}; remove it or give another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as beside:
            gathered = _gather(name, Path(beside), report)
            gathered.rename(target)
    except OSError as error:
        raise UserError(f"{name} cannot be stored in {target}: {one_line(error)}") from None
    return target


def is_present(name: str, root: Path | None = None) -> bool:
    """Whether all files of a fetchable data set are there (idx files may be gzipped)."""
    folder = folder_of(name, root)
    return all((folder / file).is_file() or (folder / f"{file}.gz").is_file() for file in FILES[name])


def _check_name(name: str) -> None:
    fetchable = ", ".join(SOURCES)
    if name not in NAMES:
        raise UserError(f"data set {name!r} is unknown; fetch knows: {fetchable}")
    if name not in SOURCES:
        raise UserError(f"data set {name} cannot be fetched: {DESCRIPTIONS[name].get}; fetch knows: {fetchable}")


def _gather(name: str, beside: Path, report: Progress) -> Path:
    """A folder with the complete set from the first source that delivers."""
    failures = []
    for number, source in enumerate(SOURCES[name]):
        folder, scratch = beside / f"files{number}", beside / f"scratch{number}"
        folder.mkdir()
        scratch.mkdir()
        report(f"{name} from {source.label}", 0, 0)
        try:
            source.get(folder, scratch, report)
        except SourceError as error:
            report(f"no success: {error}", 0, 0)
            failures.append(str(error))
        else:
            return folder
        shutil.rmtree(scratch)
    raise UserError(f"data set {name} could not be fetched: {'; '.join(failures)}")
