"""FedAT (Chai et al., SC 2021): devices of similar speed form tiers, each of which runs FedAvg at its own pace.

    profile:  one FedAvg round over all devices, K at a time; sorted by duration and cut into M equal tiers, 1 = fastest
    tier m:   send W to some idle members; when all are back or lost:  w_m = mean weighted by n_k;  T_m <- T_m + 1
              W <- sum over m of (T_(M+1-m) / sum of T) * w_m;  the tier starts again

A tier's model weighs as much as the mirrored tier is active, so that slow tiers are not drowned out. Devices train
with a proximal term. A device that did not answer in the profile belongs to the slowest tier. There are no more tiers
than slots, or than devices that answered: an empty tier would keep its first model for ever. Two ports agree on this,
but start T_m at 0 or leave it open: with ``count_start = 0`` W stays at its start until slow tiers finish. The weight
of the proximal term is uncertain; the paper's compression is omitted.
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Parameters, Server, Upload, Weights

PROFILE = 0  # in place of a tier's number


class FedATParameters(Parameters):
    """Parameters of FedAT."""

    tiers: int = Field(5, ge=1, description="M, tiers of devices of similar speed; at most one per slot and device")
    tier_devices: int | None = Field(
        None, ge=1, description="devices that a tier trains at a time; default: the slots divided by M, at least 1"
    )
    prox: float = Field(0.4, ge=0, description="weight of the proximal term in the local loss")
    count_start: Literal[0, 1] = Field(1, description="T_m before the first round of a tier: 1 | 0")


class FedAT(Method):
    """Semi-asynchronous: rounds within a tier, no waiting between tiers. Tier 0 is the profile."""

    name = "fedat"
    kind = "semi-asynchronous"
    paper = "Chai et al., SC 2021"
    Parameters = FedATParameters
    parameters: FedATParameters

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.running: dict[int, list[int]] = {PROFILE: []}  # jobs by tier
        self.returned: dict[int, list[tuple[int, int, Weights]]] = {PROFILE: []}  # device, samples, model
        self.unseen: list[int] = []  # devices still to be profiled
        self.seconds: dict[int, float] = {}  # by device that was profiled
        self.tier: dict[int, int] = {}  # by device; the others belong to the last one
        self.models: list[Weights] = []  # w_m; empty during the profile
        self.counts: list[int] = []  # T_m

    def check(self, slots: int) -> None:
        """Rejects tiers that need more slots than there are."""
        p = self.parameters
        if p.tier_devices is not None and min(p.tiers, slots) * p.tier_devices > slots:
            most = slots // min(p.tiers, slots)
            raise ValueError(
                f"method.tier_devices = {p.tier_devices}: {p.tiers} tiers share {slots} slots; accepted: 1 to {most}"
            )

    def start(self, server: Server) -> None:
        """Begins the profile."""
        self.model = server.initial
        self._set_tiers(server, min(self.parameters.tiers, server.slots))
        self._begin_profile(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Keeps the upload; the last one ends the round of its tier, or the profile."""
        job = upload.job
        if job.slot == PROFILE:
            self.seconds[job.device] = upload.duration
        self.returned[job.slot].append((job.device, upload.samples, upload.weights))
        self._leave(server, job)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Continues the round without the lost job."""
        self._leave(server, job)

    def on_idle(self, server: Server, device: int) -> None:
        """Begins a round, or the profile, that found no idle device."""
        if not self.models:
            if not self.running[PROFILE]:
                self._begin_profile(server)
        elif not self.running[self.tier.get(device, self.last)]:
            self._begin_round(server, self.tier.get(device, self.last))

    def _leave(self, server: Server, job: Job) -> None:
        self.running[job.slot].remove(job.number)
        if job.slot == PROFILE:
            self._profile(server)
        if not self.running[job.slot]:
            self._end_profile(server) if job.slot == PROFILE else self._end_round(server, job.slot)

    def _set_tiers(self, server: Server, tiers: int) -> None:
        self.last = tiers  # M
        self.size = self.parameters.tier_devices or max(1, server.slots // tiers)

    # The profile

    def _begin_profile(self, server: Server) -> None:
        self.unseen = sorted(server.idle)
        self._profile(server)

    def _profile(self, server: Server) -> None:
        """Keeps K devices training. One that has gone meanwhile is left out."""
        while self.unseen and len(self.running[PROFILE]) < server.slots:
            device = self.unseen.pop(0)
            if device in server.idle:
                self._send(server, device, PROFILE, PLAIN)

    def _end_profile(self, server: Server) -> None:
        """The first model, and the tiers. If nobody has answered, the profile begins again."""
        returned = self.returned[PROFILE]
        if not returned:
            self._begin_profile(server)
            return
        self.model = self._mean(PROFILE)
        order = sorted(self.seconds, key=lambda device: (self.seconds[device], device))
        self._set_tiers(server, min(self.last, len(order)))
        for number, part in enumerate(np.array_split(np.array(order), self.last), start=1):
            self.tier |= dict.fromkeys(part.tolist(), number)
        sizes = [sum(tier == number for tier in self.tier.values()) for number in range(1, self.last + 1)]
        server.note("tiers", sizes=sizes)
        server.publish(self.model, devices=sorted(self.seconds))
        self.models, self.counts = [self.model] * self.last, [self.parameters.count_start] * self.last
        for number in range(1, self.last + 1):
            self._begin_round(server, number)

    # The tiers

    def _begin_round(self, server: Server, tier: int) -> None:
        self.running[tier], self.returned[tier] = [], []
        members = [device for device in sorted(server.idle) if self.tier.get(device, self.last) == tier]
        chosen = server.random(f"tier {tier}").distinct(len(members), min(self.size, len(members)))
        for place in chosen:
            self._send(server, members[place], tier, Objective(prox=self.parameters.prox))

    def _end_round(self, server: Server, tier: int) -> None:
        if self.returned[tier]:
            self.models[tier - 1] = self._mean(tier)
            self.counts[tier - 1] += 1
            weights = [float(count) for count in reversed(self.counts)]
            self.model = weighted_mean(self.models, weights)
            server.publish(self.model, tier=tier, weights=[weight / sum(weights) for weight in weights])
        self._begin_round(server, tier)

    def _mean(self, tier: int) -> Weights:
        returned = sorted(self.returned[tier], key=lambda entry: entry[0])
        return weighted_mean([model for _, _, model in returned], [float(n) for _, n, _ in returned])

    def _send(self, server: Server, device: int, tier: int, objective: Objective) -> None:
        job = server.dispatch(device, self.model, slot=tier, objective=objective)
        if job is not None:
            self.running[tier].append(job)
