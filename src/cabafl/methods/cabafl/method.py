"""CaBaFL (Xia et al., 2024): cache-based aggregation and feature-balance-guided device selection.

K intermediate models travel from device to device without waiting for each other. After k trainings a model is
aggregated with the screened models of all other slots (two-level cache) and continues from the new global model. The
next device of a model is the one that makes the data the model has seen since then most balanced, judged by
middle-layer activations that devices report every m aggregations.

Where the paper is silent, or differs from the authors' code: every selection is booked, including the random one after
an aggregation; the device that has just uploaded is left out if another is idle; 1 - similarity is bounded below by
``epsilon``.
"""

from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import FeatureKind, Floats, Job, LossReason, Method, Needs, Parameters, Server, Upload
from cabafl.methods.cabafl.aggregation import cache_weights, equal_weights
from cabafl.methods.cabafl.auto import NAMES, CountOrAuto, LevelOrAuto, ShareOrAuto, Tuning
from cabafl.methods.cabafl.cache import Slot, TwoLevelCache
from cabafl.methods.cabafl.selector import (
    FeatureTable,
    SelectionCounts,
    balance_scores,
    best_device,
    draw,
    idle_without,
)
from cabafl.methods.slots import population

PAPER_DEVICES = 100
PAPER_LEVEL = 1e-6  # variance of random selection at the end of the paper's runs: 100 devices, 10,000 selections
SMALLEST_RELATIVE_SIGMA = 0.001  # a smaller one is meant for the absolute scale


class CaBaFLParameters(Parameters):
    """Parameters of CaBaFL. The defaults suit moderate imbalance; the files in ``experiments/`` have the paper's."""

    k: CountOrAuto = Field(10, description="trainings of a model between two aggregations, or auto")
    alpha: ShareOrAuto = Field(0.7, description="exponent of the data size in the aggregation weight, or auto")
    gamma: ShareOrAuto = Field(0.2, description="early uploads enter L1 above this quantile of similarity, or auto")
    sigma: LevelOrAuto = Field(
        1e-6,
        description="unevenness of selection above which only the least selected devices are candidates, or auto",
    )
    sigma_scale: Literal["auto", "absolute", "relative"] = Field(
        "auto",
        description="unit of sigma: absolute (variance, paper) | relative (random selection = 1) | auto (by the fleet)",
    )
    m: CountOrAuto = Field(50, description="aggregations between two feature collections, or auto")
    epsilon: float = Field(1e-8, gt=0, description="lower bound of 1 - similarity in the aggregation weight")
    features: FeatureKind = Field(
        "activations", description="activations | activation_counts | labels (hard labels: reveals label counts)"
    )
    feature_latency: Literal["simulated", "instant"] = Field(
        "simulated", description="simulated: devices answer a collection after link and forward time | instant"
    )
    collection_timeout: float | None = Field(
        None, gt=0, description="seconds after which missing features count as unknown"
    )
    fair_restart: bool = Field(
        True, description="apply the fairness filter to the random selection after an aggregation too"
    )
    selection: Literal["balanced", "similarity", "size", "random"] = Field(
        "balanced", description="balanced | similarity (conf1) | size (conf2) | random (conf3)"
    )
    l1_cache: bool = Field(True, description="false: every upload enters L1 at once (conf4)")
    aggregation: Literal["weighted", "mean"] = Field("weighted", description="weighted | mean (conf5)")

    @model_validator(mode="before")
    @classmethod
    def _sigma_of_scale(cls, values: Any) -> Any:
        """The default of ``sigma`` depends on its scale."""
        relative = isinstance(values, dict) and values.get("sigma_scale") == "relative"
        return {"sigma": 1.0, **values} if relative else values

    @model_validator(mode="after")
    def _sigma_fits_its_scale(self) -> Self:
        if self.sigma_scale == "relative" and self.sigma != "auto" and 0 < self.sigma < SMALLEST_RELATIVE_SIGMA:
            raise ValueError(
                f"method.sigma = {self.sigma}: with method.sigma_scale = relative, 1 is random selection; accepted: 0, "
                f"or from {SMALLEST_RELATIVE_SIGMA}; {self.sigma} of the paper is {self.sigma / PAPER_LEVEL:g}"
            )
        return self

    def settled(self, devices: int, simulated: bool) -> Self:
        """Decides ``sigma_scale = "auto"``: absolute on simulated fleets of the paper's size, relative on all others.

        ``sigma`` is then a value of the paper, converted so that it means the same at the end of the paper's runs.
        ``sigma = "auto"`` is always relative.
        """
        if self.sigma == "auto":
            return self.model_copy(update={"sigma_scale": "relative"})
        if self.sigma_scale != "auto":
            return self
        if simulated and devices == PAPER_DEVICES:
            return self.model_copy(update={"sigma_scale": "absolute"})
        return self.model_copy(update={"sigma_scale": "relative", "sigma": self.sigma / PAPER_LEVEL})


class CaBaFL(Method):
    """Asynchronous, with a two-level cache and selection by feature balance."""

    name = "cabafl"
    kind = "asynchronous"
    paper = "Xia et al., 2024 (arXiv 2404.12850)"
    Parameters = CaBaFLParameters

    def __init__(self, parameters: CaBaFLParameters) -> None:
        self.parameters = parameters
        self.features = FeatureTable()
        self.tuning = Tuning({name: getattr(parameters, name) for name in NAMES})
        self.waiting: list[int] = []  # slots without a device, first in, first out
        self.collecting = True
        self.collection_due = False

    def needs(self) -> Needs:
        """Features of the configured kind."""
        return Needs(features=self.parameters.features)

    def start(self, server: Server) -> None:
        """Collects features; models are dispatched once these are known."""
        p = self.parameters
        self.model = server.initial
        self.selected = SelectionCounts(len(server.sizes))
        self.cache = TwoLevelCache(server.slots, server.initial, screening=p.l1_cache)
        self.waiting = list(range(server.slots))
        server.collect_features(server.initial, p.features, p.collection_timeout, instant=True)

    def on_features(self, server: Server, features: npt.NDArray[np.float32]) -> None:
        """Replaces the feature table, and starts a collection that has become due meanwhile."""
        self.features.replace(features)
        self.tuning.on_features(server, self.features)
        self.collecting = False
        if self.collection_due:
            self._collect(server)
        self._dispatch_waiting(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Algorithm 1: screens the upload, aggregates at the end of a cycle, sends the model on."""
        index = upload.job.slot
        slot = self.cache.slots[index]
        similarity = self.features.similarity(slot.trace)
        trained = slot.trained + 1
        complete = self.tuning.complete(trained, 1.0 - similarity, self.parameters.epsilon)
        late = complete or trained > self.tuning.k / 2
        decision = self.cache.store(slot, upload.weights, similarity, late, self.tuning.gamma)
        server.note("cache", slot=index, trained=slot.trained, similarity=similarity, **decision._asdict())
        if complete:
            self.tuning.on_cycle(server, slot.trained)
            self._aggregate(server, slot, index)
        self.waiting.append(index)
        self._dispatch_waiting(server, without=upload.job.device)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Takes back the booking and sends the model, unchanged, to another device."""
        self.cache.slots[job.slot].unvisit()
        self.waiting.append(job.slot)
        self._dispatch_waiting(server, without=job.device)

    def on_idle(self, server: Server, device: int) -> None:
        """Sends a model that was waiting for an idle device."""
        self._dispatch_waiting(server)

    def _aggregate(self, server: Server, slot: Slot, index: int) -> None:
        slots = self.cache.slots
        samples = np.array([s.l1_samples for s in slots], dtype=np.float64)
        if self.parameters.aggregation == "mean":
            weights = equal_weights(samples)
        else:
            similarities = np.array([self.features.similarity(s.l1_trace) for s in slots])
            weights = cache_weights(samples, similarities, self.tuning.alpha, self.parameters.epsilon)
        self.model = weighted_mean([s.l1 for s in slots], weights)
        self.cache.restart(slot, self.model)
        server.publish(self.model, slot=index, weights=weights.tolist())
        if server.version % self.tuning.m == 0:
            self._collect(server)

    def _collect(self, server: Server) -> None:
        self.collection_due = self.collecting
        if self.collecting:
            return
        self.collecting = True
        p = self.parameters
        server.collect_features(self.model, p.features, p.collection_timeout, instant=p.feature_latency == "instant")

    def _dispatch_waiting(self, server: Server, without: int | None = None) -> None:
        if not len(self.features.rows):
            return  # the first collection is not complete
        while self.waiting and len(server.idle):
            index = self.waiting.pop(0)
            slot = self.cache.slots[index]
            device = self._select(server, slot, index, without)
            self.selected.add(device)
            slot.visit(device, int(server.sizes[device]))
            server.dispatch(device, slot.l2, slot=index)

    def _select(self, server: Server, slot: Slot, index: int, without: int | None) -> int:
        """Algorithm 2. ``without``, the device the model comes from, is selected only if no other is idle."""
        p = self.parameters
        random = server.random("select")
        if len(server.idle) == 1:
            without = None
        restart = slot.trained == 0
        at_random = restart or p.selection == "random"
        fair = p.selection != "random" and (p.fair_restart or not restart)
        filtered = fair and self._uneven(population(server))
        if at_random and not filtered:
            return server.idle.draw(random, without)
        if filtered:
            candidates = self.selected.least_selected(server.idle, without)
        else:
            candidates = idle_without(server.idle, without)
        if at_random:
            return draw(candidates, random)
        sizes = np.array([s.samples for s in self.cache.slots], dtype=np.float64)
        w1, w2 = balance_scores(self.features, slot.trace, sizes, index, candidates, server.sizes)
        device, score = best_device(candidates, self._score(w1, w2))
        server.note("select", slot=index, device=device, candidates=len(candidates), score=score)
        return device

    def _uneven(self, devices: int) -> bool:
        """Whether selection so far is more uneven than ``sigma`` allows."""
        relative = self.parameters.sigma == "auto" or self.parameters.sigma_scale == "relative"
        found = self.selected.relative_variance(devices) if relative else self.selected.variance(devices)
        return found > self.tuning.sigma

    def _score(self, w1: Floats, w2: Floats) -> Floats:
        if self.parameters.selection == "similarity":
            return w1
        return -w2 if self.parameters.selection == "size" else w1 - w2
