"""Writes the files of a fleet folder from templates, for the user who owns the folder."""

import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from cabafl.deployment.folder.layout import ACCESS, DEVICE_USER, MIB, SERVER, FleetFolder, FleetSettings
from cabafl.files import write_atomic

ACCESS_RULES = """\
# Who may read and write which topic. The user is the common name of the client's certificate.
# Mosquitto warns about a pattern without %u: the topics below fleet/all are for every device.
user {server}
topic readwrite fleet/#

pattern read fleet/%u/down
pattern read fleet/all/#
pattern write fleet/%u/up
pattern write fleet/%u/here
"""


def template_values(settings: FleetSettings) -> dict[str, str]:
    """The values of the placeholders in the templates."""
    return {
        **{key: str(value) for key, value in settings.model_dump().items()},
        "address": settings.address,
        "hosts": ", ".join((*settings.name, *settings.ip)),
        "packet_bytes": str(settings.packet_bytes),
        "queue_bytes": str(settings.queue_limit * MIB),
        "capability": "CAP_NET_BIND_SERVICE" if settings.port < 1024 else "",
    }


def template(name: str) -> str:
    """The text of a template of the package."""
    return (files("cabafl.deployment") / "templates" / name).read_text(encoding="utf-8")


def render(path: Path, values: Mapping[str, str]) -> None:
    """Writes the template of the same name with its placeholders filled in; keeps the mode of an existing file."""
    path.write_text(re.sub(r"@(\w+)@", lambda match: values[match[1]], template(path.name)), encoding="utf-8")


def access_list(fleet: FleetFolder) -> None:
    """Writes the broker's access list. Removed devices are denied everything, connected or not."""
    text = ACCESS_RULES.format(server=SERVER)
    for number in sorted(fleet.revoked_ids()):
        text += f"\nuser {DEVICE_USER.format(number)}\ntopic deny #\n"
    replace(fleet, ACCESS, text.encode())


def replace(fleet: FleetFolder, name: str, content: bytes) -> None:
    """Replaces a file that the running broker reads: all of it or nothing, readable by the folder's owner only."""
    path = fleet.path / name
    write_atomic(path, content)
    path.chmod(0o600)
    hand_over(path, fleet.path)


def hand_over(path: Path, owner: Path) -> None:
    """Gives ``path`` and what is below it to the owner of ``owner``, if this is root: the units run as another user."""
    if os.geteuid() != 0:
        return
    whose = owner.stat()
    for each in (path, *path.rglob("*")):
        os.chown(each, whose.st_uid, whose.st_gid)
