"""FedAsync (Xie, Koyejo, Gupta, 2019): every upload is mixed into the global model, stale ones with less weight.

    x <- (1 - alpha_t) * x + alpha_t * x_new,   alpha_t = alpha * s(staleness)

Devices minimise F(x) + rho/2 * |x - x_received|^2. As in the paper, an undelayed upload has staleness 1;
``staleness_offset = 0`` counts from 0, as several libraries do. The base alpha stays constant over the run.
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Objective, Parameters, Server, Upload
from cabafl.methods.slots import SlotMethod


class FedAsyncParameters(Parameters):
    """Parameters of FedAsync; the defaults are those of the comparison."""

    alpha: float = Field(0.6, gt=0, le=1, description="mixing weight of an upload before the staleness function")
    function: Literal["constant", "polynomial", "hinge"] = Field(
        "polynomial",
        description="staleness function of d: constant: 1 | polynomial: (d+1)^-a | hinge: 1 up to b, then 1/(a(d-b)+1)",
    )
    a: float = Field(0.5, gt=0, description="a of the staleness function; 10 is usual for hinge")
    b: float = Field(4.0, ge=0, description="b of the hinge function")
    rho: float = Field(0.01, ge=0, description="weight of the proximal term in the local loss")
    staleness_offset: Literal[0, 1] = Field(1, description="staleness of an undelayed upload: 1 (paper) | 0")


class FedAsync(SlotMethod):
    """Fully asynchronous: one upload, one new global model."""

    name = "fedasync"
    kind = "asynchronous"
    paper = "Xie et al., 2019 (arXiv 1903.03934)"
    Parameters = FedAsyncParameters
    parameters: FedAsyncParameters

    def objective(self, server: Server, device: int) -> Objective:
        """Adds the proximal term of weight rho."""
        return Objective(prox=self.parameters.rho)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Mixes the upload in. The next device is another one, unless no other is idle."""
        del self.in_flight[upload.job.number]
        self.receive(server, upload)
        self.refill(server, without=upload.job.device)

    def receive(self, server: Server, upload: Upload) -> None:
        """One mixing step."""
        staleness = server.version - upload.job.version + self.parameters.staleness_offset
        alpha_t = self.parameters.alpha * self.factor(staleness)
        self.model = weighted_mean([self.model, upload.weights], [1.0 - alpha_t, alpha_t])
        server.publish(self.model, device=upload.job.device, staleness=staleness, weights=[1.0 - alpha_t, alpha_t])

    def factor(self, staleness: int) -> float:
        """The staleness function s(d), in (0, 1]."""
        p = self.parameters
        if p.function == "polynomial":
            return float((staleness + 1) ** -p.a)
        if p.function == "hinge" and staleness > p.b:
            return 1.0 / (p.a * (staleness - p.b) + 1.0)
        return 1.0
