"""`cabafl observe`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cabafl.cli.console import console
from cabafl.errors import UserError


def observe(
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML); without it, the defaults.")] = None,
    settings: Annotated[list[str] | None, typer.Argument(help="section.key=value", metavar="[KEY=VALUE]...")] = None,
    betas: Annotated[str, typer.Option(help="Dirichlet concentrations.")] = "1.0,0.5,0.1",
    epochs: Annotated[int, typer.Option(help="Epochs of the short training on all data.", min=0)] = 2,
    draws: Annotated[int, typer.Option(help="How often the data are cut.", min=1)] = 10,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("observations.png"),
) -> None:
    """Draw the paper's observations: features tell how balanced data are."""
    from cabafl.cli.run import read
    from cabafl.comparison.observe import observe as measure
    from cabafl.reporting.observations import draw_observations
    from cabafl.reporting.picture import picture_path

    try:
        values = [float(text) for text in betas.split(",")]
    except ValueError:
        raise UserError(f"--betas = {betas!r}: accepted: numbers with commas, e.g. 1.0,0.5,0.1") from None
    out = picture_path(out)
    experiment = read(file, settings)
    found = measure(experiment, values, epochs, draws)
    name = f"{experiment.data.dataset}, {experiment.model.name}, mean of {draws} draws"
    table = Table(title=f"cosine of features to the whole: {name}", title_justify="left")
    for heading in ("split", "D0 (balanced)", "D1..D5", "unions of D1..D5"):
        table.add_column(heading)
    for setting in found:
        unions = " ".join(f"{value:.4f}" for value in setting.unions.mean(axis=0))
        balanced, others = setting.parts[:, 0].mean(), setting.parts[:, 1:].mean()
        table.add_row(setting.name, f"{balanced:.4f}", f"{others:.4f}", unions)
    console.print(table)
    draw_observations(found, name, out)
    console.print(f"Picture: {out}", soft_wrap=True)
