"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term that keeps local models near the global one.

Devices minimise F(w) + mu/2 * |w - W|^2, over the trainable parameters; the term's gradient passes through the momentum
like any other. Optionally some devices do partial work (fewer epochs), the paper's answer to slow devices; the
comparison does not use it.
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.base import Objective, Server
from cabafl.methods.fedavg import FedAvg, FedAvgParameters


class FedProxParameters(FedAvgParameters):
    """Parameters of FedProx: those of FedAvg and its own."""

    mu: float = Field(0.01, ge=0, description="weight of the proximal term; 0 is FedAvg")
    partial_fraction: float = Field(
        0.0, ge=0, le=1, description="probability that a device trains only 1 to E-1 epochs (drawn uniformly)"
    )
    sampling: Literal["uniform", "proportional"] = Field(
        "uniform", description="uniform | proportional (to samples, with replacement; use weighting = uniform)"
    )


class FedProx(FedAvg):
    """Synchronous, with a proximal local objective."""

    name = "fedprox"
    kind = "synchronous"
    paper = "Li et al., MLSys 2020"
    Parameters = FedProxParameters
    parameters: FedProxParameters

    def objective(self, server: Server) -> Objective:
        """The proximal term, and for a share of the devices fewer epochs."""
        p = self.parameters
        epochs = None
        if p.partial_fraction > 0 and server.epochs > 1:
            random = server.random("partial work")
            if random.uniform() < p.partial_fraction:
                epochs = 1 + random.below(server.epochs - 1)
        return Objective(epochs=epochs, prox=p.mu)

    def choose(self, server: Server) -> list[int]:
        """Draws the devices of a round, uniformly or in proportion to their samples."""
        if self.parameters.sampling == "uniform":
            return super().choose(server)
        idle = sorted(server.idle)
        if not idle:
            return []
        bounds = server.sizes[idle].cumsum()
        random = server.random("round")
        return [idle[int(bounds.searchsorted(random.below(int(bounds[-1])), "right"))] for _ in range(server.slots)]
