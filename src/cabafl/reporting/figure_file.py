"""Figure files given with ``--out``: the path is checked before the work starts, the file is written atomically."""

import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from cabafl.errors import UserError
from cabafl.files import write_atomic

SUFFIXES = (".png", ".svg", ".pdf")


def figure_path(path: Path) -> Path:
    """Returns the path, with ``.png`` if it has no suffix. Raises `UserError` if it cannot be written."""
    path = path if path.suffix else path.with_suffix(SUFFIXES[0])
    if path.suffix not in SUFFIXES:
        raise UserError(f"--out = {path}: unknown figure format; accepted: a name that ends in {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--out = {path}: cannot be written; accepted: a file in an existing, writable folder")
    return path


def save_figure(figure: Figure, path: Path) -> None:
    """Writes the figure in the format of the path's suffix."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=130)
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        raise UserError(f"--out = {path}: cannot be written: {error.strerror or error}") from None
