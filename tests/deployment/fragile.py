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


class Timed(FedAsync):
    """Fails at its second timer."""

    name = "timed"

    def start(self, server: Server) -> None:
        """See `Method`."""
        super().start(server)
        for name in ("first", "second", "third"):
            server.set_timer(0.0, name)

    def on_timer(self, server: Server, name: str) -> None:
        """See `Method`."""
        if name == "second":
            raise ZeroDivisionError("out of time")


class Impatient(FedAsync):
    """Fails when its first job times out."""

    name = "impatient"

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """See `Method`."""
        if job.number == 0:
            raise ZeroDivisionError("where is it?")
        super().on_loss(server, job, reason)


class Unfinished(FedAsync):
    """Fails at the end."""

    name = "unfinished"

    def on_end(self, server: Server) -> None:
        """See `Method`."""
        raise ZeroDivisionError("not yet")


class Hopeless(FedAsync):
    """Fails at every timer."""

    name = "hopeless"

    def start(self, server: Server) -> None:
        """See `Method`."""
        super().start(server)
        for _ in range(20):
            server.set_timer(0.0, "tick")

    def on_timer(self, server: Server, name: str) -> None:
        """See `Method`."""
        raise ZeroDivisionError("tock")
