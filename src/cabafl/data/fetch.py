"""Downloads a data set: either all files, verified, or none."""

import shutil
import tempfile
from pathlib import Path

from cabafl.data.catalogue import DESCRIPTIONS, folder_of
from cabafl.data.files import one_line
from cabafl.data.sources import FILES, SOURCES
from cabafl.data.transfer import Progress, SourceError
from cabafl.errors import UserError
from cabafl.validation import nearest


def fetch(name: str, root: Path | None = None, progress: Progress | None = None) -> Path:
    """Downloads the files of ``name`` to ``root`` (default: its folder in `data_home`) and returns that folder.

    ``progress`` is called with (text, done, total); total 0 means a plain message. Files are collected in a temporary
    folder next to the target and renamed at the end: a failure or an interruption leaves the target unchanged.
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
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as temporary:
            _collect(name, Path(temporary), report).rename(target)
    except OSError as error:
        raise UserError(f"{name} cannot be stored in {target}: {one_line(error)}") from None
    return target


def is_present(name: str, root: Path | None = None) -> bool:
    """Whether all files of a fetchable data set exist (idx files may be gzipped)."""
    folder = folder_of(name, root)
    return all((folder / file).is_file() or (folder / f"{file}.gz").is_file() for file in FILES[name])


def _check_name(name: str) -> None:
    fetchable = ", ".join(SOURCES)
    if name not in DESCRIPTIONS:
        raise UserError(f"data set {name!r} is unknown{nearest(name, SOURCES)}; accepted: {fetchable}")
    if name not in SOURCES:
        raise UserError(f"data set {name} cannot be fetched: {DESCRIPTIONS[name].get}; accepted: {fetchable}")


def _collect(name: str, temporary: Path, report: Progress) -> Path:
    """Returns a folder with all files, from the first source that works."""
    failures = []
    for number, source in enumerate(SOURCES[name]):
        folder, scratch = temporary / f"files{number}", temporary / f"scratch{number}"
        folder.mkdir()
        scratch.mkdir()
        report(f"{name} from {source.label}", 0, 0)
        try:
            source.get(folder, scratch, report)
        except SourceError as error:
            report(f"failed: {error}", 0, 0)
            failures.append(str(error))
        else:
            return folder
        shutil.rmtree(scratch)
    raise UserError(f"data set {name} could not be fetched: {'; '.join(failures)}")
