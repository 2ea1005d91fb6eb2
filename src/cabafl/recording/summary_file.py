"""The text of ``summary.json``. JSON has no word for numbers that are not finite: null there, NaN once read."""

import json
import math
from collections.abc import Mapping
from typing import Any

from cabafl.files import as_json


def encoded(summary: Mapping[str, Any]) -> bytes:
    """The content of the file; other programs can read it, too."""
    return as_json(finite(summary))


def decoded(content: str | bytes) -> Any:
    """What `encoded` wrote; ValueError if it is no JSON. Any other JSON value is returned as it is."""
    summary = json.loads(content)
    return _restored(summary) if isinstance(summary, dict) else summary


def finite(value: Any) -> Any:
    """A tree of JSON in which numbers that are not finite are null."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _restored(summary: dict[str, Any]) -> dict[str, Any]:
    """Figures that every run has: null is not, as for others, that there were too few versions."""
    metric = summary.get("metric")
    best = f"best_{metric['name']}" if isinstance(metric, dict) and "name" in metric else "best_accuracy"

    def figure(key: str, value: Any) -> Any:
        return math.nan if value is None and (key.startswith("final_") or key in (best, "epsilon")) else value

    found = {key: figure(key, value) for key, value in summary.items()}
    if isinstance(found.get("averaged"), dict):
        found["averaged"] = {key: figure(key, value) for key, value in found["averaged"].items()}
    devices = found.get("devices")
    if isinstance(devices, dict) and isinstance(devices.get("values"), list):
        values = [math.nan if value is None else value for value in devices["values"]]
        found["devices"] = devices | {"values": values}
    return found
