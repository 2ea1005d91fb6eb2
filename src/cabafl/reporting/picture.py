"""A picture the user named: checked before the work is done, written as a whole."""

import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from cabafl.errors import UserError
from cabafl.files import write_atomic

KINDS = (".png", ".svg", ".pdf")


def picture_path(path: Path) -> Path:
    """Where it will be; a name without an ending gets one."""
    path = path if path.suffix else path.with_suffix(KINDS[0])
    if path.suffix not in KINDS:
        raise UserError(f"--out = {path}: not a kind of picture; accepted: a name that ends in {', '.join(KINDS)}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--out = {path}: cannot be written; accepted: a file in a folder that exists")
    return path


def save(figure: Figure, path: Path) -> None:
    """In the format its ending says."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=130)
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        raise UserError(f"picture {path} cannot be written: {error.strerror or error}") from None
