"""Names on the broker. The broker authenticates a client by its certificate, whose common name is its user name; the
access list lets a device read and write its own topics only."""

import re

SERVER = "server"  # user name of the server
RUN = "fleet/all/run"  # retained: the greeting of the current run, empty between two runs
QUERY = "fleet/all/query"
MODELS = "fleet/all/model"  # retained below it: models that several jobs use
EVERY_UP, EVERY_HERE = "fleet/+/up", "fleet/+/here"
_DEVICE = re.compile(r"fleet/device-(\d{3,7})/(up|here)")


def user_name(device: int) -> str:
    """The common name of a device's certificate."""
    return f"device-{device:03d}"


def down(device: int) -> str:
    """What the server sends to one device."""
    return f"fleet/{user_name(device)}/down"


def up(device: int) -> str:
    """What a device sends to the server."""
    return f"fleet/{user_name(device)}/up"


def here(device: int) -> str:
    """Retained: whether a device is connected and takes part."""
    return f"fleet/{user_name(device)}/here"


def sender(topic: str) -> tuple[int, str] | None:
    """The device and the last word of a topic that a device writes; None for other topics."""
    found = _DEVICE.fullmatch(topic)
    if found is None or topic.split("/")[1] != user_name(int(found[1])):
        return None
    return int(found[1]), found[2]
