"""Words that version 0.1 wrote differently into a run folder, and what they are called now."""

from typing import Any

_EVENT_KEYS = {"t": "time"}
_EVENT_KINDS = {"aggregation": "publish"}
_SUMMARY_KEYS = {"virtual_time": "time", "aggregations": "versions"}


def translate_event(event: dict[str, Any]) -> dict[str, Any]:
    """An event in today's words; one that is in them already stays as it is."""
    if "t" not in event:
        return event
    event = {_EVENT_KEYS.get(key, key): value for key, value in event.items()}
    return event | {"event": _EVENT_KINDS.get(event["event"], event["event"])}


def translate_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary in today's words."""
    return {_SUMMARY_KEYS.get(key, key): value for key, value in summary.items()}
