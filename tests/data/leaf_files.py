"""Writes files in LEAF's format for the tests of its readers."""

import json
from pathlib import Path
from typing import Any


def write_leaf(folder: Path, users: dict[str, tuple[list[Any], list[Any]]], file: str = "all_data_0.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / file).write_text(json.dumps(content))
