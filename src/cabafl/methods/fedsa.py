"""FedSA (Ma et al., JSAC 2021): semi-asynchronous; round t merges the first M arrivals.

    W(t) = (1 - sum of beta_k) * W(t-1) + sum of beta_k * w_k,   beta_k = n_k / D
    eta_k = eta * (sum of c_j) / (N * c_k)

D is the sum of n over the devices in flight and the arrivals, so that with K = 0.1 N the arrivals weigh about M/K
(``normaliser = "all"``: over all N devices, as in the paper). c_k counts the participations of device k: frequent
devices train with a smaller learning rate. A device whose model is older than tau0 rounds is restarted.

The paper estimates M from smoothness constants that are unknown in practice; here M is a parameter.
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import plain_sum, weighted_mean
from cabafl.methods.base import Objective, Parameters, Server, Upload, Weights
from cabafl.methods.slots import InFlight, RoundMethod, default_buffer, population


class FedSAParameters(Parameters):
    """Parameters of FedSA; the defaults are those of the comparison."""

    buffer: int | None = Field(None, ge=1, description="M, uploads per round; default: half of the slots")
    tau0: int = Field(5, ge=1, description="restart a device whose model is older than this many rounds")
    no_restart: bool = Field(False, description="let such devices finish instead")
    normaliser: Literal["inflight", "all"] = Field(
        "inflight", description="devices that D sums over: inflight (and arrivals) | all (paper)"
    )
    mixing: Literal["simultaneous", "sequential"] = Field(
        "simultaneous", description="mix the arrivals in at once or one after the other: simultaneous | sequential"
    )
    counts: Literal["dispatches", "uploads"] = Field(
        "dispatches", description="what counts as a participation: dispatches | uploads"
    )
    lr_scale_min: float | None = Field(None, gt=0, description="lower bound of eta_k / learning_rate")
    lr_scale_max: float | None = Field(None, gt=0, description="upper bound of eta_k / learning_rate")
    round_timeout: float | None = Field(
        None, gt=0, description="seconds after which a round ends with the uploads received"
    )


class FedSA(RoundMethod):
    """Semi-asynchronous, with a learning rate by participation and restarts."""

    name = "fedsa"
    kind = "semi-asynchronous"
    paper = "Ma et al., IEEE JSAC 2021"
    Parameters = FedSAParameters
    parameters: FedSAParameters
    buffer: list[tuple[int, int, Weights]]  # device, its samples, and its model

    def prepare(self, server: Server) -> None:
        """Starts the first round; nobody has participated yet."""
        self.counts = [0] * len(server.sizes)  # c_k
        self.rounds = 0
        self.size = default_buffer(server, self.parameters.buffer)
        self._time_round(server)

    def objective(self, server: Server, device: int) -> Objective:
        """Learning rate eta_k / eta from the participation counts, within its bounds."""
        p = self.parameters
        scale = sum(self.counts) / (population(server) * max(self.counts[device], 1)) or 1.0
        scale = max(scale, p.lr_scale_min or scale)
        return Objective(lr_scale=min(scale, p.lr_scale_max or scale))

    def refill(self, server: Server, without: int | None = None) -> None:
        """Fills free slots with devices not yet heard in this round; ends a round that no device can complete."""
        free = server.slots - len(self.in_flight) - len(self.buffer)
        if free <= 0:
            return
        devices = server.idle.draw_many(server.random("select"), free, [device for device, _, _ in self.buffer])
        self.send_all(server, devices)
        if self.buffer and not self.in_flight and not devices:
            self._end_round(server)

    def send_all(self, server: Server, devices: list[int]) -> None:
        """Counts all dispatches of a refill before any learning rate is computed."""
        if self.parameters.counts == "dispatches":
            for device in devices:
                self.counts[device] += 1
        super().send_all(server, devices)

    def receive(self, server: Server, upload: Upload) -> None:
        """Buffers the upload; the M-th ends the round."""
        if self.parameters.counts == "uploads":
            self.counts[upload.job.device] += 1
        self.buffer.append((upload.job.device, upload.samples, upload.weights))
        if len(self.buffer) == self.size:
            self._end_round(server)

    def on_timer(self, server: Server, name: str) -> None:
        """Ends the round with the uploads received, unless the timer is of an earlier round."""
        if name == f"round {self.rounds}":
            self._end_round(server)

    def _time_round(self, server: Server) -> None:
        self.rounds += 1
        if self.parameters.round_timeout is not None:
            server.set_timer(self.parameters.round_timeout, f"round {self.rounds}")

    def _end_round(self, server: Server) -> None:
        if self.buffer:
            self._aggregate(server)
        self.buffer = []
        self._time_round(server)
        self.refill(server)
        self._restart_old(server)

    def _aggregate(self, server: Server) -> None:
        p = self.parameters
        arrived = sorted(self.buffer, key=lambda entry: entry[0])
        training = [flight.device for flight in self.in_flight.values()]
        received = sum(samples for _, samples, _ in arrived)
        others = int(server.sizes[training].sum())
        everybody = max(received, int(server.sizes.sum()))  # a device may have fewer samples now than at its upload
        total = float(everybody if p.normaliser == "all" else received + others)
        betas = [samples / total for _, samples, _ in arrived]
        if p.mixing == "sequential":
            for beta, (_, _, model) in zip(betas, arrived, strict=True):
                self.model = weighted_mean([self.model, model], [1.0 - beta, beta])
        else:
            kept = max(0.0, 1.0 - plain_sum(betas))
            self.model = weighted_mean([self.model, *(model for _, _, model in arrived)], [kept, *betas])
        server.publish(self.model, devices=[device for device, _, _ in arrived], weights=betas)

    def _restart_old(self, server: Server) -> None:
        """Restarts devices over the staleness bound from the new model. Not counted as a participation."""
        if self.parameters.no_restart:
            return
        old = [job for job, f in self.in_flight.items() if server.version + 1 - f.version > self.parameters.tau0]
        for job in old:
            device = self.in_flight.pop(job).device
            server.cancel(job)
            server.note("restart", device=device)
            again = server.dispatch(device, self.model, objective=self.objective(server, device))
            if again is not None:
                self.in_flight[again] = InFlight(device, server.version)
