"""FedAvg (McMahan et al., AISTATS 2017): rounds of uniformly chosen devices and a mean weighted by samples."""

from collections import Counter
from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Job, LossReason, Method, Objective, Parameters, Server, Upload, Weights


class FedAvgParameters(Parameters):
    """Options named where sources differ; the defaults are the usual reading."""

    weighting: Literal["samples", "uniform"] = Field("samples", description="samples | uniform")
    normaliser: Literal["participants", "all"] = Field(
        "participants", description="participants | all (devices outside the round count with the old model)"
    )
    round_timeout: float | None = Field(None, gt=0, description="end a round after this many seconds with who is back")


class FedAvg(Method):
    """Synchronous baseline: every round waits for its slowest device, which is the straggler problem.

    A device that is lost leaves its round; an empty round keeps the model and starts the next one.
    """

    name = "fedavg"
    kind = "synchronous"
    paper = "McMahan et al., AISTATS 2017"
    Parameters = FedAvgParameters
    parameters: FedAvgParameters

    def start(self, server: Server) -> None:
        """The initial model is the first global model."""
        self.model = server.initial
        self.round = 0
        self.members: list[int] = []  # jobs of the running round that are not back
        self.returned: list[tuple[int, int, Weights]] = []  # device, samples, model
        self._begin_round(server)

    def choose(self, server: Server) -> list[int]:
        """The devices of a round; one that appears twice counts twice."""
        return server.idle.draw_many(server.random("round"), server.slots)

    def objective(self, server: Server) -> Objective:
        """Plain local training."""
        return Objective()

    def _begin_round(self, server: Server) -> None:
        self.round += 1
        self.returned = []
        self.times = Counter(self.choose(server))
        jobs = [server.dispatch(device, self.model, objective=self.objective(server)) for device in self.times]
        self.members = [job for job in jobs if job is not None]
        if self.members and self.parameters.round_timeout is not None:
            server.set_timer(self.parameters.round_timeout, f"round {self.round}")

    def on_upload(self, server: Server, upload: Upload) -> None:
        """The round ends with its last member."""
        self.members.remove(upload.job.number)
        self.returned.append((upload.job.device, upload.samples, upload.weights))
        if not self.members:
            self._end_round(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """A lost member does not hold the others up."""
        self.members.remove(job.number)
        if not self.members:
            self._end_round(server)

    def on_timer(self, server: Server, name: str) -> None:
        """Whoever is not back by now is left out; the timer of an earlier round means nothing."""
        if name == f"round {self.round}":
            for job in self.members:
                server.cancel(job)
            self._end_round(server)

    def on_idle(self, server: Server, device: int) -> None:
        """A round that found nobody idle starts now."""
        if not self.members:
            self._begin_round(server)

    def _end_round(self, server: Server) -> None:
        by_samples = self.parameters.weighting == "samples"
        returned = sorted(self.returned, key=lambda entry: entry[0])  # device order: the same sum whoever came first
        models = [model for _, _, model in returned]
        shares = [float(self.times[device] * (n if by_samples else 1)) for device, n, _ in returned]
        if self.parameters.normaliser == "all":
            everybody = float(server.sizes.sum()) if by_samples else float(len(server.sizes))
            models.append(self.model)
            shares.append(max(0.0, everybody - sum(shares)))
        total = sum(shares)
        if total > 0:
            self.model = weighted_mean(models, shares)
            devices = [device for device, _, _ in returned]
            server.publish(self.model, devices=devices, weights=[share / total for share in shares])
        self._begin_round(server)
