"""Shakespeare by speaking role: predict the character after 80. Reads LEAF's JSON format or plain role texts."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import corrupt, missing, read_json
from cabafl.data.leaf import read_parts, to_splits

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
TRAIN_SHARE = 0.8
ROLE_FILES = ("shakespeare_roles.json.gz", "shakespeare_roles.json")


def _symbol_table() -> NDArray[np.uint8]:
    table = np.full(0x110000, ALPHABET.index(" "), np.uint8)
    table[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    return table


_TABLE = _symbol_table()


def read(path: Path) -> Dataset:
    """``path`` is a role file, or a folder with a role file or LEAF's train/ and test/."""
    roles = _role_file(path)
    train, test = _read_roles(roles) if roles else to_splits(path, *read_parts(path, "shakespeare", _convert))
    return Dataset("shakespeare", "text", train, test, len(ALPHABET), class_names=tuple(ALPHABET))


def symbols(text: str) -> NDArray[np.uint8]:
    """Index of each character in LEAF's 80-symbol alphabet; other characters count as a space."""
    numbers: NDArray[np.uint8] = _TABLE[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")]
    return numbers


def _role_file(path: Path) -> Path | None:
    if not path.exists():
        raise missing("shakespeare", path)
    candidates = [path] if path.is_file() else [path / file for file in ROLE_FILES]
    return next((file for file in candidates if file.is_file()), None)


def _convert(path: Path, x: list[Any], y: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if not all(isinstance(text, str) and len(text) == WINDOW for text in x):
        raise corrupt(path, f"x must be strings of {WINDOW} characters")
    if not all(isinstance(text, str) and len(text) == 1 for text in y):
        raise corrupt(path, "y must be single characters")
    return symbols("".join(x)).reshape(-1, WINDOW), symbols("".join(y)).astype(np.int64)


def _read_roles(path: Path) -> tuple[Split, Split]:
    """Each role is a user: the first 80 % of its text is for training, the rest for testing; no window spans both.

    The speeches of a role are joined by spaces, as in LEAF's preprocessing.
    """
    texts = [symbols(_text(path, role, speeches)) for role, speeches in sorted(read_json(path).items())]
    cuts = [int(TRAIN_SHARE * len(text)) for text in texts]
    kept = [number for number, cut in enumerate(cuts) if cut > WINDOW]
    train = _windows([texts[number][: cuts[number]] for number in kept])
    test = _windows([texts[number][cuts[number] :] for number in kept])
    if not len(train) or not len(test):
        raise corrupt(path, f"no role has a text long enough for windows of {WINDOW} characters in both parts")
    return train, test


def _text(path: Path, role: str, speeches: Any) -> str:
    if not isinstance(speeches, list) or not all(isinstance(speech, str) for speech in speeches):
        raise corrupt(path, f"role {role!r} must be a list of speeches")
    return " ".join(speeches)


def _windows(texts: list[NDArray[np.uint8]]) -> Split:
    """All windows of all texts with stride 1; the user is the text's index. Texts shorter than a window give none."""
    counts = np.array([max(len(text) - WINDOW, 0) for text in texts], np.int64)
    x = np.empty((counts.sum(), WINDOW), np.uint8)
    y = np.empty(len(x), np.int64)
    start = 0
    for text, count in zip(texts, counts.tolist(), strict=True):
        if count:
            view = np.lib.stride_tricks.sliding_window_view(text, WINDOW + 1)
            x[start : start + count], y[start : start + count] = view[:, :WINDOW], view[:, WINDOW]
        start += count
    users = np.repeat(np.arange(len(texts)), counts)
    return Split(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(users))
