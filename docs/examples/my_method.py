"""A complete method: every upload is mixed into the global model, stale uploads with less weight."""

from pydantic import Field

from cabafl import Job, Method, Parameters, Server, Upload
from cabafl.methods.averaging import weighted_mean


class MixingParameters(Parameters):
    """Keys of the ``[method]`` section, with type, range, default and meaning."""

    share: float = Field(0.5, gt=0, le=1, description="weight of a fresh upload in the new global model")


class Mixing(Method):
    """Keeps ``server.slots`` devices training; each upload frees a slot, which is filled at once."""

    name = "mixing"
    kind = "asynchronous"
    paper = "an example"
    Parameters = MixingParameters

    def start(self, server: Server) -> None:
        """Sends the initial model to the first devices."""
        self.model = server.initial
        self.free = server.slots  # slots without a device
        self._fill(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Publishes a new global model after every upload."""
        staleness = server.version - upload.job.version
        share = self.parameters.share / (1 + staleness)
        self.model = weighted_mean([self.model, upload.weights], [1 - share, share])
        server.publish(self.model, device=upload.job.device, share=share)
        self.free += 1
        self._fill(server)

    def on_loss(self, server: Server, job: Job, reason: str) -> None:
        """Frees the slot of a lost job; the global model stays."""
        self.free += 1
        self._fill(server)

    def on_idle(self, server: Server, device: int) -> None:
        """Fills a slot that was waiting for an idle device."""
        self._fill(server)

    def _fill(self, server: Server) -> None:
        while self.free and len(server.idle):
            server.dispatch(server.idle.draw(server.random("next device")), self.model)
            self.free -= 1
