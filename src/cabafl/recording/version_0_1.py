"""Translates run folders written by version 0.1: keys and event kinds that have been renamed since."""

from typing import Any

_EVENT_KEYS = {"t": "time"}
_EVENT_KINDS = {"aggregation": "publish"}
_SUMMARY_KEYS = {"virtual_time": "time", "aggregations": "versions"}


def translate_event(event: dict[str, Any]) -> dict[str, Any]:
    """Returns the event with current names. 0.1 events have the key ``t`` and no ``time``; others are returned
    unchanged."""
    if "t" not in event or "time" in event:
        return event
    event = {_EVENT_KEYS.get(key, key): value for key, value in event.items()}
    return event | {"event": _EVENT_KINDS.get(event["event"], event["event"])}


def translate_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns the summary with current names; idempotent."""
    return {_SUMMARY_KEYS.get(key, key): value for key, value in summary.items()}
