"""`cabafl export`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cabafl.cli.arguments import Quiet
from cabafl.cli.console import console
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.exporting.model import Exported
    from cabafl.lifecycle.loading import Which

FormatName = Annotated[str, typer.Option("--format", help="onnx, torchscript or safetensors.")]


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder: finished, interrupted or still growing.")],
    form: FormatName,
    out: Annotated[
        Path | None, typer.Option(help="File for the model, which must not exist; default: DIR/export/model.SUFFIX.")
    ] = None,
    averaged: Annotated[bool, typer.Option("--averaged", help="The averaged model (run.average).")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The last published model, also if models are averaged.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The best evaluated model (run.keep = best or both).")] = False,
    quiet: Quiet = False,
) -> None:
    """Write the model of a run for other programs, checked on the test samples, with a model card beside it.

    Without --averaged, --raw or --best it is the model that the run gives away, as in model.safetensors.
    """
    from cabafl.exporting.formats import check_format

    check_format(form)
    which = _which(folder, averaged, raw, best)
    from cabafl.exporting.model import export_model

    show_export(export_model(folder, out, form, which), quiet)  # type: ignore[arg-type]  # checked above


def show_export(found: "Exported", quiet: bool = False) -> None:
    """Prints what was written."""
    if quiet:
        return
    console.print(f"{found.file}: {found.what}", soft_wrap=True)
    console.print(f"Checked on {found.checked}.", soft_wrap=True)
    console.print(f"Model card: {found.card}", soft_wrap=True)


def _which(folder: Path, averaged: bool, raw: bool, best: bool) -> "Which":
    from cabafl.config import load_experiment
    from cabafl.recording.folder import EXPERIMENT

    if averaged + raw + best > 1:
        raise UserError("--averaged, --raw, --best: more than one; accepted: one of them, or none")
    path = folder / EXPERIMENT
    if averaged and path.exists() and load_experiment(path).run.average is None:
        raise UserError(f"--averaged: the run in {folder} averages no models (run.average); accepted: --raw, or none")
    return "raw" if raw else "best" if best else "result"
