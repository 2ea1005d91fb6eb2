"""GitFL (Hu et al., RTSS 2023): K branch models; a lagging branch pulls in more of the version-weighted master.

Devices are drawn by a reward: old branches to fast devices, and rarely used devices first. The constants of the pull
(10 and 2) are not certain in public sources.
"""

import numpy as np
from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Floats, Job, LossReason, Method, Parameters, Server, Upload, Weights


class GitFLParameters(Parameters):
    """The constants of the pull."""

    pull_base: float = Field(
        10.0, gt=0, description="how much of itself an average branch keeps, against 1 of the master"
    )
    pull_floor: float = Field(2.0, gt=0, description="the least it keeps")


class GitFL(Method):
    """Asynchronous; see the module's description."""

    name = "gitfl"
    kind = "asynchronous"
    paper = "Hu et al., RTSS 2023 (arXiv 2211.12049)"
    Parameters = GitFLParameters
    parameters: GitFLParameters

    def start(self, server: Server) -> None:
        """Every branch is the initial model of version 0. ``branches`` were pushed, ``pulled`` travel."""
        devices = len(server.sizes)
        self.branches: list[Weights] = [server.initial] * server.slots
        self.pulled: list[Weights] = [server.initial] * server.slots
        self.versions = [0] * server.slots
        self.selected = np.zeros(devices, dtype=np.int64)
        self.uploads = np.zeros(devices, dtype=np.int64)
        self.seconds = np.zeros(devices)  # mean time of a job, 0 while unknown
        self.waiting = list(range(server.slots))
        self._dispatch_waiting(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Push, merge into the master, pull, and send the branch on."""
        branch, device = upload.job.slot, upload.job.device
        self.uploads[device] += 1
        self.seconds[device] += (upload.duration - self.seconds[device]) / self.uploads[device]
        self.versions[branch] += 1
        self.branches[branch] = upload.weights
        weights = [float(v) for v in self.versions]
        master = weighted_mean(self.branches, weights)
        server.publish(master, slot=branch, weights=[w / sum(weights) for w in weights])
        keep = max(self.parameters.pull_base + self.versions[branch] - self._mean_version(), self.parameters.pull_floor)
        self.pulled[branch] = weighted_mean([master, upload.weights], [1.0, keep])
        self.waiting.append(branch)
        self._dispatch_waiting(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The branch goes to another device as it was sent."""
        self.waiting.append(job.slot)
        self._dispatch_waiting(server)

    def on_idle(self, server: Server, device: int) -> None:
        """A branch may have waited for this."""
        self._dispatch_waiting(server)

    def _mean_version(self) -> float:
        return sum(self.versions) / len(self.versions)

    def _dispatch_waiting(self, server: Server) -> None:
        while self.waiting and len(server.idle):
            branch = self.waiting.pop(0)
            idle = np.sort(server.idle.array())
            rewards = self.rewards(branch)[idle]
            drawn = _draw(rewards, server.random("select").uniform())
            device = int(idle[drawn])
            self.selected[device] += 1
            server.note("select", slot=branch, device=device, reward=float(rewards[drawn]))
            server.dispatch(device, self.pulled[branch], slot=branch)

    def rewards(self, branch: int) -> Floats:
        """One number per device, 0 or more: version reward plus curiosity."""
        curiosity = 1.0 / np.sqrt(np.maximum(self.selected, 1))
        known = self.uploads > 0
        if not known.any() or max(self.versions) == 0:
            return curiosity
        mean = float(self.seconds[known].mean())
        times = np.where(known, self.seconds, mean)
        lead = (self.versions[branch] - self._mean_version()) * (times - mean)
        rewards: Floats = np.maximum(0.0, lead / (max(self.versions) * times.max()) + curiosity)
        return rewards


def _draw(rewards: Floats, uniform: float) -> int:
    """An index with probability proportional to its reward; uniformly when all are 0."""
    if not rewards.sum() > 0:
        rewards = np.ones(len(rewards))
    bounds = rewards.cumsum()
    return min(int(np.searchsorted(bounds, uniform * bounds[-1], side="right")), len(rewards) - 1)
