"""PORT (Su, Li, IWQoS 2022): a buffer; weights by samples, freshness and agreement; devices that lag upload at once.

When the buffer holds M uploads, with S the staleness bound:

    every running job staler than S stops after its epoch (`Server.finish`); the server waits for these uploads too
    cos_k = cos(W - W_sent, Delta_k), 1 if W = W_sent
    x_k = n_k / sum of n * (b (cos_k + 1) / 2 + a S / (S + staleness_k));   p = x / sum of x
    W <- W + sum of p_k * Delta_k

A lost job is not waited for. If all x_k are 0, samples alone decide. The comment in the authors' framework means the
movement since the device's own start, as above; its code looks at the last two steps instead, and takes cos_k = 1 up to
a staleness of 1 (``movement = "recent"``).
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import plain_sum
from cabafl.methods.base import Floats, Job, LossReason, Parameters, Server, Upload, Weights
from cabafl.methods.slots import SlotMethod, default_buffer
from cabafl.methods.vectors import agreement, stepped, update, weighted_sum
from cabafl.state import State


class PORTParameters(Parameters):
    """Parameters of PORT; the defaults are those of the authors' framework."""

    buffer: int | None = Field(None, ge=1, description="M, uploads per server step; default: half of the slots")
    bound: int = Field(10, ge=1, description="S, staleness beyond which a device must upload what it has")
    staleness_weight: float = Field(3.0, ge=0, description="a, weight of freshness")
    similarity_weight: float = Field(1.0, ge=0, description="b, weight of agreement with the server's movement")
    movement: Literal["start", "recent"] = Field(
        "start", description="the server's movement: start: since the device's start | recent: in the last two steps"
    )


@dataclass(frozen=True, slots=True)
class Waiting(State):
    """An upload in the buffer."""

    device: int
    samples: int
    version: int  # of the global model that its device started from
    sent: Weights
    trained: Weights


class PORT(SlotMethod):
    """Semi-asynchronous: nobody is staler than the bound for long."""

    name = "port"
    kind = "semi-asynchronous"
    paper = "Su, Li, IWQoS 2022"
    Parameters = PORTParameters
    parameters: PORTParameters

    def prepare(self, server: Server) -> None:
        """Starts with an empty buffer."""
        self.size = default_buffer(server, self.parameters.buffer)
        self.buffer: list[Waiting] = []
        self.past = [self.model, self.model]  # before the last two steps

    def receive(self, server: Server, upload: Upload) -> None:
        """Keeps the upload, and makes a step if nobody is waited for."""
        job = upload.job
        self.buffer.append(Waiting(job.device, upload.samples, job.version, job.weights, upload.weights))
        self._advance(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The step does not wait for a lost job."""
        del self.in_flight[job.number]
        self._advance(server)
        self.refill(server, without=job.device)

    def _advance(self, server: Server) -> None:
        """A step, once the buffer is full and no running job is staler than the bound."""
        if len(self.buffer) < self.size:
            return
        oldest = server.version - self.parameters.bound
        late = [job for job, flight in self.in_flight.items() if flight.version < oldest]
        for job in late:
            server.finish(job)
        if not late:
            self._step(server)

    def _step(self, server: Server) -> None:
        buffer, self.buffer = self.buffer, []
        updates = [update(entry.sent, entry.trained, server.trainable) for entry in buffer]
        weights = self.weights(server, buffer, updates)
        step = weighted_sum(updates, weights)
        self.past = [self.past[1], self.model]
        self.model = stepped(self.model, step, [entry.trained for entry in buffer], weights)
        server.publish(self.model, devices=[entry.device for entry in buffer], weights=weights)

    def weights(self, server: Server, buffer: list[Waiting], updates: list[Floats]) -> list[float]:
        """p_k."""
        p, shares = self.parameters, []
        for entry, delta in zip(buffer, updates, strict=True):
            staleness = server.version - entry.version
            freshness = p.bound / (p.bound + staleness)
            likeness = (self._agreement(entry, delta, staleness) + 1) / 2
            shares.append(entry.samples * (p.similarity_weight * likeness + p.staleness_weight * freshness))
        if not plain_sum(shares) > 0:
            shares = [float(entry.samples) for entry in buffer]
        return [share / plain_sum(shares) for share in shares]

    def _agreement(self, entry: Waiting, delta: Floats, staleness: int) -> float:
        """cos_k."""
        if self.parameters.movement == "start":
            return agreement(self.model, entry.sent, delta)
        return agreement(self.model, self.past[0], delta) if staleness > 1 else 1.0
