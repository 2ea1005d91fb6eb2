"""FedAvg (McMahan et al., AISTATS 2017): rounds of uniformly chosen devices and a mean weighted by samples."""

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

    def __init__(self, parameters: FedAvgParameters) -> None:
        self.parameters = parameters
        self.round = 0
        self.members: list[int] = []  # jobs of the running round that are not back
        self.returned: list[tuple[int, int, Weights]] = []  # device, samples, model

    def start(self, server: Server) -> None:
        """The initial model is the first global model."""
        self.model = server.initial
        self._begin_round(server)

    def objective(self, server: Server) -> Objective:
        """Plain local training; methods that differ only here override it."""
        return Objective()

    def _begin_round(self, server: Server) -> None:
        self.round += 1
        self.returned = []
        devices = server.idle.draw_many(server.random("round"), server.slots)
        self.members = [server.dispatch(device, self.model, objective=self.objective(server)) for device in devices]
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
        returned = sorted(self.returned, key=lambda entry: entry[0])  # device order: the same sum whoever came first
        models = [model for _, _, model in returned]
        samples = [float(n) if self.parameters.weighting == "samples" else 1.0 for _, n, _ in returned]
        if self.parameters.normaliser == "all":
            everybody = (
                float(server.sizes.sum()) if self.parameters.weighting == "samples" else float(len(server.sizes))
            )
            models.append(self.model)
            samples.append(everybody - sum(samples))
        if sum(samples) > 0:
            self.model = weighted_mean(models, samples)
            total = sum(samples)
            devices = [device for device, _, _ in returned]
            server.publish(self.model, devices=devices, weights=[n / total for n in samples])
        self._begin_round(server)
