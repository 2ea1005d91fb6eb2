"""Checkpoints: the state of a run between two events, written atomically.

``checkpoint-N.safetensors`` holds the arrays and, in its header, everything else as JSON. ``checkpoint.json`` points to
it, with its SHA-256, and is replaced atomically at the end; only then is the previous checkpoint removed.

A run goes on while its checkpoint is written: `take_snapshot` keeps the state of one moment, `write_snapshot` may be
called by another thread.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from cabafl.engine.tensors import Abandoned, write_tensors
from cabafl.errors import UserError
from cabafl.files import as_json, write_atomic
from cabafl.recording.folder import CHECKPOINT, EVENTS, METRICS
from cabafl.state import Arrays, Decoder, Encoder

FORMAT = 5
WRITERS = {1: "0.1"}  # earlier formats


class Checkpoint(NamedTuple):
    """The engine's state, the lengths of the record files, and the wall seconds so far."""

    number: int
    engine: dict[str, Any]
    positions: dict[str, int]
    wall_seconds: float


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint that nothing in the run can change any more."""

    number: int
    time: float  # of the engine's clock
    tree: Any
    arrays: Arrays
    positions: dict[str, int]
    wall_seconds: float


def take_snapshot(checkpoint: Checkpoint) -> Snapshot:
    """Keeps a state as it is now. Models are shared with the run, which replaces them and never changes one in place,
    and so are read-only arrays; everything else is copied."""
    model = checkpoint.engine.get("model")
    length = None if model is None else model.size
    encoder = Encoder(shares=lambda array: _never_changes(array, length))
    tree = encoder.encode(checkpoint.engine)
    number, state, positions, seconds = checkpoint
    return Snapshot(number, state["now"], tree, encoder.arrays, positions, seconds)


def _never_changes(array: npt.NDArray[Any], length: int | None) -> bool:
    if array.dtype == np.float32 and array.shape == (length,):
        return True  # a model
    owner: Any = array
    while isinstance(owner, np.ndarray):  # a read-only view of an array that can change is not safe
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes)


def write_snapshot(
    folder: Path, snapshot: Snapshot, experiment: str, abandoned: Callable[[], bool] = lambda: False
) -> None:
    """Writes a checkpoint. ``experiment`` is the text of the experiment file, which identifies the run. If this raises
    OSError, or `tensors.Abandoned` because ``abandoned`` became true, the previous checkpoint stays valid."""
    path = folder / f"checkpoint-{snapshot.number}.safetensors"
    try:
        header = {"state": _json(snapshot.tree), "experiment": fingerprint(experiment)}
        about = {
            "format": FORMAT,
            "number": snapshot.number,
            "file": path.name,
            "sha256": write_tensors(path, snapshot.arrays, header, abandoned),
            "experiment": fingerprint(experiment),
            "positions": snapshot.positions,
            "wall_seconds": snapshot.wall_seconds,
            "time": snapshot.time,
        }
        write_atomic(folder / CHECKPOINT, as_json(about))
    except (OSError, TypeError, Abandoned):
        path.unlink(missing_ok=True)
        raise
    for old in folder.glob("checkpoint-*.safetensors"):
        if old != path:
            old.unlink(missing_ok=True)


def _json(tree: Any, depth: int = 4) -> str:
    """``json.dumps``, in small steps between which other threads run: at this depth lie single jobs and alarms."""
    if depth == 0 or not isinstance(tree, list):
        return json.dumps(tree)
    return f"[{', '.join([_json(item, depth - 1) for item in tree])}]"


def load_checkpoint(folder: Path, experiment: str) -> Checkpoint | None:
    """Reads and verifies the checkpoint of a folder; None if there is none yet. Raises `UserError` if it is damaged."""
    pointer = folder / CHECKPOINT
    if not pointer.exists():
        return None
    try:
        about = json.loads(pointer.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise UserError(_other_format(pointer, about["format"]))
        if fingerprint(experiment) not in (about["experiment"], *about.get("extended", ())):
            raise UserError(f"{pointer}: belongs to another experiment than {folder / 'experiment.toml'}")
        path = folder / Path(about["file"]).name
        if _sha256(path) != about["sha256"]:
            raise UserError(f"{path}: damaged: its SHA-256 is not the one in {pointer.name}")
        engine = _read(path)
        positions = {name: int(about["positions"][name]) for name in (EVENTS, METRICS)}
        if min(positions.values()) < 0:
            raise ValueError(f"positions = {positions}")
        return Checkpoint(int(about["number"]), engine, positions, float(about["wall_seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, struct.error) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{pointer}: not a checkpoint that can be continued: {reason}") from None


def _other_format(pointer: Path, found: Any) -> str:
    writer = f"cabafl {WRITERS[found]}" if found in WRITERS else "another version of cabafl"
    return (
        f"{pointer}: format {found!r}, written by {writer}; accepted: format {FORMAT}, of this version "
        f"({version('cabafl')}); finish the run with the version that began it, or start it again in a new folder"
    )


def accept_experiment(folder: Path, experiment: str) -> None:
    """Makes the checkpoint of a folder, if there is one, that of a changed experiment, too."""
    pointer = folder / CHECKPOINT
    if pointer.exists():
        about = json.loads(pointer.read_text(encoding="utf-8"))
        write_atomic(pointer, as_json(about | {"extended": [*about.get("extended", ()), fingerprint(experiment)]}))


def remove_checkpoints(folder: Path) -> None:
    """Removes the checkpoint of a finished run."""
    (folder / CHECKPOINT).unlink(missing_ok=True)
    for path in folder.glob("checkpoint-*.safetensors"):
        path.unlink(missing_ok=True)


def fingerprint(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tree = json.loads(file.metadata()["state"])
    engine = Decoder(arrays).decode(tree)
    if not isinstance(engine, dict):
        raise TypeError("the state is not a table")
    return engine
