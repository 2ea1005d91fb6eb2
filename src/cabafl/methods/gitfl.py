"""GitFL (Hu et al., RTSS 2023): K branch models; a branch that lags behind pulls in more of the master.

    push:   branch i <- upload, V_i <- V_i + 1
    merge:  master = sum of V_i * branch_i / sum of V_i
    pull:   branch i is sent on as (master + a * branch_i) / (1 + a),   a = max(10 + V_i - mean V, 2)

Devices are drawn with probability proportional to a reward: branches ahead of the others go to slow devices, lagging
ones to fast devices, and rarely used devices come first. Public sources leave the constants 10 and 2 uncertain.
"""

import numpy as np
from pydantic import Field

from cabafl.methods.averaging import plain_sum, weighted_mean
from cabafl.methods.base import Floats, Job, LossReason, Method, Parameters, Server, Upload, Weights


class GitFLParameters(Parameters):
    """Parameters of GitFL: the constants of the pull."""

    pull_base: float = Field(
        10.0, gt=0, description="weight an average branch gives to itself in a pull; the master has weight 1"
    )
    pull_floor: float = Field(2.0, gt=0, description="lower bound of that weight")


class GitFL(Method):
    """Asynchronous, with K branches and a version-weighted master."""

    name = "gitfl"
    kind = "asynchronous"
    paper = "Hu et al., RTSS 2023 (arXiv 2211.12049)"
    Parameters = GitFLParameters
    parameters: GitFLParameters

    def start(self, server: Server) -> None:
        """Starts every branch from the initial model, at version 0."""
        devices = len(server.sizes)
        self.branches: list[Weights] = [server.initial] * server.slots  # as pushed
        self.pulled: list[Weights] = [server.initial] * server.slots  # as sent to devices
        self.versions = [0] * server.slots  # V_i, trainings of each branch
        self.selected = np.zeros(devices, dtype=np.int64)
        self.uploads = np.zeros(devices, dtype=np.int64)
        self.seconds = np.zeros(devices)  # mean duration of a device's jobs; 0 before its first upload
        self.waiting = list(range(server.slots))  # branches without a device, first in, first out
        self._dispatch_waiting(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Push, merge and pull; then the branch is sent on."""
        branch, device = upload.job.slot, upload.job.device
        self.uploads[device] += 1
        self.seconds[device] += (upload.duration - self.seconds[device]) / self.uploads[device]
        self.versions[branch] += 1
        self.branches[branch] = upload.weights
        weights = [float(v) for v in self.versions]
        master = weighted_mean(self.branches, weights)
        server.publish(master, slot=branch, weights=[w / plain_sum(weights) for w in weights])
        keep = max(self.parameters.pull_base + self.versions[branch] - self._mean_version(), self.parameters.pull_floor)
        self.pulled[branch] = weighted_mean([master, upload.weights], [1.0, keep])
        self.waiting.append(branch)
        self._dispatch_waiting(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Sends the branch, unchanged, to another device."""
        self.waiting.append(job.slot)
        self._dispatch_waiting(server)

    def on_idle(self, server: Server, device: int) -> None:
        """Sends a branch that was waiting for an idle device."""
        self._dispatch_waiting(server)

    def _mean_version(self) -> float:
        return sum(self.versions) / len(self.versions)

    def _dispatch_waiting(self, server: Server) -> None:
        while self.waiting and len(server.idle):
            branch = self.waiting.pop(0)
            idle = np.sort(server.idle.array())
            rewards = self.rewards(branch)[idle]
            chosen = _draw(rewards, server.random("select").uniform())
            device = int(idle[chosen])
            self.selected[device] += 1
            server.note("select", slot=branch, device=device, reward=float(rewards[chosen]))
            server.dispatch(device, self.pulled[branch], slot=branch)

    def rewards(self, branch: int) -> Floats:
        """R = max(0, R_version + R_curiosity) of every device for a branch; shape (devices,)."""
        curiosity = 1.0 / np.sqrt(np.maximum(self.selected, 1))
        known = self.uploads > 0
        if not known.any() or max(self.versions) == 0:
            return curiosity
        mean = float(self.seconds[known].mean())
        times = np.where(known, self.seconds, mean)
        longest = float(times.max())
        if longest == 0:
            return curiosity
        lead = (self.versions[branch] - self._mean_version()) * (times - mean)
        rewards: Floats = np.maximum(0.0, lead / (max(self.versions) * longest) + curiosity)
        return rewards


def _draw(rewards: Floats, uniform: float) -> int:
    """An index drawn with probability proportional to its reward; uniformly if all rewards are 0."""
    if not rewards.sum() > 0:
        rewards = np.ones(len(rewards))
    bounds = rewards.cumsum()
    return min(int(np.searchsorted(bounds, uniform * bounds[-1], side="right")), len(rewards) - 1)
