"""What methods with interchangeable slots share: K devices train at any time, and a freed slot is refilled."""

from dataclasses import dataclass
from typing import Any

from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Server, Upload
from cabafl.state import State


@dataclass(frozen=True, slots=True)
class InFlight(State):
    """A device in training and the version of the global model it started from."""

    device: int
    version: int


class SlotMethod(Method):
    """Keeps up to K devices training the newest model, drawn uniformly from the idle ones.

    A subclass defines what an upload does (`receive`) and may change how devices train (`objective`). A slot whose job
    is lost is refilled like any other. A slot for which no device is idle waits.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.in_flight: dict[int, InFlight] = {}  # by job number

    def start(self, server: Server) -> None:
        """Sends the initial model to K devices."""
        self.model = server.initial
        self.prepare(server)
        self.refill(server)

    def prepare(self, server: Server) -> None:
        """Sets up the subclass's own state, before the first dispatch."""

    def receive(self, server: Server, upload: Upload) -> None:
        """Handles an upload, before its slot is refilled."""
        raise NotImplementedError

    def objective(self, server: Server, device: int) -> Objective:
        """How a device trains its next job."""
        return PLAIN

    def send(self, server: Server, device: int) -> None:
        """Dispatches the newest model to a device."""
        job = server.dispatch(device, self.model, objective=self.objective(server, device))
        if job is not None:
            self.in_flight[job] = InFlight(device, server.version)

    def refill(self, server: Server, without: int | None = None) -> None:
        """Fills the free slots from the idle devices, with ``without`` only if no other device is idle."""
        free = server.slots - len(self.in_flight)
        if free == 1 and len(server.idle):
            self.send(server, server.idle.draw(server.random("select"), without))
        elif free > 1:
            self.send_all(server, server.idle.draw_many(server.random("select"), free))

    def send_all(self, server: Server, devices: list[int]) -> None:
        """Dispatches the newest model to several devices, in order."""
        for device in devices:
            self.send(server, device)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Frees the slot, handles the upload, refills."""
        del self.in_flight[upload.job.number]
        self.receive(server, upload)
        self.refill(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Gives the slot to another device."""
        del self.in_flight[job.number]
        self.refill(server, without=job.device)

    def on_idle(self, server: Server, device: int) -> None:
        """Fills a slot that was waiting for an idle device."""
        self.refill(server)


class RoundMethod(SlotMethod):
    """A `SlotMethod` that merges several uploads at once.

    Buffered uploads keep their slots until the round ends. All these slots are then refilled together, with the model
    of the next round.
    """

    def check(self, slots: int) -> None:
        """Rejects a buffer larger than K: it would never be full."""
        check_at_most("buffer", self.parameters.buffer, slots)

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.buffer: list[Any] = []

    def refill(self, server: Server, without: int | None = None) -> None:
        """Fills the slots that neither a device in training nor a buffered upload holds."""
        free = server.slots - len(self.in_flight) - len(self.buffer)
        if free > 0:
            self.send_all(server, server.idle.draw_many(server.random("select"), free))


def check_at_most(key: str, value: int | None, slots: int) -> None:
    """Raises ValueError if a round waits for more uploads than there are slots."""
    if value is not None and value > slots:
        raise ValueError(f"method.{key} = {value}: only {slots} devices train at a time; accepted: 1 to {slots}")


def population(server: Server) -> int:
    """N: the devices that have samples, at least 1. Of the devices that may join a fleet, many may never come."""
    return max(1, int((server.sizes > 0).sum()))


def default_buffer(server: Server, buffer: int | None) -> int:
    """The given buffer size, or half of the slots, at least 1."""
    return buffer if buffer is not None else max(1, server.slots // 2)
