"""SAFA (Wu et al., IEEE Transactions on Computers 2021): semi-asynchronous, with a cache of one model per device.

Round t: up-to-date devices train the new model, slow ones go on with their own (tolerable), those over the lag
tolerance are restarted (deprecated). Of the arrivals, devices that were not picked last round come first (CFCFM); what
is received but not picked bypasses the round and counts in the next one. The mean runs over cache entries, weighted by
samples.

A device whose job was lost begins again with the next round's model; its version stays, so that it becomes deprecated
in time. ``population = "all"`` is the paper's protocol, all devices train. ``population = "slots"`` lets K of N train
at a time, which the paper does not cover: the mean then runs over the active devices (``aggregate_over``).
"""

import math
from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Parameters, Server, Upload, Weights
from cabafl.methods.slots import Flying, check_at_most, default_buffer


class SAFAParameters(Parameters):
    """Defaults of the comparison."""

    population: Literal["slots", "all"] = Field("slots", description="slots: K of N devices train | all (paper)")
    quota: int | None = Field(
        None, ge=1, description="uploads picked per round; default: K/2, or K with population = all"
    )
    tau: int = Field(5, ge=1, description="lag tolerance in rounds")
    lag_rule: Literal["paper", "official_code"] = Field("paper", description="official_code tolerates one round more")
    aggregate_over: Literal["active", "inflight", "all"] = Field(
        "active", description="slots only: active (in flight, picked, bypassed before) | inflight | all devices"
    )
    round_timeout: float | None = Field(None, gt=0, description="T_lim, seconds after which a round ends")
    cache_init: Literal["global", "first_epoch"] = Field(
        "global", description="the cache at the start: the initial model | each device's own after one local epoch"
    )


class SAFA(Method):
    """Semi-asynchronous; see the module's description."""

    name = "safa"
    kind = "semi-asynchronous"
    paper = "Wu et al., IEEE TC 2021 (arXiv 1910.01355)"
    Parameters = SAFAParameters
    parameters: SAFAParameters

    def check(self, slots: int) -> None:
        """A round of K devices brings K uploads at most."""
        if self.parameters.population == "slots":
            check_at_most("quota", self.parameters.quota, slots)

    def start(self, server: Server) -> None:
        """Nobody has committed anything; every entry of the cache is the initial model."""
        self.model = server.initial
        self.round = 0
        self.everybody = self.parameters.population == "all"
        quota = server.slots if self.everybody else default_buffer(server, None)
        self.quota = self.parameters.quota or quota
        self.cache: dict[int, Weights] = {}  # an entry that is missing is the initial model
        self.committed: dict[int, int] = {}  # round of the last upload, by device; all: or of the last forced start
        self.flying: dict[int, Flying] = {}  # version = index of the global model it started from
        self.picked: dict[int, Weights] = {}
        self.undrafted: dict[int, Weights] = {}
        self.last_picked: list[int] = []
        self.bypassed: list[int] = []
        self.deprecated: list[int] = []
        self.closing = False
        self.unprepared = sorted(server.idle) if self.parameters.cache_init == "first_epoch" else []
        self._prepare_cache(server)

    def _prepare_cache(self, server: Server) -> None:
        """One local epoch on every device, as many at a time as may train; then the rounds begin."""
        together = len(server.sizes) if self.everybody else server.slots
        for device in [device for device in self.unprepared if device in server.idle][: together - len(self.flying)]:
            self.unprepared.remove(device)
            self._send(server, device, Objective(epochs=1))
        if not self.flying:
            self.unprepared = []
            self._begin_round(server)

    # Step 1: lag-tolerant distribution

    def _begin_round(self, server: Server) -> None:
        self.round += 1
        self.picked, self.undrafted, self.deprecated, self.closing = {}, {}, [], False
        old = [job for job, flight in self.flying.items() if self._too_old(flight.version)]
        self._fill(server)
        for job in old:
            device = self.flying.pop(job).device
            server.cancel(job)
            self._deprecate(device)
            self._send(server, device)
        if self.parameters.round_timeout is not None:
            server.set_timer(self.parameters.round_timeout, f"limit {self.round}")

    def _fill(self, server: Server) -> None:
        """Sends the model to everybody who is idle, or to as many as there are slots; to nobody twice in a round."""
        if self.everybody:
            devices = sorted(server.idle)
        else:
            free = server.slots - len(self.flying) - len(self.picked) - len(self.undrafted)
            heard = [*self.picked, *self.undrafted]
            devices = server.idle.draw_many(server.random("select"), max(0, free), heard)
        for device in devices:
            self._admit(server, device)

    def _admit(self, server: Server, device: int) -> None:
        """An idle device begins."""
        self._send(server, device)
        if self._too_old(self.committed.get(device, 0 if self.everybody else -math.inf)):
            self._deprecate(device)

    def _deprecate(self, device: int) -> None:
        """In step 3 its cache entry becomes the model it begins with."""
        self.deprecated.append(device)
        if self.everybody:
            self.committed[device] = self.round - 1

    def _too_old(self, version: float) -> bool:
        now = self.round if self.parameters.lag_rule == "paper" else self.round - 1
        return now - version > self.parameters.tau

    def _send(self, server: Server, device: int, objective: Objective = PLAIN) -> None:
        job = server.dispatch(device, self.model, objective=objective)
        if job is not None:
            self.flying[job] = Flying(device, self.round - 1)

    # Step 2: compensatory first come, first merge

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Devices that were not picked last round have priority; uploads of the closing instant still count."""
        device = upload.job.device
        del self.flying[upload.job.number]
        if self.round == 0:
            self.cache[device] = upload.weights
            self.committed[device] = 0
            self._prepare_cache(server)
            return
        first = device not in self.last_picked and len(self.picked) < self.quota
        (self.picked if first else self.undrafted)[device] = upload.weights
        self._close_if_due(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The device has crashed for this round; a slot goes to another one, unless the round is over."""
        del self.flying[job.number]
        if self.round == 0:
            self._prepare_cache(server)
            return
        if not self.everybody and not self.closing:
            self._fill(server)
        self._close_if_due(server)

    def on_idle(self, server: Server, device: int) -> None:
        """A device that came back takes part at once, unless it was heard in this round already."""
        if self.round == 0 or self.closing:
            return
        if not self.everybody:
            self._fill(server)
        elif device not in self.picked and device not in self.undrafted:
            self._admit(server, device)

    def _close_if_due(self, server: Server) -> None:
        """A round ends with its quota, or when nobody is left to fill it."""
        if not self.closing and (len(self.picked) == self.quota or not self.flying):
            self.closing = True
            server.set_timer(0.0, f"close {self.round}")

    def on_timer(self, server: Server, name: str) -> None:
        """The end of a round: its quota is full, or its time is up."""
        if name in (f"close {self.round}", f"limit {self.round}"):
            self._end_round(server)
            self._begin_round(server)

    # Step 3: discriminative aggregation

    def _end_round(self, server: Server) -> None:
        for device in list(self.undrafted)[: max(0, self.quota - len(self.picked))]:
            self.picked[device] = self.undrafted.pop(device)
        self.cache.update(dict.fromkeys(self.deprecated, self.model))
        self.cache.update(self.picked)
        devices = sorted(self._members(server))
        weights = [float(server.sizes[device]) for device in devices]
        if sum(weights) > 0:
            self.model = weighted_mean([self.cache.get(d, server.initial) for d in devices], weights)
        total = sum(weights)
        server.publish(
            self.model,
            picked=list(self.picked),
            undrafted=list(self.undrafted),
            deprecated=self.deprecated,
            devices=devices if not self.everybody else len(devices),
            weights=[weight / total for weight in weights] if not self.everybody else None,
        )
        self.cache.update(self.undrafted)
        self.committed.update(dict.fromkeys([*self.picked, *self.undrafted], self.round))
        self.last_picked, self.bypassed = list(self.picked), list(self.undrafted)

    def _members(self, server: Server) -> set[int]:
        """Whose cache entries take part."""
        over = "all" if self.everybody else self.parameters.aggregate_over
        if over == "all":
            return set(range(len(server.sizes)))
        flying = {flight.device for flight in self.flying.values()}
        if over == "inflight":
            return flying | set(self.picked) | set(self.undrafted)
        return flying | set(self.picked) | set(self.bypassed)
