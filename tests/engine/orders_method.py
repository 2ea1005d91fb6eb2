"""A method that gives the orders of a test: corrections, jobs that finish early, results that are held."""

from collections.abc import Sequence

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Server, Upload, Weights
from cabafl.methods.slots import InFlight, SlotMethod


class Told(Method):
    """Sends each device one job, corrected if there is a correction, and gives its orders at set times: the name of a
    timer is ``finish 3``, ``fetch 3`` or ``cancel 3``. It notes what it hears."""

    name = "told"
    kind = "asynchronous"
    paper = "for tests"

    def __init__(
        self,
        objective: Objective = PLAIN,
        orders: Sequence[tuple[float, str]] = (),
        correction: Weights | None = None,
        at_once: bool = False,
    ) -> None:
        self.parameters = None
        self.objective, self.correction = objective, correction
        self.orders, self.at_once = list(orders), at_once  # at_once: fetches what is ready
        self.heard: list[str] = []
        self.uploads: list[tuple[int, int, int, float]] = []  # job, steps, epochs, duration

    def start(self, server: Server) -> None:
        """One job for each slot."""
        for device in range(server.slots):
            server.dispatch(device, server.initial, objective=self.objective, correction=self.correction)
        for delay, name in self.orders:
            server.set_timer(delay, name)

    def on_timer(self, server: Server, name: str) -> None:
        """Carries an order out."""
        word, _, job = name.partition(" ")
        getattr(server, word)(int(job))

    def on_ready(self, server: Server, job: Job) -> None:
        """Notes it."""
        self.heard.append(f"ready {job.number}")
        assert job.device not in server.idle
        if self.at_once:
            server.fetch(job.number)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Notes it."""
        self.heard.append(f"upload {upload.job.number}")
        self.uploads.append((upload.job.number, upload.steps, upload.epochs, upload.duration))

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Notes it."""
        self.heard.append(f"{reason} {job.number}")

    def on_idle(self, server: Server, device: int) -> None:
        """Notes it."""
        self.heard.append(f"idle {device}")


class Everything(SlotMethod):
    """Uses all orders, for long runs: corrects every job, tells the one before to finish, holds all results, drops
    every fifth and fetches the others."""

    name = "everything"
    kind = "asynchronous"
    paper = "for tests"

    def objective(self, server: Server, device: int) -> Objective:
        """Everything that can be asked for."""
        return Objective(epochs=3, hold=True, report_square=True)

    def send(self, server: Server, device: int) -> None:
        """Sends the newest model and a correction; the job before this one is to finish."""
        correction = 0.125 * self.model
        job = server.dispatch(device, self.model, objective=self.objective(server, device), correction=correction)
        if job is not None:
            self.in_flight[job] = InFlight(device, server.version)
            server.finish(job - 1)

    def on_ready(self, server: Server, job: Job) -> None:
        """Takes most of them."""
        if job.number % 5 == 4:
            del self.in_flight[job.number]
            server.cancel(job.number)
            self.refill(server)
        else:
            server.fetch(job.number)

    def receive(self, server: Server, upload: Upload) -> None:
        """Every upload is a new model."""
        self.model = weighted_mean([self.model, upload.weights], [1.0, 1.0])
        server.publish(self.model, device=upload.job.device, epochs=upload.epochs, steps=upload.steps)
