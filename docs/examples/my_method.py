"""A complete method of your own: every upload is mixed into the global model, a stale one with less weight."""

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Job, LossReason, Method, Parameters, Server, Upload


class MixingParameters(Parameters):
    """Keys of the ``[method]`` section, with type, range, default and meaning."""

    share: float = Field(0.5, gt=0, le=1, description="weight of a fresh upload in the new global model")


class Mixing(Method):
    """``server.slots`` devices train at any time; whoever comes back is replaced at once."""

    name = "mixing"
    kind = "asynchronous"
    paper = "an example"
    Parameters = MixingParameters

    def __init__(self, parameters: MixingParameters) -> None:
        self.parameters = parameters
        self.open = 0  # slots without a device

    def start(self, server: Server) -> None:
        """Time 0: the initial model goes to the first devices."""
        self.model = server.initial
        self.open = server.slots
        self._fill(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """One upload, one new global model."""
        staleness = server.version - upload.job.version
        share = self.parameters.share / (1 + staleness)
        self.model = weighted_mean([self.model, upload.weights], [1 - share, share])
        server.publish(self.model, device=upload.job.device, share=share)
        self.open += 1
        self._fill(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The slot is free again; the lost training is simply missing."""
        self.open += 1
        self._fill(server)

    def on_idle(self, server: Server, device: int) -> None:
        """A device came back: a slot that found none may have waited for it."""
        self._fill(server)

    def _fill(self, server: Server) -> None:
        while self.open and len(server.idle):
            server.dispatch(server.idle.draw(server.random("next device")), self.model)
            self.open -= 1
