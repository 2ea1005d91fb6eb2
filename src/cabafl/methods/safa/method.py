"""SAFA (Wu et al., IEEE Transactions on Computers 2021): semi-asynchronous, with a cache of one model per device.

Round t has three steps:

1. Lag-tolerant distribution. Up-to-date devices train the new model W(t-1). Tolerable ones continue with what they
   have. Deprecated ones, more than tau rounds behind, are restarted from W(t-1).
2. Compensatory first come, first merge (CFCFM). The first arrivals are picked, P(t); devices picked in the last round
   wait, Q(t), and fill up P(t) only if it stays below the quota.
3. Discriminative aggregation. The cache takes in P(t), and W(t-1) for deprecated devices; W(t) is the mean of cache
   entries with weights n_k; then the cache takes in Q(t), which bypasses this round and counts in the next one.

The version v_k of a device is the round it last uploaded in (or was restarted from, if all devices train). A lost job
leaves it unchanged, so that a device that keeps failing becomes deprecated.
"""

from typing import Literal

from pydantic import Field

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import PLAIN, Job, LossReason, Method, Objective, Parameters, Server, Upload, Weights
from cabafl.methods.safa.population import AllDevices, Population, Round, SlotDevices
from cabafl.methods.slots import InFlight


class SAFAParameters(Parameters):
    """Parameters of SAFA; the defaults are those of the comparison."""

    population: Literal["slots", "all"] = Field(
        "slots", description="devices that train at the same time: slots (K of N) | all (paper)"
    )
    quota: int | None = Field(
        None, ge=1, description="uploads picked per round; default: K/2, or K with population = all"
    )
    tau: int = Field(5, ge=1, description="lag tolerance in rounds")
    lag_rule: Literal["paper", "official_code"] = Field(
        "paper", description="paper | official_code (tolerates one round more)"
    )
    aggregate_over: Literal["active", "inflight", "all"] = Field(
        "active",
        description="population = slots: mean over active (in flight, picked, bypassed before) | inflight | all",
    )
    round_timeout: float | None = Field(None, gt=0, description="T_lim, seconds after which a round ends")
    cache_init: Literal["global", "first_epoch"] = Field(
        "global",
        description="initial cache: global (initial model) | first_epoch (each device's model after one local epoch)",
    )


class SAFA(Method):
    """Semi-asynchronous, with a model cache and a lag tolerance."""

    name = "safa"
    kind = "semi-asynchronous"
    paper = "Wu et al., IEEE TC 2021 (arXiv 1910.01355)"
    Parameters = SAFAParameters
    parameters: SAFAParameters

    def __init__(self, parameters: SAFAParameters) -> None:
        super().__init__(parameters)
        everybody = parameters.population == "all"
        self.population: Population = AllDevices() if everybody else SlotDevices(parameters.aggregate_over)

    def check(self, slots: int) -> None:
        """Rejects a quota that no round can reach."""
        self.population.check(self.parameters.quota, slots)

    def start(self, server: Server) -> None:
        """Fills the cache with the initial model, or prepares it with one local epoch per device."""
        self.model = server.initial
        self.quota = self.parameters.quota or self.population.default_quota(server)
        self.round = Round()
        self.cache: dict[int, Weights] = {}  # a missing entry is the initial model
        self.committed: dict[int, int] = {}  # v_k by device; see `Population.version`
        self.in_flight: dict[int, InFlight] = {}  # by job number
        self.last_picked: list[int] = []  # P(t-1)
        self.bypassed: list[int] = []  # Q(t-1)
        self.unprepared = sorted(server.idle) if self.parameters.cache_init == "first_epoch" else []
        self._prepare_cache(server)

    def _prepare_cache(self, server: Server) -> None:
        """Trains one epoch on every device, as many at a time as may train; then the first round begins."""
        free = self.population.concurrency(server) - len(self.in_flight)
        for device in [device for device in self.unprepared if device in server.idle][:free]:
            self.unprepared.remove(device)
            self._send(server, device, Objective(epochs=1))
        if not self.in_flight:
            self.unprepared = []
            self._begin_round(server)

    # Step 1: lag-tolerant distribution

    def _begin_round(self, server: Server) -> None:
        self.round = Round(self.round.number + 1)
        old = [job for job, flight in self.in_flight.items() if self._too_old(flight.version)]
        self._admit(server, self.population.at_start(server, self.round, self._training()))
        for job in old:
            device = self.in_flight.pop(job).device
            server.cancel(job)
            self._deprecate(device)
            self._send(server, device)
        if self.parameters.round_timeout is not None:
            server.set_timer(self.parameters.round_timeout, f"limit {self.round.number}")

    def _admit(self, server: Server, devices: list[int]) -> None:
        """Starts idle devices from the global model."""
        for device in devices:
            self._send(server, device)
            if self._too_old(self.population.version(self.committed, device)):
                self._deprecate(device)

    def _deprecate(self, device: int) -> None:
        """In step 3 the cache entry of the device becomes the model it starts from."""
        self.round.deprecated.append(device)
        self.population.force(self.committed, device, self.round.number - 1)

    def _too_old(self, version: float) -> bool:
        t = self.round.number if self.parameters.lag_rule == "paper" else self.round.number - 1
        return t - version > self.parameters.tau

    def _send(self, server: Server, device: int, objective: Objective = PLAIN) -> None:
        job = server.dispatch(device, self.model, objective=objective)
        if job is not None:
            self.in_flight[job] = InFlight(device, self.round.number - 1)

    def _training(self) -> set[int]:
        return {flight.device for flight in self.in_flight.values()}

    # Step 2: compensatory first come, first merge

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Picks the upload, unless its device was picked in the last round or the quota is reached."""
        device = upload.job.device
        del self.in_flight[upload.job.number]
        if self.round.number == 0:
            self.cache[device] = upload.weights
            self.committed[device] = 0
            self._prepare_cache(server)
            return
        picked = device not in self.last_picked and len(self.round.picked) < self.quota
        (self.round.picked if picked else self.round.undrafted)[device] = upload.weights
        self._close_if_due(server)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """The device has crashed for this round."""
        del self.in_flight[job.number]
        if self.round.number == 0:
            self._prepare_cache(server)
            return
        self._admit(server, self.population.after_loss(server, self.round, self._training()))
        self._close_if_due(server)

    def on_idle(self, server: Server, device: int) -> None:
        """A device that came back can join the round, unless the round is complete."""
        if self.round.number > 0 and not self.round.closing:
            self._admit(server, self.population.after_return(server, self.round, self._training(), device))

    def _close_if_due(self, server: Server) -> None:
        """Closes a round that has its quota or waits for nobody. Uploads of the same instant still belong to it."""
        if not self.round.closing and (len(self.round.picked) == self.quota or not self.in_flight):
            self.round.closing = True
            server.set_timer(0.0, f"close {self.round.number}")

    def on_timer(self, server: Server, name: str) -> None:
        """Ends a round that is complete or out of time, and begins the next one."""
        if name in (f"close {self.round.number}", f"limit {self.round.number}"):
            self._end_round(server)
            self._begin_round(server)

    # Step 3: discriminative aggregation

    def _end_round(self, server: Server) -> None:
        picked, undrafted = self.round.picked, self.round.undrafted
        for device in list(undrafted)[: max(0, self.quota - len(picked))]:
            picked[device] = undrafted.pop(device)
        self.cache.update(dict.fromkeys(self.round.deprecated, self.model))
        self.cache.update(picked)
        self._aggregate(server)
        self.cache.update(undrafted)
        self.committed.update(dict.fromkeys(self.round.heard(), self.round.number))
        self.last_picked, self.bypassed = list(picked), list(undrafted)

    def _aggregate(self, server: Server) -> None:
        devices = sorted(self.population.members(server, self.round, self._training(), self.bypassed))
        weights = [float(server.sizes[device]) for device in devices]
        if sum(weights) > 0:
            self.model = weighted_mean([self.cache.get(device, server.initial) for device in devices], weights)
        server.publish(
            self.model,
            picked=list(self.round.picked),
            undrafted=list(self.round.undrafted),
            deprecated=self.round.deprecated,
            **self.population.facts(devices, weights),
        )
