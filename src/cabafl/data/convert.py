"""`cabafl data convert`: tables, time series in tables, and folders of images become a .npz file (see `npz`).

The file also keeps what a network needs to be used again: the names of classes and features, and the normalisation,
which is that of the training samples.
"""

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.arrays import dataset_of, moments, stored_inputs
from cabafl.data.dataset import Dataset
from cabafl.data.files import corrupt, one_line
from cabafl.data.pictures import PictureOptions, picture_arrays
from cabafl.data.tables import Columns, feature_columns, held_out, label_columns, table_arrays, tidy
from cabafl.data.windows import WindowOptions, windowed
from cabafl.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[Any]]
TEST_SHARE = 0.2  # unless the source says which samples are for testing
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_TEST_WORDS = {
    "test": True,
    "true": True,
    "yes": True,
    "1": True,
    "train": False,
    "false": False,
    "no": False,
    "0": False,
}


@dataclass(frozen=True)
class Conversion:
    """How to read the source."""

    columns: Columns
    test_column: str | None = None
    test_share: float | None = None  # None: `TEST_SHARE` if nothing else says what is for testing
    scale: bool = True  # standardise features
    windows: WindowOptions | None = None
    pictures: PictureOptions | None = None


@dataclass(frozen=True)
class Converted:
    """What was written."""

    path: Path
    dataset: Dataset
    users: int
    notes: tuple[str, ...]


def convert(source: Path, out: Path, how: Conversion) -> Converted:
    """Writes ``out``, a new file; raises `UserError` if the source cannot be used."""
    if out.suffix != ".npz" or out.exists() or not out.parent.is_dir():
        raise UserError(f"--out = {out}: accepted: a new file with the ending .npz, in a folder that exists")
    if how.test_share is not None and not 0 < how.test_share < 1:
        raise UserError(f"--test-share = {how.test_share:g}: accepted: above 0 and below 1")
    if not source.exists():
        raise UserError(f"{source}: not found; accepted: a folder of images, or a table ({', '.join(TABLES)})")
    notes: list[str] = []
    try:
        arrays = _pictures(source, how, notes) if source.is_dir() else _table(source, how, notes)
    except OSError as error:  # e.g. a folder without read permission
        raise corrupt(source, error) from None
    dataset = dataset_of("npz", arrays, partial(corrupt, source))
    _write(out, _complete(arrays, dataset, how))
    users = len(np.unique(arrays["user_train"])) if "user_train" in arrays else 0
    return Converted(out, dataset, users, tuple(notes))


def _complete(arrays: Arrays, dataset: Dataset, how: Conversion) -> Arrays:
    """The arrays with the numbers of the classes, their names, and the normalisation."""
    arrays = {key: values for key, values in arrays.items() if key not in ("y_train", "y_test")}
    arrays |= {"y_train": dataset.train.y.numpy(), "y_test": dataset.test.y.numpy()}
    if dataset.class_names:
        arrays["class_names"] = np.array(dataset.class_names)
    if dataset.kind == "image":
        arrays |= {"mean": np.array(dataset.mean), "deviation": np.array(dataset.deviation)}
    elif how.scale:
        _, x = stored_inputs("x_train", arrays["x_train"], UserError)
        mean, deviation = moments(x)
        arrays |= {"mean": np.array(mean), "deviation": np.array(deviation)}
    return arrays


def _write(out: Path, arrays: Arrays) -> None:
    temporary = out.with_name(f".{os.getpid()}-{out.name}")
    try:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        temporary.replace(out)
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)  # also after Ctrl-C


def _table(source: Path, how: Conversion, notes: list[str]) -> Arrays:
    if how.pictures is not None and how.pictures.size is not None:
        raise UserError(f"--size: only for folders of images; {source} is a file")
    complain = partial(corrupt, source)
    frame = tidy(read_table(source), complain)
    columns, unnamed = _without_unnamed(frame, how.columns)
    whole = table_arrays(frame, columns, complain)
    notes += _left_out(frame, columns, label_columns(frame, columns, complain), source)
    notes += [f"left out, without a name in the first line: {unnamed}"] if unnamed else []
    test = None if how.test_column is None else _test_column(frame, how.test_column, source)
    if how.test_column is not None and how.test_share is not None:
        raise UserError(f"--test-share = {how.test_share:g}: not together with --test-column; accepted: one of them")
    share = TEST_SHARE if how.test_share is None else how.test_share
    if how.windows is not None:
        parts = windowed(frame, whole, how.windows, test, share, complain)
    else:
        rows = held_out(len(frame), whole.get("user"), share, whole["y"]) if test is None else test
        parts = [
            {key: values[chosen] for key, values in whole.items() if key in ("x", "y", "user")}
            for chosen in (~rows, rows)
        ]
    if not len(parts[0]["y"]) or not len(parts[1]["y"]):
        raise corrupt(source, _nothing_left(parts, whole["y"]))
    named = {f"{key}_{part}": parts[place][key] for place, part in enumerate(("train", "test")) for key in parts[0]}
    return named | {"feature_names": whole["feature_names"]}


def _without_unnamed(frame: "pd.DataFrame", columns: Columns) -> tuple[Columns, str]:
    """The columns without those that have no name in the file, such as row numbers that pandas wrote; and these."""
    chosen = {*columns.label, *columns.features, *columns.others, columns.user}
    unnamed = [name for name in frame.columns if re.fullmatch(r"Unnamed: \d+", name) and name not in chosen]
    return replace(columns, others=(*columns.others, *unnamed)), ", ".join(unnamed)


def _nothing_left(parts: Sequence[Arrays], y: NDArray[Any]) -> str:
    text = f"no {'training' if not len(parts[0]['y']) else 'test'} samples are left"
    once = y.ndim == 1 and y.dtype.kind in "iu" and len(np.unique(y)) > len(y) / 2
    return f"{text}: most labels occur once; is the label a number to predict (--numbers)?" if once else text


def _check_text(column: "pd.Series[Any]", name: str, source: Path) -> None:
    """Raises an error if a column is text because of a few of its values."""
    import pandas as pd

    if column.dtype.kind == "O":
        text = column.notna() & pd.to_numeric(column, errors="coerce").isna()
        if 0 < text.sum() <= len(column) / 10:
            row = int(np.argmax(text.to_numpy()))
            raise corrupt(
                source,
                f"column {name!r} has numbers but for {column.iloc[row]!r} in row {row + 1}; accepted: numbers, or "
                "other --features",
            )


def _left_out(frame: "pd.DataFrame", columns: Columns, label: Sequence[str], source: Path) -> list[str]:
    """A note about columns that would be inputs if they had numbers."""
    used = {*label, *columns.others, columns.user, *feature_columns(frame, ())}
    names = [] if columns.features else [str(name) for name in frame.columns if name not in used]
    for name in names:
        _check_text(frame[name], name, source)
    return [f"left out, not numbers: {', '.join(names)}"] if names else []


def read_table(source: Path) -> "pd.DataFrame":
    """A CSV, TSV or Parquet file as a frame."""
    import pandas as pd

    name = source.name.lower()
    if not name.endswith(TABLES):
        raise UserError(f"{source}: not a known ending; accepted: {', '.join(TABLES)}, or a folder of images")
    try:
        frame = (
            pd.read_parquet(source)
            if name.endswith(".parquet")
            else _read_text(source, "\t" if ".tsv" in name else ",")
        )
    except ImportError:
        raise UserError(f"{source}: Parquet files need the package pyarrow; run `pip install 'cabafl[hf]'`") from None
    except UserError:
        raise
    except Exception as error:  # pandas and pyarrow raise many types
        raise corrupt(source, one_line(error)) from None
    if not len(frame):
        raise corrupt(source, "it has no rows")
    return frame


def _read_text(source: Path, separator: str) -> "pd.DataFrame":
    """pandas would make names that occur twice different, and take a first field too many as the name of its row."""
    import pandas as pd

    how: dict[str, Any] = {"sep": separator, "skipinitialspace": True}
    first = pd.read_csv(source, header=None, nrows=1, dtype=str, keep_default_na=False, **how).iloc[0]
    names = [name.strip() for name in first]
    other = next((each for each in ";\t|," if len(names) == 1 and each in names[0]), None)
    if other is not None:
        raise corrupt(source, f"its first line has {other!r} between names; accepted: {separator!r}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise corrupt(source, f"its first line has {twice!r} twice; accepted: a different name for each column")
    try:
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            frame: pd.DataFrame = pd.read_csv(source, low_memory=False, index_col=False, **how)
    except pd.errors.ParserWarning:
        raise corrupt(source, f"a row has more fields than the first line has names ({len(names)})") from None
    texts = frame.select_dtypes(include=["object", "string"])
    for name in texts:
        frame[name] = texts[name].map(lambda each: each.strip() if isinstance(each, str) else each)
    return frame.rename(columns=str.strip)


def _test_column(frame: "pd.DataFrame", name: str, source: Path) -> NDArray[np.bool_]:
    words = [str(value).strip().lower().removesuffix(".0") for value in frame[name]]
    strange = next((word for word in words if word not in _TEST_WORDS), None)
    if strange is not None:
        raise corrupt(source, f"column {name!r} has {strange!r}; accepted: test and train, or true and false")
    return np.array([_TEST_WORDS[word] for word in words])


def _pictures(source: Path, how: Conversion, notes: list[str]) -> Arrays:
    columns = how.columns
    given = {
        "--label": columns.label,
        "--features": columns.features,
        "--test-column": how.test_column,
        "--numbers": columns.numbers,
        "--no-scale": not how.scale,
    }
    strange: Sequence[str] = [option for option, value in given.items() if value]
    if strange or how.windows is not None:
        raise UserError(f"{(*strange, '--window')[0]}: only for tables; {source} is a folder of images")
    options = how.pictures or PictureOptions()
    arrays = picture_arrays(source, options, notes)
    if "x_test" in arrays:
        if how.test_share is not None:
            raise UserError(f"--test-share = {how.test_share:g}: {source} has a folder for testing already")
        return arrays
    share = TEST_SHARE if how.test_share is None else how.test_share
    rows = held_out(len(arrays["x_train"]), arrays.get("user_train"), share, arrays["y_train"])
    if rows.all() or not rows.any():
        raise corrupt(source, f"a share of {share:g} leaves no training or no test samples")
    keys = [key for key in arrays if key != "class_names"]
    test = {key.replace("train", "test"): arrays[key][rows] for key in keys}
    return arrays | {key: arrays[key][~rows] for key in keys} | test
