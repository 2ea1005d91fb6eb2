"""What asynchronous methods share: K devices busy at any time, a freed slot refilled, nothing lost for ever."""

from dataclasses import dataclass
from typing import Any

from cabafl.methods.base import Job, LossReason, Method, Objective, Server, Upload
from cabafl.state import State


@dataclass(frozen=True, slots=True)
class Flying(State):
    """A job in flight."""

    device: int
    version: int


class SlotMethod(Method):
    """Keeps up to K devices training the newest model, drawn uniformly from the idle ones.

    A subclass says what an upload does (`receive`) and may change what is sent (`send`, `objective`). Timeouts, crashes
    and rejected uploads free the slot, which is refilled in the same way; a slot nobody is idle for waits.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.flying: dict[int, Flying] = {}  # by job

    def start(self, server: Server) -> None:
        """All slots get the initial model."""
        self.model = server.initial
        self.prepare(server)
        self.refill(server)

    def prepare(self, server: Server) -> None:
        """State of the method's own, before the first dispatch."""

    def receive(self, server: Server, upload: Upload) -> None:
        """What the method does with an upload, before its slot is refilled."""
        raise NotImplementedError

    def objective(self, server: Server, device: int) -> Objective:
        """How a device trains."""
        return Objective()

    def send(self, server: Server, device: int) -> None:
        """Dispatches the newest model."""
        job = server.dispatch(device, self.model, objective=self.objective(server, device))
        if job is not None:
            self.flying[job] = Flying(device, server.version)

    def refill(self, server: Server, without: int | None = None) -> None:
        """Fills free slots, as many as there are idle devices for; ``without`` is taken last."""
        missing = server.slots - len(self.flying)
        if missing == 1 and len(server.idle):
            self.send(server, server.idle.draw(server.random("select"), without))
        elif missing > 1:
            self.send_all(server, server.idle.draw_many(server.random("select"), missing))

    def send_all(self, server: Server, devices: list[int]) -> None:
        """Dispatches to several devices at once."""
        for device in devices:
            self.send(server, device)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Frees the slot, lets the method work, refills."""
        del self.flying[upload.job.number]
        self.receive(server, upload)
        self.refill(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The slot goes to another device."""
        del self.flying[job.number]
        self.refill(server, without=job.device)

    def on_idle(self, server: Server, device: int) -> None:
        """A slot may have waited for this."""
        self.refill(server)


class RoundMethod(SlotMethod):
    """A `SlotMethod` that merges several uploads at a time: the slots of buffered uploads are refilled together, with
    the model of the next round."""

    def check(self, slots: int) -> None:
        """Buffered uploads keep their slots: a buffer that is larger would never be full."""
        check_at_most("buffer", self.parameters.buffer, slots)

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.buffer: list[Any] = []

    def refill(self, server: Server, without: int | None = None) -> None:
        """Up to K devices in flight, uploads in the buffer included."""
        missing = server.slots - len(self.flying) - len(self.buffer)
        if missing > 0:
            self.send_all(server, server.idle.draw_many(server.random("select"), missing))


def check_at_most(key: str, value: int | None, slots: int) -> None:
    """Whether as many uploads as a round waits for can be under way."""
    if value is not None and value > slots:
        raise ValueError(f"method.{key} = {value}: only {slots} devices train at a time; accepted: 1 to {slots}")


def default_buffer(server: Server, buffer: int | None) -> int:
    """The comparison's buffer size: half of the slots unless given."""
    return buffer if buffer is not None else max(1, server.slots // 2)
