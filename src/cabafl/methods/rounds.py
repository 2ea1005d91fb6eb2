"""What synchronous methods share: rounds, each of which waits for all its devices."""

from collections import Counter
from typing import Any

from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Server, Upload, Weights


class Rounds(Method):
    """Sends the newest model to K devices drawn uniformly, waits for all of them, and merges what has come back.

    A subclass defines how uploads become a new model (`merge`) and may change who trains (`choose`) and how
    (`objective`, `send`). Its parameters have ``round_timeout``. A lost job leaves its round. A round without uploads
    changes nothing.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__(parameters)
        self.round = 0
        self.members: list[int] = []  # jobs of this round that are still in training
        self.returned: list[tuple[int, int, Weights]] = []  # (device, samples, model) of this round's uploads
        self.times: Counter[int] = Counter()  # how often a device counts in this round

    def start(self, server: Server) -> None:
        """Begins the first round."""
        self.model = server.initial
        self._begin_round(server)

    def choose(self, server: Server) -> list[int]:
        """Draws the devices of a round. A device that occurs twice trains once and counts twice."""
        return server.idle.draw_many(server.random("round"), server.slots)

    def objective(self, server: Server) -> Objective:
        """How the devices of a round train; called once per device."""
        return PLAIN

    def send(self, server: Server, device: int) -> int | None:
        """Dispatches the newest model to a device of the round; returns the job's number."""
        return server.dispatch(device, self.model, objective=self.objective(server))

    def merge(self, server: Server, returned: list[tuple[int, int, Weights]]) -> None:
        """Publishes a new model; ``returned``, in the order of the devices, may be empty."""
        raise NotImplementedError

    def _begin_round(self, server: Server) -> None:
        self.round += 1
        self.returned = []
        self.times = Counter(self.choose(server))
        jobs = [self.send(server, device) for device in self.times]
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
        self.merge(server, sorted(self.returned, key=lambda entry: entry[0]))  # the sum is the same in any order
        self._begin_round(server)
