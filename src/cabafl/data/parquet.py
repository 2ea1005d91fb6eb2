"""Parquet files as the Hugging Face Hub stores data sets: labels, text, and images as compressed files in a column."""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.files import one_line
from cabafl.data.transfer import Progress, SourceError

if TYPE_CHECKING:
    import pyarrow.parquet

_ROWS = 4096


def require_pyarrow() -> None:
    """Raises `SourceError` if Parquet files cannot be read, before anything is downloaded."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise SourceError("Parquet files need the package pyarrow; run `pip install 'cabafl[hf]'`") from None


class ParquetRows:
    """The rows of several Parquet files with the same columns."""

    def __init__(self, paths: Sequence[Path], columns: Sequence[str]) -> None:
        require_pyarrow()
        self.columns = list(columns)
        self._files = [_open(path, columns) for path in paths]
        self.rows: int = sum(file.metadata.num_rows for file in self._files)
        self._bytes = sum(path.stat().st_size for path in paths)

    def batches(self, report: Progress) -> Iterator[dict[str, list[Any]]]:
        """Columns of some thousand rows at a time, as Python lists."""
        import pyarrow

        done = 0
        for file in self._files:
            try:
                for batch in file.iter_batches(_ROWS, columns=self.columns):
                    yield batch.to_pydict()
                    done += len(batch)
                    report("converting", self._bytes * done // self.rows, self._bytes)
            except (pyarrow.ArrowException, OSError) as error:
                raise SourceError(f"a Parquet file cannot be read: {one_line(error)}") from None

    def names(self, column: str) -> list[str]:
        """The class names of a label column, from the note that `datasets` leaves in the file."""
        note = (self._files[0].schema_arrow.metadata or {}).get(b"huggingface", b"{}")
        try:
            names = json.loads(note)["info"]["features"][column]["names"]
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"the Parquet file does not name the classes of column {column!r}") from None
        return [str(name) for name in names]


def _open(path: Path, columns: Sequence[str]) -> "pyarrow.parquet.ParquetFile":
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{path.name} is not a Parquet file: {one_line(error)}") from None
    absent = [column for column in columns if column not in file.schema_arrow.names]
    if absent:
        found = ", ".join(file.schema_arrow.names)
        raise SourceError(f"{path.name} has no column {', '.join(absent)}; found: {found}")
    return file


def pixels(image: Any, mode: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Decodes one entry of an image column; ``mode`` is PIL's, ``size`` is (width, height)."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image["bytes"])) as picture:
            if picture.size != size:
                raise SourceError(f"an image is {picture.size[0]}x{picture.size[1]}, expected {size[0]}x{size[1]}")
            return np.asarray(picture.convert(mode))
    except (OSError, ValueError, TypeError, KeyError, SyntaxError, Image.DecompressionBombError) as error:
        raise SourceError(f"an image cannot be decoded: {one_line(error)}") from None
