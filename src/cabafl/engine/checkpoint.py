"""Checkpoints: the state of a run between two events, written atomically.

``checkpoint-N.safetensors`` holds the arrays and, in its header, everything else as JSON. ``checkpoint.json`` points to
it, with its SHA-256, and is replaced atomically at the end; only then is the previous checkpoint removed.
"""

import hashlib
import json
import struct
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cabafl.errors import UserError
from cabafl.files import as_json, sync, write_atomic
from cabafl.recording.folder import CHECKPOINT
from cabafl.state import Decoder, Encoder

FORMAT = 2
WRITERS = {1: "0.1"}  # earlier formats


class Checkpoint(NamedTuple):
    """The engine's state, the lengths of the record files, and the wall seconds so far."""

    number: int
    engine: dict[str, Any]
    positions: dict[str, int]
    wall_seconds: float


def save_checkpoint(folder: Path, checkpoint: Checkpoint, experiment: str) -> None:
    """Writes a checkpoint. ``experiment`` is the text of the experiment file, which identifies the run. If this raises
    OSError, the previous checkpoint stays valid."""
    encoder = Encoder()
    tree = encoder.encode(checkpoint.engine)
    header = {"state": json.dumps(tree), "experiment": fingerprint(experiment)}
    path = folder / f"checkpoint-{checkpoint.number}.safetensors"
    try:
        save_file({name: np.ascontiguousarray(a) for name, a in encoder.arrays.items()}, path, metadata=header)
        sync(path)
        about = {
            "format": FORMAT,
            "number": checkpoint.number,
            "file": path.name,
            "sha256": _sha256(path),
            "experiment": fingerprint(experiment),
            "positions": checkpoint.positions,
            "wall_seconds": checkpoint.wall_seconds,
            "time": checkpoint.engine["now"],
        }
        write_atomic(folder / CHECKPOINT, as_json(about))
    except (OSError, SafetensorError) as error:
        path.unlink(missing_ok=True)
        raise OSError(f"the checkpoint cannot be written: {error}") from error
    for old in folder.glob("checkpoint-*.safetensors"):
        if old != path:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, experiment: str) -> Checkpoint | None:
    """Reads and verifies the checkpoint of a folder; None if there is none yet. Raises `UserError` if it is damaged."""
    pointer = folder / CHECKPOINT
    if not pointer.exists():
        return None
    try:
        about = json.loads(pointer.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise UserError(_other_format(pointer, about["format"]))
        if about["experiment"] != fingerprint(experiment):
            raise UserError(f"{pointer}: belongs to another experiment than {folder / 'experiment.toml'}")
        path = folder / Path(about["file"]).name
        if _sha256(path) != about["sha256"]:
            raise UserError(f"{path}: damaged: its SHA-256 is not the one in {pointer.name}")
        engine = _read(path)
        positions = {str(name): int(end) for name, end in about["positions"].items()}
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
