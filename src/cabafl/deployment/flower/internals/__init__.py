"""Everything that needs more than Flower's public interface is in this package. It is written for one version of
Flower (`flower.version`), which is checked before anything of Flower is imported.

The classes make single calls; `device.loop` and `flower.grid` decide when to make them. `DeviceConnection` is a
SuperNode's side of the fleet API, `RunConnection` a ServerApp's side of the runtime API, `Control` the control API.
"""

# ruff: noqa: E402 - imports follow the version check

from cabafl.deployment.flower.version import require_flower

require_flower()

from cabafl.deployment.flower.internals.client import RETRY_CAP, Halted, Link, Refused, Retrier, RunLost
from cabafl.deployment.flower.internals.control import Control, Registered
from cabafl.deployment.flower.internals.device import DeviceConnection
from cabafl.deployment.flower.internals.replies import (
    PART_LIMIT,
    PIECE,
    Arrival,
    UploadLost,
    content_of,
    error_of,
    make_reply,
)
from cabafl.deployment.flower.internals.run import RunConnection, Ticket, start_run

__all__ = [
    "PART_LIMIT",
    "PIECE",
    "RETRY_CAP",
    "Arrival",
    "Control",
    "DeviceConnection",
    "Halted",
    "Link",
    "Refused",
    "Registered",
    "Retrier",
    "RunConnection",
    "RunLost",
    "Ticket",
    "UploadLost",
    "content_of",
    "error_of",
    "make_reply",
    "start_run",
]
