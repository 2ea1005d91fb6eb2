"""Which settings the runs of a report share and which differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from cabafl.reporting.runs import Run

Groups = Mapping[str, Sequence[Run]]


def common_settings(groups: Groups) -> dict[str, str]:
    """Settings outside ``[method]`` that are equal in all runs."""
    return {key: format_value(value) for key, value in _first(groups).settings.items() if _is_common(groups, key)}


def differing_settings(groups: Groups) -> dict[str, list[str]]:
    """Settings outside ``[method]`` that differ between runs, with the values of each method."""
    keys = sorted({key for group in groups.values() for run in group for key in run.settings})
    return {
        key: [", ".join(sorted({format_value(run.settings.get(key)) for run in group})) for group in groups.values()]
        for key in keys
        if not _is_common(groups, key) and not key.startswith("method.")
    }


def method_settings(groups: Groups) -> dict[str, str]:
    """The keys of ``[method]``, one line per method."""
    lines = {}
    for label, group in groups.items():
        own = {key.partition(".")[2]: value for key, value in group[0].settings.items() if key.startswith("method.")}
        name = own.pop("name")
        texts = [f"{key} = {format_value(value)}" for key, value in own.items()]
        lines[label] = ", ".join([*([] if name == label else [f"name = {name}"]), *texts]) or "none"
    return lines


def format_value(value: Any) -> str:
    """Formats a setting for readers."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {format_value(item)}" for key, item in value.items()) or "none"
    return str(value)


def title_of(groups: Groups, what: str = "Comparison") -> str:
    """A title with those of data set, model and partition that all runs share."""
    data = _first(groups).experiment.data
    partition = f"Dirichlet β = {data.beta:g}" if data.partition == "dirichlet" else data.partition
    parts = {
        "data.dataset": data.dataset,
        "model.name": _first(groups).experiment.model.name,
        "data.partition": partition,
    }
    common = [text for key, text in parts.items() if _is_common(groups, key)]
    if not _is_common(groups, "data.beta") and partition in common:
        common.remove(partition)
    name = what if len(groups) > 1 else next(iter(groups))
    return f"{name}: {', '.join(common)}" if common else name


def _is_common(groups: Groups, key: str) -> bool:
    first = _first(groups).settings.get(key)
    return not key.startswith("method.") and all(
        run.settings.get(key) == first for group in groups.values() for run in group
    )


def _first(groups: Groups) -> Run:
    return next(iter(groups.values()))[0]
