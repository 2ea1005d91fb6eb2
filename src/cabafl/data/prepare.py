"""Turns downloaded or given material into the files the readers read. Material is a file or a folder of any depth.

A step finds its files by name, wherever they are, and raises `SourceError` if they are missing or unusable.
"""

import gzip
import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data import gutenberg, nist
from cabafl.data.activity import INNER
from cabafl.data.catalogue import DESCRIPTIONS
from cabafl.data.cifar import FOLDER10, FOLDER100, TRAIN10
from cabafl.data.femnist import FILE as FEMNIST_FILE
from cabafl.data.femnist import split_by_writer
from cabafl.data.parquet import ParquetRows, pixels
from cabafl.data.shakespeare import ROLE_FILES
from cabafl.data.transfer import Progress, SourceError, check_sha256, decompress

Prepare = Callable[[Path, Path, Progress], None]  # (material, folder to fill, progress)


@dataclass(frozen=True)
class Recipe:
    """How a data set is made from its material."""

    wanted: tuple[str, ...]  # patterns of the file names that archives are searched for
    prepare: Prepare


def find(material: Path, pattern: str) -> list[Path]:
    """Files in the material whose name matches, sorted by path."""
    if material.is_file():
        return [material] if material.match(pattern) else []
    return sorted(path for path in material.rglob(pattern) if path.is_file())


def _together(material: Path, names: Sequence[str]) -> Path:
    """The folder that has all the files ``names``, which may be paths relative to it."""
    depth = len(Path(names[0]).parts) - 1
    homes = [path.parents[depth] for path in find(material, Path(names[0]).name)]
    for home in homes:
        if all((home / name).is_file() for name in names):
            return home
    absent = [name for name in names if not homes or not (homes[0] / name).is_file()]
    raise SourceError(f"{material.name} does not contain {', '.join(absent)}")


def _copy(home: Path, names: Iterable[str], target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home / name, target / name)


def _present(home: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (home / name).is_file()]


def cifar10(material: Path, folder: Path, _report: Progress) -> None:
    """The batches as they are published."""
    names = (*TRAIN10, "test_batch")
    home = _together(material, names)
    _copy(home, [*names, *_present(home, ["batches.meta"])], folder / FOLDER10)


def cifar100(material: Path, folder: Path, report: Progress) -> None:
    """The two files as they are published, or written from the Hub's Parquet files."""
    if not find(material, "*.parquet"):
        home = _together(material, ("train", "test"))
        _copy(home, ["train", "test", *_present(home, ["meta"])], folder / FOLDER100)
        return
    table = None
    for part in ("train", "test"):
        paths = [path for path in find(material, "*.parquet") if part in (path.parent.name, path.name.split("-")[0])]
        if not paths:
            raise SourceError(f"{material.name} does not contain {part}-*.parquet")
        table = ParquetRows(paths, ("img", "fine_label", "coarse_label"))
        _cifar100_part(table, folder / FOLDER100 / part, report)
    assert table is not None
    meta = {f"{level}_label_names": table.names(f"{level}_label") for level in ("fine", "coarse")}
    write_pickle(folder / FOLDER100 / "meta", meta)


def _cifar100_part(table: ParquetRows, target: Path, report: Progress) -> None:
    images: list[NDArray[np.uint8]] = []
    labels: dict[str, list[int]] = {"fine_label": [], "coarse_label": []}
    for batch in table.batches(report):
        images += [pixels(image, "RGB", (32, 32)).transpose(2, 0, 1).reshape(3072) for image in batch["img"]]
        for level, values in labels.items():
            values += [int(number) for number in batch[level]]
    if not images:
        raise SourceError(f"the Parquet files of the {target.name} part have no rows")
    content = {
        "filenames": [f"{target.name}_{number:05d}.png" for number in range(len(images))],
        "batch_label": f"{target.name}ing batch 1 of 1",
        "fine_labels": labels["fine_label"],
        "coarse_labels": labels["coarse_label"],
        "data": np.stack(images),
    }
    write_pickle(target, content)


def write_pickle(target: Path, content: Mapping[str, Any]) -> None:
    """A pickle with text keys, as `pickle.load(file, encoding="latin1")` returns the published files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(pickle.dumps(dict(content), protocol=4))


def idx(hashes: Mapping[str, str], material: Path, folder: Path, _report: Progress) -> None:
    """The four idx files, decompressed, with their published SHA-256."""
    for name, sha256 in hashes.items():
        plain, packed = find(material, name), find(material, f"{name}.gz")
        if plain:
            shutil.copyfile(plain[0], folder / name)
        elif packed:
            decompress(packed[0], folder / name)
        else:
            raise SourceError(f"{material.name} does not contain {name}")
        check_sha256(folder / name, sha256)


ACTIVITY_FILES = DESCRIPTIONS["activity"].forms[1]
ACTIVITY_NOTES = ("README.txt", "activity_labels.txt", "features.txt", "features_info.txt")


def activity(material: Path, folder: Path, _report: Progress) -> None:
    """Features, activities and people of both parts, and the authors' notes."""
    home = _together(material, ACTIVITY_FILES)
    _copy(home, [*ACTIVITY_FILES, *_present(home, ACTIVITY_NOTES)], folder / INNER)


def shakespeare(material: Path, folder: Path, report: Progress) -> None:
    """Role texts: given as such, cut from Project Gutenberg's text, or joined from LEAF's windows."""
    if found := [path for name in ROLE_FILES for path in find(material, name)]:
        shutil.copyfile(found[0], folder / found[0].name)
    elif material.is_file() and material.name.endswith((".json", ".json.gz")):
        shutil.copyfile(material, folder / ROLE_FILES[0 if material.suffix == ".gz" else 1])
    elif found := find(material, "*.parquet"):
        _write_roles(folder, _joined(ParquetRows(found, ("character_id", "x", "y")), report))
    elif found := [path for path in find(material, "*.txt") if _is_edition(path)]:
        roles = gutenberg.roles(found[0].read_text(encoding="latin-1"))
        if not roles:
            raise SourceError(f"{found[0].name} has no plays in the form of Project Gutenberg's edition of 1994")
        _write_roles(folder, roles)
    else:
        _leaf(material, folder)


def _is_edition(path: Path) -> bool:
    return gutenberg.AUTHOR in path.read_text(encoding="latin-1")


def _write_roles(folder: Path, roles: Mapping[str, list[str]]) -> None:
    text = json.dumps(roles, ensure_ascii=False, sort_keys=True, indent=0)
    (folder / ROLE_FILES[0]).write_bytes(gzip.compress(text.encode(), mtime=0))


def _joined(table: ParquetRows, report: Progress) -> dict[str, list[str]]:
    """The texts that windows of stride 1 were cut from: the first window and every next character."""
    texts: dict[str, list[list[str]]] = {}
    last: dict[str, str] = {}
    for batch in table.batches(report):
        for role, x, y in zip(batch["character_id"], batch["x"], batch["y"], strict=True):
            if not (isinstance(role, str) and isinstance(x, str) and isinstance(y, str) and len(y) == 1):
                raise SourceError("columns character_id, x and y must be text, y a single character")
            if last.get(role) != x:
                texts.setdefault(role, []).append([x])
            texts[role][-1].append(y)
            last[role] = x[1:] + y
    return {role: ["".join(piece) for piece in pieces] for role, pieces in texts.items()}


def _leaf(material: Path, folder: Path) -> None:
    """LEAF's folders train/ and test/ as they are."""
    home = next((path.parents[1] for path in find(material, "*.json") if path.parent.name == "train"), None)
    if home is None or not list((home / "test").glob("*.json")):
        raise SourceError(f"{material.name} does not contain train/*.json and test/*.json, nor another known form")
    for part in ("train", "test"):
        _copy(home, [f"{part}/{path.name}" for path in sorted((home / part).glob("*.json"))], folder)


def femnist(material: Path, folder: Path, report: Progress) -> None:
    """LEAF's JSON files as they are, or arrays from the Hub's Parquet files or from NIST's two archives."""
    if find(material, FEMNIST_FILE):
        shutil.copyfile(find(material, FEMNIST_FILE)[0], folder / FEMNIST_FILE)
    elif paths := find(material, "*.parquet"):
        rows = _femnist_rows(ParquetRows(paths, ("image", "writer_id", "character")), report)
        _write_femnist(folder, *rows, report)
    elif find(material, nist.BY_CLASS) and find(material, nist.BY_WRITE):
        archives = find(material, nist.BY_CLASS)[0], find(material, nist.BY_WRITE)[0]
        _write_femnist(folder, *nist.samples(*archives, report), report)
    else:
        _leaf(material, folder)


def _femnist_rows(table: ParquetRows, report: Progress) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]:
    x = np.empty((table.rows, 28, 28), np.uint8)
    y = np.empty(table.rows, np.int64)
    writers: list[str] = []
    for batch in table.batches(report):
        for image, writer, number in zip(batch["image"], batch["writer_id"], batch["character"], strict=True):
            row = len(writers)
            x[row], y[row] = pixels(image, "L", (28, 28)), int(number)
            writers.append(str(writer))
    if not writers:
        raise SourceError("the Parquet files have no rows")
    return x, y, np.array(writers)


def _write_femnist(
    folder: Path, x: NDArray[np.uint8], y: NDArray[np.int64], writers: NDArray[Any], report: Progress
) -> None:
    report("writing the arrays", 0, 0)
    with (folder / FEMNIST_FILE).open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **split_by_writer(x, y, writers))


_TEXTS = ("*.txt", "*.zip")
_PARQUET = "*.parquet"


def idx_recipe(hashes: Mapping[str, str]) -> Recipe:
    """The recipe of a data set of idx files with these SHA-256 sums."""
    return Recipe((*hashes, *(f"{name}.gz" for name in hashes)), partial(idx, hashes))


CIFAR10 = Recipe((*TRAIN10, "test_batch", "batches.meta"), cifar10)
CIFAR100 = Recipe(("train", "test", "meta", _PARQUET), cifar100)
ACTIVITY = Recipe((*(Path(name).name for name in ACTIVITY_FILES), *ACTIVITY_NOTES, "*.zip"), activity)
SHAKESPEARE = Recipe((*_TEXTS, "*.json", "*.json.gz", _PARQUET), shakespeare)
FEMNIST = Recipe((FEMNIST_FILE, "*.json", _PARQUET), femnist)
