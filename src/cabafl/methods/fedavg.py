"""FedAvg (McMahan et al., AISTATS 2017): rounds of uniformly drawn devices, averaged with weights n_k.

W(t+1) = sum over the round of n_k * w_k / sum over the round of n_k
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import plain_sum, weighted_mean
from cabafl.methods.base import Parameters, Server, Weights
from cabafl.methods.rounds import Rounds
from cabafl.methods.slots import population


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


class FedAvg(Rounds):
    """Synchronous baseline: every round waits for its slowest device, which is the straggler problem."""

    name = "fedavg"
    kind = "synchronous"
    paper = "McMahan et al., AISTATS 2017"
    Parameters = FedAvgParameters
    parameters: FedAvgParameters

    def merge(self, server: Server, returned: list[tuple[int, int, Weights]]) -> None:
        """The weighted mean of the uploads."""
        by_samples = self.parameters.weighting == "samples"
        models = [model for _, _, model in returned]
        shares = [float(self.times[device] * (n if by_samples else 1)) for device, n, _ in returned]
        if self.parameters.normaliser == "all":
            everybody = float(server.sizes.sum()) if by_samples else float(population(server))
            models.append(self.model)
            shares.append(max(0.0, everybody - plain_sum(shares)))
        total = plain_sum(shares)
        if total > 0:
            self.model = weighted_mean(models, shares)
            devices = [device for device, _, _ in returned]
            server.publish(self.model, devices=devices, weights=[share / total for share in shares])
