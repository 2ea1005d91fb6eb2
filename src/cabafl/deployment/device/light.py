"""A device for load tests: it has no samples and no model, and answers like one that trains."""

import time
from collections.abc import Callable

import numpy as np

from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import FeatureQuery, FeatureReply, TrainingJob, TrainingReply
from cabafl.rng import rng, seed64

CANCEL_CHECK_INTERVAL = 0.05  # seconds
LARGEST_CHANGE = 1e-3  # of a weight
SAMPLES = 100


class LightParticipant:
    """Has the interface of a `Participant`. A process that plays many devices waits for `delay` itself and then sends
    `reply_for`, instead of calling `train`.

    A job takes 0.5 to 1.5 times ``seconds``. What it answers follows from its number and the job's.

    Args:
        number: The device's number.
        seconds: Mean time of a job.
        width: Length of a feature vector of the experiment's model.
    """

    def __init__(self, number: int, seconds: float, width: int) -> None:
        self.number, self.seconds, self.width = number, seconds, width
        self.greeting: Greeting | None = None

    def join(self, greeting: Greeting) -> int:
        """The number of samples it claims."""
        self.greeting = greeting
        return SAMPLES

    def leave(self) -> None:
        """Forgets the experiment."""
        self.greeting = None

    def ready(self) -> str | None:
        """Always None: ready."""
        return None

    def delay(self, job: TrainingJob) -> float:
        """Seconds after which it answers a job."""
        return self.seconds * (0.5 + self._drawn("light delay", job))

    def reply_for(self, job: TrainingJob) -> TrainingReply:
        """The weights, all changed by the same small number."""
        change = np.float32((2 * self._drawn("light change", job) - 1) * LARGEST_CHANGE)
        loss = 0.0 if job.objective.report_loss else None
        square = 0.0 if job.objective.report_square else None
        return TrainingReply(job.weights + change, self.delay(job), 0.0, loss, square)

    def train(
        self, job: TrainingJob, cancelled: Callable[[], bool], finishing: Callable[[], bool] = lambda: False
    ) -> TrainingReply | None:
        """`reply_for` after `delay` seconds, or earlier if it is to finish; None if cancelled before."""
        end = time.monotonic() + self.delay(job)
        while (left := end - time.monotonic()) > 0 and not finishing():
            if cancelled():
                return None
            time.sleep(min(left, CANCEL_CHECK_INTERVAL))
        return self.reply_for(job)

    def features(self, query: FeatureQuery) -> FeatureReply:
        """A random vector of norm 1."""
        assert self.greeting is not None
        width = self.greeting.task.classes if query.kind == "labels" else self.width
        vector = rng(self.number, "light features").normal(size=width)
        return FeatureReply((vector / np.linalg.norm(vector)).astype(np.float32))

    def _drawn(self, purpose: str, job: TrainingJob) -> float:
        """A number in [0, 1) that follows from device and job."""
        return float(seed64(self.number, purpose, job.number) * 2.0**-63)
