"""Which settings make two runs the same experiment, whatever way they are written."""

import hashlib
import json
from pathlib import Path
from typing import Any

from cabafl import methods
from cabafl.config import EXECUTION_KEYS, DataSection, Experiment, TrainingSection
from cabafl.models.catalogue import NETWORKS
from cabafl.tiers import CONFIGS, TIERS
from cabafl.toml import flatten
from cabafl.validation import validated

DEVICES = 100  # of a partition that is not natural, if the experiment names no number
# Where the work is done changes no result; what a run on real devices does is not simulated.
_ELSEWHERE = {"data.root", "run.device", "run.wall_time", *(f"run.{key}" for key in EXECUTION_KEYS)}
_LENGTH = {"seed", "run.virtual_time", "run.max_dispatches", "run.evaluate_every", "run.evaluate_versions"}
_REPORTED = {"privacy.dp_delta"}
# The published models do not depend on these.
_BESIDE = {"run.average", "run.average_power", "run.average_decay", "run.evaluate_devices", "task.metrics"}
_FIRST = ("epochs", "batch_size", "learning_rate", "momentum", "weight_decay")  # keys of [training] from the beginning
# Keys that are left out while they have their default: results of versions without them are still the same.
_ADDED = (
    "task.name",
    "task.metric",
    "model.weights",
    *(f"training.{key}" for key in TrainingSection.model_fields if key not in _FIRST),
)
_DIGITS = ("mnist5k", "mnist", "fashion-mnist", "femnist")  # 28x28: the CNN's feature layer is another one


def identity(experiment: Experiment) -> dict[str, Any]:
    """All settings that the results depend on, in one form: defaults filled in, keys without effect left out.

    Raises `UserError` for a wrong parameter of the method, and what `methods.find` raises for an unknown method.
    """
    flat = flatten(experiment.model_dump(exclude={"deploy", "method"}))
    cls = methods.find(experiment.method.name)
    parameters = validated(cls.Parameters, experiment.method.parameters, "method")
    _simplify_data(flat, experiment.data)
    devices = flat["data.devices"]
    settled = parameters.settled(devices, simulated=True) if isinstance(devices, int) else parameters
    flat |= {"method.name": experiment.method.name}
    flat |= {f"method.{key}": value for key, value in settled.model_dump().items()}
    needed = cls(parameters).needs().features
    flat["model.feature_layer"] = _feature_layer(experiment) if needed in ("activations", "activation_counts") else None
    _simplify_fleet(flat, experiment)
    _simplify_run(flat)
    default = flatten(Experiment().model_dump())
    unused = {key for key in _ADDED if flat.get(key) == default.get(key)}
    return {key: value for key, value in flat.items() if key not in _ELSEWHERE | _BESIDE | unused}


def essentials(experiment: Experiment) -> dict[str, Any]:
    """`identity` without seed, length of the run, evaluation times and power: what a published accuracy belongs to."""
    return {key: value for key, value in identity(experiment).items() if not _is_secondary(key)}


def digest(settings: dict[str, Any]) -> str:
    """A short name for a set of settings."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _is_secondary(key: str) -> bool:
    power = key.startswith("fleet.") and ("watts" in key or "power" in key)
    return key in _LENGTH or key in _REPORTED or power


def _feature_layer(experiment: Experiment) -> str | None:
    model = experiment.model
    if model.feature_layer is not None or model.name not in NETWORKS:
        return model.feature_layer
    if model.name == "cnn":
        return "relu3" if experiment.data.dataset in _DIGITS else "flatten"
    return NETWORKS[model.name].feature


def _simplify_data(flat: dict[str, Any], data: DataSection) -> None:
    if data.partition not in ("dirichlet", "coarse-balanced"):
        del flat["data.beta"]
    if data.partition != "shards":
        del flat["data.shards"]
    if data.partition not in ("dirichlet", "natural"):
        del flat["data.min_samples"]
    if data.devices == "auto" and data.partition != "natural":
        flat["data.devices"] = DEVICES
    if data.dataset == "npz" and data.root:
        flat["data.file"] = Path(data.root).name  # the file is the data set, wherever it lies


def _simplify_fleet(flat: dict[str, Any], experiment: Experiment) -> None:
    devices = flat["data.devices"]
    if isinstance(devices, int):
        del flat["fleet.participation"]
        flat["fleet.slots"] = experiment.slots(devices)
    tiers = experiment.fleet.tiers
    if isinstance(tiers, dict) and devices == DEVICES:
        counts = tuple(tiers.get(name, 0) for name in TIERS)
        flat["fleet.tiers"] = next((name for name, config in CONFIGS.items() if config == counts), tiers)
    if experiment.fleet.faults.attack is None:
        del flat["fleet.faults.attack_share"], flat["fleet.faults.attack_strength"]
    if not experiment.fleet.faults.slowdown:
        del flat["fleet.faults.slowdown_factor"]


def _simplify_run(flat: dict[str, Any]) -> None:
    """In a simulation, ``auto`` means off."""
    for key in [key for key, value in flat.items() if key.startswith("run.") and value == "auto"]:
        flat[key] = None
    if flat["run.defence.sample_quantile"] is None:
        del flat["run.defence.sample_factor"]
