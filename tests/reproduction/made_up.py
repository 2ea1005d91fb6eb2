"""Writes the runs of a table or figure without a simulation: accuracies follow from the place of the cell."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cabafl.checked import make_method
from cabafl.config import Experiment
from cabafl.paper.definitions import ArtefactLayout, artefacts, layout
from cabafl.reproduction.plan import folder_name
from cabafl.toml import experiment_toml
from tests.reporting.sample_runs import write_run

Final = Callable[[str, str], float | None]  # (id of the row, id of the column) -> accuracy at the end; None: no run


def write_experiment(folder: Path, experiment: Experiment, final: float = 0.6) -> Path:
    """Writes a finished run of this experiment; its accuracy rises from 10 % to ``final``, then stays."""
    accuracy = [*np.linspace(0.1, final, 11).tolist(), *[final] * 12]
    write_run(folder, experiment.method.name, experiment.seed, accuracy)
    text = experiment_toml(experiment, make_method(experiment).parameters)
    (folder / "experiment.toml").write_text(text, encoding="utf-8")
    return folder


def write_artefact(out: Path, name: str, final: Final, scale: str = "smoke", seeds: int = 1) -> ArtefactLayout:
    """Writes the runs of an artefact into ``out/runs``."""
    table = layout(artefacts()[name], scale)
    for cell in table.cells:
        value = final(table.rows[cell.row].id, table.columns[cell.column].id)
        for seed in range(1, seeds + 1):
            experiment = cell.experiment.model_copy(update={"seed": seed})
            folder = out / "runs" / folder_name(experiment)
            if value is not None and not folder.exists():
                write_experiment(folder, experiment, value + 0.02 * (seed - 1))
    return table
