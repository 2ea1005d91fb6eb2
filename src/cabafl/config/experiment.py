"""An experiment as a typed object, and reading one from a TOML file and the command line."""

import copy
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from cabafl.config.fleet import FleetSection
from cabafl.config.learning import TaskSection, TrainingSection
from cabafl.config.sections import (
    DataSection,
    DeploySection,
    MethodSection,
    ModelSection,
    PrivacySection,
    RunSection,
    Section,
)
from cabafl.errors import UserError
from cabafl.toml import read_toml
from cabafl.validation import validated

RENAMED = {("run", "evaluate_aggregations"): "evaluate_versions"}  # keys of 0.1


class Experiment(Section):
    """Everything that determines a run. Two runs of the same experiment write the same bytes."""

    seed: int = Field(
        1, ge=0, description="determines all random choices: partition, speeds, initial weights, selection, shuffling"
    )
    data: DataSection = DataSection()
    task: TaskSection = TaskSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    fleet: FleetSection = FleetSection()
    privacy: PrivacySection = PrivacySection()
    deploy: DeploySection = DeploySection()
    method: MethodSection = MethodSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _slots_fit(self) -> "Experiment":
        if self.fleet.slots is not None and self.data.devices != "auto":
            check_slots(self.fleet.slots, self.data.devices)
        return self

    def slots(self, devices: int) -> int:
        """How many of ``devices`` train at the same time."""
        slots = self.fleet.slots or max(1, int(self.fleet.participation * devices + 1e-9))
        check_slots(slots, devices)
        return slots


def check_slots(slots: int, devices: int) -> None:
    """Raises ValueError if there are fewer devices than slots."""
    if slots > devices:
        raise ValueError(f"fleet.slots = {slots}: at most the number of devices, {devices} (data.devices)")


def load_experiment(file: str | Path | None = None, overrides: Iterable[str] = ()) -> Experiment:
    """Reads an experiment: the defaults, then the keys of a TOML file, then ``section.key=value`` settings.

    If the settings name another method than the file, the file's keys of ``[method]`` do not apply.
    """
    file = Path(file) if file else None
    values = read_toml(file) if file else {}
    settings: dict[str, Any] = {}
    texts = list(overrides)
    for text in texts:
        apply_override(settings, text)
    names = _method_name(values, MethodSection().name), _method_name(settings, None)
    if None not in names and names[0] != names[1]:
        values["method"] = {}
    in_file = copy.deepcopy(values)
    for text in texts:
        apply_override(values, text)
    try:
        return validated(Experiment, _renamed(values))
    except UserError:
        if file is not None:
            _check_file(file, in_file)
        raise


def _check_file(file: Path, values: dict[str, Any]) -> None:
    """Raises `UserError` with the name of the file if what is wrong is in the file."""
    try:
        validated(Experiment, _renamed(values))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _method_name(values: dict[str, Any], default: str | None) -> Any:
    """``method.name`` of values that are not validated yet; None if ``[method]`` is not a table."""
    section = values.get("method", {})
    return section.get("name", default) if isinstance(section, dict) else None


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Keys of 0.1 under the name they have now; a key given in both forms is left for validation to refuse."""
    for (section, old), new in RENAMED.items():
        table = values.get(section)
        if isinstance(table, dict) and old in table and new not in table:
            values = values | {section: {new if key == old else key: value for key, value in table.items()}}
    return values


def apply_override(values: dict[str, Any], text: str) -> None:
    """Sets one key from ``section.key=value``. A value that is not valid TOML is taken as a string."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"{text!r}: not a setting; accepted: section.key=value, e.g. data.beta=0.1")
    table = values
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UserError(f"{text!r}: {key} is a value, not a section")
    table[keys[-1]] = parse_value(value.strip())


def parse_value(value: str) -> Any:
    """Parses a value of the command line: TOML, ``none`` or else plain text."""
    if value == "none":
        return None
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
