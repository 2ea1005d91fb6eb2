"""The model card: what a model was trained on, how, how good it is and what it cost, as Markdown."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cabafl.checked import make_method
from cabafl.config import Experiment
from cabafl.data.catalogue import DESCRIPTIONS
from cabafl.data.dataset import Dataset
from cabafl.exporting.formats import OUTPUTS, SAMPLES, Format
from cabafl.learning.builtin_tasks import chosen_metrics, find_task
from cabafl.lifecycle.loading import LoadedModel
from cabafl.names import HUB
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import ENVIRONMENT, SUMMARY, complete_metrics
from cabafl.toml import experiment_toml

MOST_CLASSES = 100  # whose names are listed


def model_card(path: Path, file: Path, form: Format, model: LoadedModel, facts: "CardFacts") -> str:
    """The card of one exported file."""
    experiment = facts.experiment
    rows: dict[str, Mapping[str, str]] = {
        "Data": _data(experiment, facts.dataset, model),
        "Method": _method(path, experiment, model),
        "Quality": _quality(model, facts),
        "Cost of the training": _cost(path, model),
    }
    parts = [f"# {file.name}", _first_line(path, experiment, model)]
    parts += [f"## {title}\n\n{_table(table)}" for title, table in rows.items()]
    parts.append(f"## Use\n\n{_use(file, form, model, facts.dataset)}")
    settings = _settings(experiment).strip()
    parts.append(f"## Settings\n\nEverything that determines the run:\n\n```toml\n{settings}\n```")
    return "\n\n".join(parts) + "\n"


class CardFacts:
    """What the card says beside the run folder."""

    def __init__(self, experiment: Experiment, dataset: Dataset, figures: Mapping[str, float], checked: str) -> None:
        self.experiment = experiment
        self.dataset = dataset
        self.figures = figures
        self.checked = checked


def _settings(experiment: Experiment) -> str:
    """The experiment file, with the names of files but not the folders they were in."""
    data, model, fleet = experiment.data, experiment.model, experiment.fleet
    shared = experiment.model_copy(
        update={
            "data": data.model_copy(update={"root": _name(data.root)}),
            "model": model.model_copy(update={"weights": _name(model.weights)}),
            "fleet": fleet.model_copy(
                update={"faults": fleet.faults.model_copy(update={"trace": _name(fleet.faults.trace)})}
            ),
        }
    )
    return experiment_toml(shared, make_method(experiment).parameters)


def _name(path: str | None) -> str | None:
    return None if path is None else Path(path).name


def stage(path: Path, model: LoadedModel) -> str:
    """Which model of the run it is."""
    if model.version is None or model.time is None:
        return "the current model"
    unfinished = "" if (path / SUMMARY).exists() else ", from the last checkpoint of a run that is not finished"
    return f"version {model.version:,} at {model.time:,.0f} s{unfinished}"


def clock_of(path: Path) -> str:
    """The clock of a run: virtual or wall."""
    return str(_read(path / ENVIRONMENT).get("clock", "virtual"))


def _first_line(path: Path, experiment: Experiment, model: LoadedModel) -> str:
    what = f"`{model.spec.model}`, trained with {experiment.method.name} on {_code(experiment.data.dataset)}"
    return f"{what}: {stage(path, model)}. Run: {_code(path.resolve().name)}."


def _data(experiment: Experiment, dataset: Dataset, model: LoadedModel) -> dict[str, str]:
    section, spec = experiment.data, model.spec
    known = DESCRIPTIONS.get(section.dataset)
    origin = {} if known is None else {"description": known.what, "source": known.source}
    split = f"{section.partition}, beta {section.beta:g}" if section.partition == "dirichlet" else section.partition
    return {
        "data set": _code(section.dataset),
        **origin,
        "licence": _licence(section.dataset),
        "training samples": f"{len(dataset.train):,}" if len(dataset.train) else "on the devices",
        "test samples": f"{len(dataset.test):,}",
        "form of a sample": f"{spec.kind}, {' x '.join(map(str, spec.input_shape))}, {_type(dataset)}",
        "split over the devices": split,
    }


def _licence(name: str) -> str:
    known = DESCRIPTIONS.get(name)
    if known is not None and known.licence is not None:
        return known.licence
    if name.startswith(HUB):
        return "not known here: see the data set's page on the Hub"
    return "not known here: data of the user's own" if known is None else "not stated with the data"


def _method(path: Path, experiment: Experiment, model: LoadedModel) -> dict[str, str]:
    about, privacy = _read(path / ENVIRONMENT), experiment.privacy
    average = None if model.which == "raw" else experiment.run.average
    return {
        "method": _code(experiment.method.name),
        "network": f"{_code(model.spec.model)}, {sum(p.numel() for p in model.network.parameters()):,} parameters",
        "task": _code(model.spec.task.name),
        "clock": clock_of(path),
        "seed": str(experiment.seed),
        "averaged": "no" if average is None else f"{average} average of the published models",
        "differential privacy": "none" if privacy.dp_clip is None else _spent(path, privacy.dp_delta),
        "versions": f"cabafl {about.get('cabafl', '?')}, torch {about.get('torch', '?')}",
    }


def _spent(path: Path, delta: float) -> str:
    epsilon = _read(path / SUMMARY).get("epsilon")
    return "DP-SGD" if epsilon is None else f"DP-SGD, epsilon {epsilon:.2f} at delta {delta:g}"


def _quality(model: LoadedModel, facts: CardFacts) -> dict[str, str]:
    metrics = chosen_metrics(find_task(model.spec.task), model.spec.task)
    texts = {
        f"{metric.info.title} on the test samples": f"{metric.info.text(facts.figures[metric.name])}{metric.info.unit}"
        for metric in metrics
    }
    return {**texts, "loss": f"{facts.figures['loss']:.4g}", "checked": facts.checked}


def _cost(path: Path, model: LoadedModel) -> dict[str, str]:
    """Up to the time of the model."""
    rows = complete_metrics(path)
    reached = [row for row in rows if model.time is None or row.time <= model.time]
    if not reached:
        return {"evaluations": "none yet"}
    row: Evaluated = reached[-1]
    summary = _read(path / SUMMARY)
    wall = {"wall time of the whole run": f"{summary['wall_seconds']:,.0f} s"} if "wall_seconds" in summary else {}
    return {
        "up to the evaluation at": f"{row.time:,.0f} s",
        "uploads": f"{row.uploads:,}",
        "models transferred": f"{row.transfers:,} ({row.bytes / 1e6:,.0f} MB)",
        "energy of the devices": f"{row.joules / 1e3:,.1f} kJ",
        **wall,
    }


def _use(file: Path, form: Format, model: LoadedModel, dataset: Dataset) -> str:
    shape = ", ".join(map(str, model.spec.input_shape))
    takes = f"Takes samples as they are in the data set: {_type(dataset)}, shape (n, {shape}), any n."
    if form == "onnx":
        code = (
            "import onnxruntime\n\n"
            f'session = onnxruntime.InferenceSession("{file.name}")\n'
            f'[outputs] = session.run(["{OUTPUTS}"], {{"{SAMPLES}": x}})'
        )
        text = f"{takes} The preprocessing is part of the graph."
    elif form == "torchscript":
        code = f'import torch\n\nmodel = torch.jit.load("{file.name}")\noutputs = model(torch.from_numpy(x))'
        text = f"{takes} The preprocessing is part of the program."
    else:
        code = (
            "from safetensors import safe_open\n\n"
            f'with safe_open("{file.name}", "pt") as file:\n'
            "    tensors = {name: file.get_tensor(name) for name in file.keys()}\n"
            '    task = file.metadata()["task.json"]  # form of the inputs, normalisation, classes'
        )
        text = "The weights by name; the preprocessing is described in the file's metadata."
    names = model.spec.class_names
    listed = ", ".join(_code(name) for name in names[:MOST_CLASSES])
    more = f", and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
    classes = f"\n\nOutput i is the class: {listed}{more}." if names else ""
    return f"{text}\n\n```python\n{code}\n```{classes}"


def _type(dataset: Dataset) -> str:
    return str(dataset.test.x.dtype).removeprefix("torch.")


def _table(rows: Mapping[str, str]) -> str:
    cells = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items())
    return f"| | |\n|---|---|\n{cells}"


def _cell(text: str) -> str:
    """Text that cannot leave its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    """A name in a code span, whatever it contains."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
