"""Methods that cannot stand some devices."""

from typing import Any

from cabafl.methods.base import Job, LossReason, Server, Upload
from cabafl.methods.fedasync import FedAsync

SOUR = 2  # a device


class Fragile(FedAsync):
    """Fails at every upload of one device."""

    name = "fragile"

    def on_upload(self, server: Server, upload: Upload) -> None:
        """See `Method`."""
        if upload.job.device == SOUR:
            raise ZeroDivisionError("sour\nmilk")
        super().on_upload(server, upload)


class Broken(Fragile):
    """Fails also when that device is gone."""

    name = "broken"

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """See `Method`."""
        if job.device == SOUR:
            raise ZeroDivisionError("still sour")
        super().on_loss(server, job, reason)


class Sick(FedAsync):
    """Fails without any device."""

    name = "sick"

    def start(self, server: Any) -> None:
        """See `Method`."""
        raise ZeroDivisionError("ill")
