"""FedSA (Ma et al., JSAC 2021): semi-asynchronous, each round merges the first M arrivals.

A device trains with a rate inverse to how often it takes part, and is restarted when its model gets too old. The
estimator of M of the paper needs unknown smoothness constants; M is a plain number here. The default normaliser is over
the devices in flight, so that with K = 0.1 N the arrivals weigh about M/K (``all``: over all N, the original).
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Objective, Parameters, Server, Upload
from cabafl.methods.slots import Flying, RoundMethod, default_buffer


class FedSAParameters(Parameters):
    """Defaults of the comparison."""

    buffer: int | None = Field(None, ge=1, description="M, uploads per round; default: half of the slots")
    tau0: int = Field(5, ge=1, description="restart a device whose model is older than this many rounds")
    no_restart: bool = Field(False, description="let old devices finish instead")
    normaliser: Literal["inflight", "all"] = Field("inflight", description="inflight | all (original)")
    mixing: Literal["simultaneous", "sequential"] = Field("simultaneous", description="simultaneous | sequential")
    counts: Literal["dispatches", "uploads"] = Field("dispatches", description="what participation means")
    lr_scale_min: float | None = Field(None, gt=0, description="lower bound of a device's rate / learning_rate")
    lr_scale_max: float | None = Field(None, gt=0, description="upper bound of it")
    round_timeout: float | None = Field(None, gt=0, description="merge what is there after this many seconds")


class FedSA(RoundMethod):
    """Semi-asynchronous; see the module's description."""

    name = "fedsa"
    kind = "semi-asynchronous"
    paper = "Ma et al., IEEE JSAC 2021"
    Parameters = FedSAParameters
    parameters: FedSAParameters

    def prepare(self, server: Server) -> None:
        """Participation counts; the buffer holds (device, model)."""
        self.counts = [0] * len(server.sizes)
        self.rounds = 0
        self.size = default_buffer(server, self.parameters.buffer)
        self._time_round(server)

    def objective(self, server: Server, device: int) -> Objective:
        """The rate falls with the share of a device in all participations."""
        p = self.parameters
        scale = sum(self.counts) / (len(self.counts) * max(self.counts[device], 1)) or 1.0
        scale = max(scale, p.lr_scale_min or scale)
        return Objective(lr_scale=min(scale, p.lr_scale_max or scale))

    def refill(self, server: Server, without: int | None = None) -> None:
        """No device uploads twice in a round; a round nobody is left to fill ends with what is there."""
        missing = server.slots - len(self.flying) - len(self.buffer)
        if missing <= 0:
            return
        devices = server.idle.draw_many(server.random("select"), missing, [device for device, _ in self.buffer])
        self.send_all(server, devices)
        if self.buffer and not self.flying and not devices:
            self._end_round(server)

    def send_all(self, server: Server, devices: list[int]) -> None:
        """All dispatches of a refill are counted before any rate is computed."""
        if self.parameters.counts == "dispatches":
            for device in devices:
                self.counts[device] += 1
        super().send_all(server, devices)

    def receive(self, server: Server, upload: Upload) -> None:
        """The M-th arrival ends the round."""
        if self.parameters.counts == "uploads":
            self.counts[upload.job.device] += 1
        self.buffer.append((upload.job.device, upload.weights))
        if len(self.buffer) == self.size:
            self._end_round(server)

    def on_timer(self, server: Server, name: str) -> None:
        """A round that takes too long ends with what is there."""
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
        flying = [flight.device for flight in self.flying.values()]
        members = [*(device for device, _ in arrived), *flying]
        total = float(server.sizes.sum() if p.normaliser == "all" else server.sizes[members].sum())
        shares = [float(server.sizes[device]) / total for device, _ in arrived]
        if p.mixing == "sequential":
            for share, (_, model) in zip(shares, arrived, strict=True):
                self.model = weighted_mean([self.model, model], [1.0 - share, share])
        else:
            kept = max(0.0, 1.0 - sum(shares))
            self.model = weighted_mean([self.model, *(model for _, model in arrived)], [kept, *shares])
        server.publish(self.model, devices=[device for device, _ in arrived], weights=shares)

    def _restart_old(self, server: Server) -> None:
        """Devices over the bound lose their work and start again from the new model; not counted as participation."""
        if self.parameters.no_restart:
            return
        old = [job for job, f in self.flying.items() if server.version + 1 - f.version > self.parameters.tau0]
        for job in old:
            device = self.flying.pop(job).device
            server.cancel(job)
            server.note("restart", device=device)
            again = server.dispatch(device, self.model, objective=self.objective(server, device))
            if again is not None:
                self.flying[again] = Flying(device, server.version)
