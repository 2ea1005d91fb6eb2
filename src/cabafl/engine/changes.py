"""The settings that an operator may change while a run on real devices goes on."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cabafl.config import Experiment, apply_override
from cabafl.errors import UserError
from cabafl.validation import nearest, validated

Value = float | int | str | None

CHANGEABLE: dict[str, tuple[str, str]] = {  # key: part of the engine and name there
    "run.wall_time": ("limits", "seconds"),
    "run.max_dispatches": ("limits", "max_dispatches"),
    "run.evaluate_every": ("limits", "evaluate_every"),
    "run.evaluate_versions": ("limits", "evaluate_versions"),
    "run.slot_timeout": ("limits", "slot_timeout"),
    "run.max_staleness": ("limits", "max_staleness"),
    "run.defence.update_clip": ("defence", "update_clip"),
    "run.defence.feature_clip": ("defence", "feature_clip"),
    "run.defence.sample_quantile": ("defence", "sample_quantile"),
    "run.defence.sample_factor": ("defence", "sample_factor"),
    "deploy.norm_bound": ("norm_bound", ""),
}


class Change(NamedTuple):
    """A checked change: what `inputs.Changed` takes besides the time."""

    key: str
    value: Value


def parse_change(text: str, experiment: Experiment, earlier: Mapping[str, Value] | None = None) -> Change:
    """Checks ``section.key=value`` against the experiment as it runs now, with its ``earlier`` changes.

    Raises `UserError` if this key cannot change, the value is not accepted, or the run would never end.
    """
    key = text.partition("=")[0].strip()
    if key not in CHANGEABLE:
        raise UserError(
            f"{text!r}: cannot change in a running experiment{nearest(key, CHANGEABLE)}; accepted: "
            f"KEY=VALUE with {', '.join(CHANGEABLE)}"
        )
    values = changed(experiment, earlier or {}).model_dump()
    apply_override(values, text)
    after = validated(Experiment, values)
    if after.run.wall_time is None and after.run.max_dispatches is None:
        raise UserError(f"{text!r}: the run would not end; accepted: run.wall_time or run.max_dispatches, or both")
    return Change(key, _value(after, key))


def changed(experiment: Experiment, changes: Mapping[str, Value]) -> Experiment:
    """The experiment with changes that `parse_change` has checked."""
    if not changes:
        return experiment
    values = experiment.model_dump()
    for key, value in changes.items():
        *path, name = key.split(".")
        table: dict[str, Any] = values
        for part in path:
            table = table[part]
        table[name] = value
    return validated(Experiment, values)


def _value(experiment: Experiment, key: str) -> Value:
    found: Any = experiment
    for part in key.split("."):
        found = getattr(found, part)
    value: Value = found
    return value
