"""FedAsync (Xie, Koyejo, Gupta, 2019): every upload is mixed into the global model, old ones with less weight.

Devices minimise F(x) + rho/2 |x - x_received|^2. The base alpha stays constant; staleness is counted from 1 for an
undelayed upload, as in the paper (``staleness_offset`` = 0: as in several libraries).
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Objective, Parameters, Server, Upload
from cabafl.methods.slots import SlotMethod


class FedAsyncParameters(Parameters):
    """Defaults of the comparison."""

    alpha: float = Field(0.6, gt=0, le=1, description="weight of an undelayed upload before the staleness function")
    function: Literal["constant", "polynomial", "hinge"] = Field(
        "polynomial", description="constant | polynomial: (d+1)^-a | hinge: 1 up to b, then 1/(a(d-b)+1)"
    )
    a: float = Field(0.5, gt=0, description="of the staleness function (10 is usual for hinge)")
    b: float = Field(4.0, ge=0, description="of the hinge")
    rho: float = Field(0.01, ge=0, description="weight of the proximal term of local training")
    staleness_offset: Literal[0, 1] = Field(1, description="staleness of an undelayed upload")


class FedAsync(SlotMethod):
    """Fully asynchronous; see the module's description."""

    name = "fedasync"
    kind = "asynchronous"
    paper = "Xie et al., 2019 (arXiv 1903.03934)"
    Parameters = FedAsyncParameters
    parameters: FedAsyncParameters

    def objective(self, server: Server, device: int) -> Objective:
        """Stay near the received model."""
        return Objective(prox=self.parameters.rho)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """The device that has just uploaded is not the next one while another is idle."""
        del self.flying[upload.job.number]
        self.receive(server, upload)
        self.refill(server, without=upload.job.device)

    def receive(self, server: Server, upload: Upload) -> None:
        """One mixing step."""
        staleness = server.version - upload.job.version + self.parameters.staleness_offset
        weight = self.parameters.alpha * self.factor(staleness)
        self.model = weighted_mean([self.model, upload.weights], [1.0 - weight, weight])
        server.publish(self.model, device=upload.job.device, staleness=staleness, weights=[1.0 - weight, weight])

    def factor(self, staleness: int) -> float:
        """The staleness function s(d)."""
        p = self.parameters
        if p.function == "polynomial":
            return float((staleness + 1) ** -p.a)
        if p.function == "hinge" and staleness > p.b:
            return 1.0 / (p.a * (staleness - p.b) + 1.0)
        return 1.0
