"""Reads the file of a W&B run: frames of 32 KiB blocks, whose records are the library's own protocol buffers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def _frames(data: bytes) -> Iterator[bytes]:
    at, record = HEADER, b""  # the file begins with a header of its own, as long as that of a frame
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        at += HEADER
        record += data[at : at + length]
        at += length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_run(path: Path) -> dict[str, Any]:
    """``id``, ``config``, ``history`` (one table per step), ``summary``, ``files``."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, Any] = {"history": [], "summary": {}, "config": {}, "files": []}
    for frame in _frames(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(frame)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found |= {"id": record.run.run_id, "name": record.run.display_name, "project": record.run.project}
            found["config"] |= _items(record.run.config.update)
        elif kind == "history":
            found["history"].append(_items(record.history.item))
        elif kind == "summary":
            found["summary"] |= _items(record.summary.update)
        elif kind == "files":
            found["files"] += [file.path for file in record.files.files]
    return found
