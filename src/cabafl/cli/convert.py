"""`cabafl data convert`"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cabafl.cli.console import console
from cabafl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from cabafl.data.convert import Converted
    from cabafl.data.pictures import PictureOptions
    from cabafl.data.windows import WindowOptions

LARGEST_SIDE = 4096  # pixels
SHOWN = 10  # class names
DEVICES, ENOUGH = 100, 4000  # as many as there are by default, and samples that are enough for them

Source = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE", help="A table (.csv, .tsv, .parquet), or a folder of images with a subfolder per class."
    ),
]
Out = Annotated[Path, typer.Option(help="The .npz file to write; must not exist.")]
Label = Annotated[
    str | None,
    typer.Option(help="Column to learn, or several with commas; default: label, labels, y, target or class."),
]
User = Annotated[
    str | None, typer.Option(help="Column of the users; for images, a pattern (regular expression) for their paths.")
]
Features = Annotated[
    str | None, typer.Option(help="Columns of the inputs, with commas; default: all others with numbers.")
]
Numbers = Annotated[bool, typer.Option("--numbers", help="The label is a number to predict, not a class.")]
TestShare = Annotated[float | None, typer.Option(help="Share of the samples for testing; default: 0.2.")]
TestColumn = Annotated[str | None, typer.Option(help="Column that says which rows are for testing.")]
Scale = Annotated[bool, typer.Option(help="Standardise the features of a table.")]
Window = Annotated[int | None, typer.Option(help="Time series: rows per sample.")]
Stride = Annotated[int | None, typer.Option(help="Time series: rows between windows; default: a window.")]
Series = Annotated[str | None, typer.Option(help="Time series: column that tells recordings apart.")]
Time = Annotated[str | None, typer.Option(help="Time series: column to sort the rows by.")]
Size = Annotated[str | None, typer.Option(metavar="WxH", help="Images: scale all to this size.")]


def convert(
    source: Source,
    out: Out,
    label: Label = None,
    user: User = None,
    features: Features = None,
    numbers: Numbers = False,
    test_share: TestShare = None,
    test_column: TestColumn = None,
    scale: Scale = True,
    window: Window = None,
    stride: Stride = None,
    series: Series = None,
    time: Time = None,
    size: Size = None,
) -> None:
    """Make a .npz file of a table, of time series in a table, or of folders of images."""
    from cabafl.data.convert import Conversion
    from cabafl.data.convert import convert as make
    from cabafl.data.tables import Columns

    folder = source.is_dir()
    windows = _windows(window, {"--stride": stride, "--series": series, "--time": time})
    others = tuple(column for column in (series, time, test_column) if column is not None)
    columns = Columns(_split(label), None if folder else user, _split(features), others, numbers)
    pictures = _pictures(user if folder else None, size)
    done = make(source, out, Conversion(columns, test_column, test_share, scale, windows, pictures))
    console.print(describe(done), soft_wrap=True)


def describe(done: "Converted") -> str:
    """What is in the file, and how to use it."""
    data = done.dataset
    lines = [
        f"{done.path}: {len(data.train):,} training and {len(data.test):,} test samples of shape {data.input_shape}"
    ]
    if data.classes:
        names = (data.class_names or tuple(map(str, range(data.classes))))[:SHOWN]
        shown = ", ".join(name if name.isprintable() else repr(name) for name in names)
        lines.append(f"classes: {data.classes} ({shown}{', ...' if data.classes > SHOWN else ''})")
    else:
        lines.append(f"numbers to predict: {1 if data.train.y.dim() == 1 else data.train.y.shape[1]}")
    if done.users:
        lines.append(f"users: {done.users}")
    lines += done.notes
    devices = 0 if done.users or len(data.train) >= ENOUGH else max(2, len(data.train) * DEVICES // ENOUGH)
    several = data.classes and devices != 2
    partition = "natural" if done.users else "dirichlet" if several else "iid"
    settings = [f"data.root={done.path}", f"data.partition={partition}"]
    settings += [f"data.devices={devices}"] if devices else []
    settings += [] if data.kind == "image" else ["model.name=mlp"]
    settings += [] if data.classes else [f"task.name={'multilabel' if _is_labels(data.train.y) else 'regression'}"]
    lines.append(f"Next: cabafl run data.dataset=npz {shlex.join(settings)}")
    return "\n".join(lines)


def _is_labels(y: "Tensor") -> bool:
    """Whether targets are rows of 0 and 1."""
    return y.dim() == 2 and bool(((y == 0) | (y == 1)).all())


def _split(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(word.strip() for word in text.split(","))


def _windows(window: int | None, others: Mapping[str, Any]) -> "WindowOptions | None":
    from cabafl.data.windows import WindowOptions

    for option, steps in (("--window", window), ("--stride", others["--stride"])):
        if steps is not None and steps < 1:
            raise UserError(f"{option} = {steps}: accepted: 1 or more rows")
    if window is None:
        for option, value in others.items():
            if value is not None:
                raise UserError(f"{option} = {value}: needs --window, the number of rows of a sample")
        return None
    return WindowOptions(window, others["--stride"] or window, others["--series"], others["--time"])


def _pictures(user: str | None, size: str | None) -> "PictureOptions":
    from cabafl.data.pictures import PictureOptions

    try:
        re.compile(user or "")
    except re.error as error:
        raise UserError(
            f"--user = {user!r}: not a regular expression ({error}); accepted: e.g. 'writer(\\d+)'"
        ) from None
    return PictureOptions(user, _size(size))


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    if found is None or not 0 < int(found[1]) <= LARGEST_SIDE or not 0 < int(found[2]) <= LARGEST_SIDE:
        raise UserError(f"--size = {text!r}: accepted: width x height in pixels, e.g. 32x32, up to {LARGEST_SIDE}")
    return int(found[1]), int(found[2])
