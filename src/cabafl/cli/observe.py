"""`cabafl observe`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cabafl.cli.arguments import ExperimentFile, Settings
from cabafl.cli.console import console, print_table
from cabafl.errors import UserError


def observe(
    file: ExperimentFile = None,
    settings: Settings = None,
    betas: Annotated[str, typer.Option(help="Dirichlet concentrations, separated by commas.")] = "1.0,0.5,0.1",
    epochs: Annotated[int, typer.Option(help="Epochs of training on all data.", min=0)] = 2,
    draws: Annotated[int, typer.Option(help="Number of random splits to average over.", min=1)] = 10,
    out: Annotated[Path, typer.Option(help="Figure: a .png, .svg or .pdf file.")] = Path("observations.png"),
) -> None:
    """Reproduce the paper's observations: a layer's features show how balanced data are."""
    from cabafl.cli.run import read_experiment
    from cabafl.comparison.observe import observe as measure
    from cabafl.reporting.figure_file import figure_path
    from cabafl.reporting.observations import draw_observations

    try:
        values = [float(text) for text in betas.split(",")]
    except ValueError:
        raise UserError(f"--betas = {betas!r}: accepted: numbers separated by commas, e.g. 1.0,0.5,0.1") from None
    out = figure_path(out)
    experiment = read_experiment(file, settings)
    splits = measure(experiment, values, epochs, draws)
    name = f"{experiment.data.dataset}, {experiment.model.name}, mean of {draws} draws"
    table = Table(title=f"Cosine of features to those of all data: {name}", title_justify="left")
    for heading in ("split", "D0 (balanced)", "D1..D5", "unions of D1..D5"):
        table.add_column(heading)
    for split in splits:
        unions = " ".join(f"{value:.4f}" for value in split.unions.mean(axis=0))
        balanced, others = split.parts[:, 0].mean(), split.parts[:, 1:].mean()
        table.add_row(split.name, f"{balanced:.4f}", f"{others:.4f}", unions)
    print_table(table)
    draw_observations(splits, name, out)
    console.print(f"Figure: {out}", soft_wrap=True)
