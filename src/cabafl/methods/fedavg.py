"""FedAvg (McMahan et al., AISTATS 2017): rounds of uniformly drawn devices, averaged with weights n_k.

W(t+1) = sum over the round of n_k * w_k / sum over the round of n_k
"""

from collections import Counter
from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import plain_sum, weighted_mean
from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Parameters, Server, Upload, Weights


class FedAvgParameters(Parameters):
    """Parameters of FedAvg. Where public sources differ, both readings are options; the defaults are the usual one."""

    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weight of a device in the mean: samples | uniform"
    )
    normaliser: Literal["participants", "all"] = Field(
        "participants", description="participants | all (devices outside the round count with the old model)"
    )
    round_timeout: float | None = Field(
        None, gt=0, description="seconds after which a round ends with the uploads received; the rest is cancelled"
    )


class FedAvg(Method):
    """Synchronous baseline: every round waits for its slowest device, which is the straggler problem.

    A lost job leaves its round. A round without uploads keeps the model.
    """

    name = "fedavg"
    kind = "synchronous"
    paper = "McMahan et al., AISTATS 2017"
    Parameters = FedAvgParameters
    parameters: FedAvgParameters

    def start(self, server: Server) -> None:
        """Begins the first round."""
        self.model = server.initial
        self.round = 0
        self.members: list[int] = []  # jobs of this round that are still in training
        self.returned: list[tuple[int, int, Weights]] = []  # (device, samples, model) of this round's uploads
        self._begin_round(server)

    def choose(self, server: Server) -> list[int]:
        """Draws the devices of a round. A device that occurs twice trains once and counts twice."""
        return server.idle.draw_many(server.random("round"), server.slots)

    def objective(self, server: Server) -> Objective:
        """How the devices of a round train; called once per device."""
        return PLAIN

    def _begin_round(self, server: Server) -> None:
        self.round += 1
        self.returned = []
        self.times = Counter(self.choose(server))
        jobs = [server.dispatch(device, self.model, objective=self.objective(server)) for device in self.times]
        self.members = [job for job in jobs if job is not None]
        if self.members and self.parameters.round_timeout is not None:
            server.set_timer(self.parameters.round_timeout, f"round {self.round}")

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Keeps the upload; the last one ends the round."""
        self.members.remove(upload.job.number)
        self.returned.append((upload.job.device, upload.samples, upload.weights))
        if not self.members:
            self._end_round(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Continues the round without the lost job."""
        self.members.remove(job.number)
        if not self.members:
            self._end_round(server)

    def on_timer(self, server: Server, name: str) -> None:
        """Cancels the jobs still in training and ends the round, unless the timer is of an earlier round."""
        if name == f"round {self.round}":
            for job in self.members:
                server.cancel(job)
            self._end_round(server)

    def on_idle(self, server: Server, device: int) -> None:
        """Begins a round if the last attempt found no idle device."""
        if not self.members:
            self._begin_round(server)

    def _end_round(self, server: Server) -> None:
        by_samples = self.parameters.weighting == "samples"
        returned = sorted(self.returned, key=lambda entry: entry[0])  # device order: the sum is the same in any order
        models = [model for _, _, model in returned]
        shares = [float(self.times[device] * (n if by_samples else 1)) for device, n, _ in returned]
        if self.parameters.normaliser == "all":
            everybody = float(server.sizes.sum()) if by_samples else float(len(server.sizes))
            models.append(self.model)
            shares.append(max(0.0, everybody - plain_sum(shares)))
        total = plain_sum(shares)
        if total > 0:
            self.model = weighted_mean(models, shares)
            devices = [device for device, _, _ in returned]
            server.publish(self.model, devices=devices, weights=[share / total for share in shares])
        self._begin_round(server)
