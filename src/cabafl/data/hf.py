"""Data sets in Hugging Face form (``data.dataset = "hf:NAME_OR_FOLDER"``), read with the package datasets (extra hf).

One column is the input: images of one size, or numbers (lists or arrays of one shape). One column is the label: class
labels, integers or text. Optionally one column names the user. Everything else is read as from a NumPy file, see `npz`.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.arrays import Targets, check_lengths, from_targets
from cabafl.data.catalogue import HubOptions, data_home
from cabafl.data.dataset import Dataset
from cabafl.data.files import one_line
from cabafl.data.hub_access import offline, unreachable
from cabafl.data.tables import LABEL_NAMES, held_out
from cabafl.errors import UserError

if TYPE_CHECKING:
    import datasets

TEST_SPLITS = ("test", "validation")
CACHE = "hf-images"  # folder of decoded images in `data_home`
_FORM = 1  # of the cached files
_ROWS = 2048


def read(where: str, root: Path | None, options: HubOptions) -> Dataset:
    """Reads ``where``, a name on the Hub or a folder; ``root``, if set, is the folder to read instead."""
    return _Reader(where if root is None else str(root), options).read()


class _Reader:
    def __init__(self, where: str, options: HubOptions) -> None:
        self.name, self.options = f"hf:{where}", options
        self.splits = self._open(where)

    def read(self) -> Dataset:
        train, test = self._parts()
        columns = self._input_column(train), self._label_column(train), self.options.user_column
        self._check_columns(train, test, columns)
        parts = [self._arrays(part, columns) for part in (train, test) if part is not None]
        pair = parts if len(parts) == 2 else self._cut(parts[0])
        arrays = {
            f"{key}_{part}": pair[number][key] for number, part in enumerate(("train", "test")) for key in pair[0]
        }
        check_lengths(arrays, self.error)
        targets = self._targets(train.features[columns[1]], arrays["y_train"], arrays["y_test"])
        return from_targets(self.name, arrays, targets, self.error)

    def error(self, reason: object) -> UserError:
        return UserError(f"data set {self.name} cannot be used: {one_line(reason)}")

    def _open(self, where: str) -> "Mapping[str, datasets.Dataset]":
        library = _library()
        folder = Path(where).expanduser()
        is_folder = folder.is_dir()
        if not is_folder and (folder.is_file() or where.startswith(("/", ".", "~"))):
            raise UserError(f"data.dataset = {self.name!r}: {folder} is not a folder; accepted: hf:FOLDER, hf:NAME")
        try:
            if is_folder and any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
                found = library.load_from_disk(str(folder))
            elif is_folder and any(folder.rglob("*.parquet")):
                found = library.load_dataset("parquet", data_dir=str(folder))
            elif is_folder:
                raise self.error("the folder has neither Parquet files nor a data set written by save_to_disk")
            else:
                found = self._from_hub(where)
        except UserError:
            raise
        except IndexError:  # what the library raises for no rows at all
            raise self.error("it is empty") from None
        except Exception as error:  # the library raises many types
            raise self.error(error) from None
        return found if isinstance(found, dict) else {"train": found}

    def _from_hub(self, where: str) -> Any:
        """The set of a name; without a network, as it was downloaded before."""
        library, reason = _library(), unreachable()
        try:
            with contextlib.nullcontext() if reason is None else offline():
                return library.load_dataset(where, self.options.subset)
        except IndexError:
            raise
        except Exception as error:  # the library and its network clients raise many types
            why = one_line(error)
            if reason is not None:
                why = f"{reason}, {'and it was not downloaded before' if isinstance(error, ConnectionError) else why}"
            raise UserError(f"data set {self.name} cannot be loaded from the Hub: {why}") from None

    def _parts(self) -> "tuple[datasets.Dataset, datasets.Dataset | None]":
        wanted, share = self.options.test_split, self.options.test_share
        train = self._split("data.train_split", self.options.train_split)
        if share is not None:
            return train, None
        if wanted is None:
            wanted = next((name for name in TEST_SPLITS if name in self.splits), None)
        if wanted is None:
            raise UserError(
                f"data set {self.name} has no split named test or validation; set data.test_split to one of "
                f"{', '.join(self.splits)}, or data.test_share to cut test samples off the training split"
            )
        return train, self._split("data.test_split", wanted)

    def _split(self, key: str, name: str) -> "datasets.Dataset":
        if name not in self.splits:
            raise UserError(f"{key} = {name!r}: {self.name} has no such split; accepted: {', '.join(self.splits)}")
        if not len(self.splits[name]):
            raise self.error(f"split {name!r} is empty")
        return self.splits[name]

    def _input_column(self, train: "datasets.Dataset") -> str:
        if self.options.input_column is not None:
            return self.options.input_column
        images = [name for name in train.features if _is_image(train, name)]
        found = images or [name for name in train.features if _is_numbers(train, name)]
        return self._single("data.input_column", found, train, "images or lists of numbers")

    def _label_column(self, train: "datasets.Dataset") -> str:
        if self.options.label_column is not None:
            return self.options.label_column
        labels = [name for name in train.features if _class_names(train.features[name]) is not None]
        named = [name for name in LABEL_NAMES if name in train.features]
        return self._single("data.label_column", labels or named[:1], train, "class labels")

    def _single(self, key: str, found: list[str], train: "datasets.Dataset", what: str) -> str:
        if len(found) == 1:
            return found[0]
        seen = f"several columns with {what}" if found else f"no column that is known to have {what}"
        raise UserError(f"{key} is not set, and {self.name} has {seen}; accepted: {', '.join(found or train.features)}")

    def _check_columns(self, train: Any, test: Any, columns: tuple[str, str, str | None]) -> None:
        for key, column in zip(("input", "label", "user"), columns, strict=True):
            for part in (train, test):
                if column is not None and part is not None and column not in part.features:
                    raise UserError(
                        f"data.{key}_column = {column!r}: {self.name} has no such column in each split; accepted: "
                        f"{', '.join(part.features)}"
                    )

    def _arrays(self, part: "datasets.Dataset", columns: tuple[str, str, str | None]) -> dict[str, NDArray[Any]]:
        given, label, user = columns
        found = {"x": self._images(part, given) if _is_image(part, given) else self._numbers(part, given)}
        found["y"] = self._column(part, label, "labels")
        if user is not None:
            found["user"] = self._column(part, user, "users")
        return found

    def _column(self, part: "datasets.Dataset", column: str, what: str) -> NDArray[Any]:
        """A column of integers or text, without gaps."""
        values = list(part.select_columns([column]).with_format(None)[:][column])
        if not all(isinstance(value, int | str) for value in values) or len({isinstance(v, str) for v in values}) > 1:
            other = next((value for value in values if not isinstance(value, int | str)), "text and numbers")
            raise self.error(f"column {column!r} must have integers or text as {what}, found {other!r}")
        return np.array(values)

    def _numbers(self, part: "datasets.Dataset", column: str) -> NDArray[Any]:
        if part.data.column(column).null_count:  # the library's own conversion fails
            raise self.error(f"column {column!r} has a row without numbers")
        chunks: list[NDArray[Any]] = []
        for batch in part.select_columns([column]).with_format("numpy").iter(_ROWS):
            chunk = np.asarray(batch[column])
            if (
                chunk.dtype.kind not in "biuf"
                or chunk.ndim < 2
                or not chunk.size
                or (chunks and chunk.shape[1:] != chunks[0].shape[1:])
            ):
                raise self.error(f"column {column!r} must have images, or numbers of one shape in every row")
            chunks.append(chunk)
        x = np.concatenate(chunks)
        return x if x.dtype == np.uint8 else x.astype(np.float32)

    def _images(self, part: "datasets.Dataset", column: str) -> NDArray[np.uint8]:
        """Decoded images (N, H, W) or (N, H, W, 3). They are kept in a file: later runs do not decode them again."""
        file = data_home() / CACHE / f"{_key(part, column)}.npy"
        try:
            kept: NDArray[np.uint8] = np.load(file, allow_pickle=False)
            return kept
        except (OSError, ValueError, EOFError):
            pass
        x = self._decoded(part, column)
        _keep(file, x)
        return x

    def _decoded(self, part: "datasets.Dataset", column: str) -> NDArray[np.uint8]:
        raw = part.select_columns([column]).cast_column(column, _library().Image(decode=False)).with_format(None)
        chunks: list[NDArray[np.uint8]] = []
        for batch in raw.iter(_ROWS):
            images = [self._pixels(column, image) for image in batch[column]]
            sizes = {image.shape[:2] for image in images} | {chunk.shape[1:3] for chunk in chunks[:1]}
            if len(sizes) > 1:
                (h, w), (other_h, other_w) = sorted(sizes)[:2]
                raise self.error(f"column {column!r} has images of {w}x{h} and {other_w}x{other_h}; one size accepted")
            chunks.append(_stack(images))
        return _stack([image for chunk in chunks for image in chunk]) if _mixed(chunks) else np.concatenate(chunks)

    def _pixels(self, column: str, image: Any) -> NDArray[np.uint8]:
        from PIL import Image

        if image is None:
            raise self.error(f"column {column!r} has a row without an image")
        try:
            content = Path(image["path"]).read_bytes() if image["bytes"] is None else image["bytes"]
            with Image.open(io.BytesIO(content)) as picture:
                if picture.mode.startswith(("I", "F")):
                    raise self.error(f"column {column!r} has images of type {picture.mode}; accepted: 8 bits a channel")
                grey = picture.mode in ("1", "L", "LA")
                return np.asarray(picture.convert("L" if grey else "RGB"))
        except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError) as error:
            raise self.error(f"an image of column {column!r} cannot be decoded: {error}") from None

    def _cut(self, whole: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
        """Training and test samples of one split: ``test_share`` of each user's, or of all."""
        share = self.options.test_share or 0.0
        test = held_out(len(whole["y"]), whole.get("user"), share, whole["y"])
        if test.all() or not test.any():
            raise UserError(f"data.test_share = {share}: leaves no training or no test samples of {self.name}")
        return [{key: values[chosen] for key, values in whole.items()} for chosen in (~test, test)]

    def _targets(self, feature: Any, train: NDArray[Any], test: NDArray[Any]) -> Targets:
        """Class numbers: those of a ClassLabel, or the place of the value in the sorted training values."""
        names = _class_names(feature)
        known = np.arange(len(names)) if names is not None else np.unique(train)
        for values in (train, test):
            strange = ~np.isin(values, known)
            if strange.any():
                value = values[strange][0]
                raise self.error(f"label {value} is not one of the {len(known)} classes of the training samples")
        numbers = [np.searchsorted(known, values).astype(np.int64) for values in (train, test)]
        return Targets(numbers[0], numbers[1], len(known), tuple(names or map(str, known)))


def _keep(file: Path, x: NDArray[np.uint8]) -> None:
    """Writes the whole file or none. Without a place to keep it, the next run decodes again."""
    temporary = file.with_name(f".{os.getpid()}-{file.name}")  # several runs may start at once
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as part:
            np.save(part, x)
        temporary.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise UserError("data.dataset = 'hf:...' needs the package datasets; run `pip install 'cabafl[hf]'`") from None
    if not os.isatty(2):
        datasets.disable_progress_bars()
    return datasets


def _is_image(part: "datasets.Dataset", column: str) -> bool:
    return isinstance(part.features.get(column), _library().Image)


def _is_numbers(part: "datasets.Dataset", column: str) -> bool:
    first = part.select_columns([column]).with_format(None)[0][column]
    try:
        return isinstance(first, list) and np.asarray(first).dtype.kind in "biuf"
    except ValueError:
        return False


def _class_names(feature: Any) -> list[str] | None:
    return list(feature.names) if isinstance(feature, _library().ClassLabel) else None


def _key(part: "datasets.Dataset", column: str) -> str:
    """Changes with the content of the split: the library's fingerprint, and size and date of its files."""
    files = [Path(entry["filename"]).stat() for entry in part.cache_files]
    facts = [_FORM, part._fingerprint, column, len(part), [(file.st_size, file.st_mtime_ns) for file in files]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _mixed(images: list[NDArray[np.uint8]]) -> bool:
    return len({image.ndim for image in images}) > 1


def _stack(images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """One array; grey images become RGB if there are RGB images beside them."""
    if _mixed(images):
        images = [image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2) for image in images]
    return np.stack(images)
