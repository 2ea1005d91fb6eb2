"""EvenKeel (ours): every upload moves the global model at once, on a course corrected for all other devices.

An update says where its own device pulls; with unbalanced data that is not where the fleet pulls. The server therefore
remembers the last update of every device, h_k, and their mean over the fleet, h. When device k uploads its update
Delta_k (the trained minus the received model), with the step eta:

    v = Delta_k + s (h - h_k);   w <- (1 - eta lambda) w + eta v;   then h_k <- Delta_k, and h with it

What a device pulls every time is taken out of the step and replaced by what the whole fleet pulls; what is new counts
in full. Every device is selected equally often, so v is right on average whatever s and h_k are: they only decide how
much it scatters. s is the share of an update that last time's update predicts, estimated as the run goes on (`Trust`).

lambda is a weight decay that sets in slowly: after a visits per device, lambda = decay a / (a + 10). By then the model
knows many samples by heart, and updates teach it more of that.

Memory: with more devices than ``groups``, devices of similar data share one h_k, the mean of their recent updates. They
are grouped by middle-layer activations, collected once, before the first dispatch (`groups`). Statistics of batch
normalisation are no directions: they are mixed, (1 - eta) old + eta uploaded.

Nobody waits: there are neither rounds nor buffers. A lost job changes nothing but who is next.
"""

from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from cabafl.methods.base import Floats, Ints, Needs, Parameters, Server, Upload, Weights
from cabafl.methods.cabafl.auto import ShareOrAuto
from cabafl.methods.cabafl.selector import SelectionCounts, draw
from cabafl.methods.slots import SlotMethod, population
from cabafl.state import State, frozen

Half = npt.NDArray[np.float16]
LARGEST_HALF = 6e4  # of float16
SMALLEST_SHARE = 1e-3  # of an update in the memory of a large group: half precision would lose smaller ones
HALFWAY = 10.0  # visits per device after which half of the weight decay applies
MEMORY = 0.95  # of `Trust`, per upload: about the last 20 count


def _auto_or_step(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1):
        return value if value == "auto" else float(value)
    raise ValueError("accepted: 'auto' or a number above 0, at most 1")


StepOrAuto = Annotated[Literal["auto"] | float, BeforeValidator(_auto_or_step)]


class EvenKeelParameters(Parameters):
    """Parameters of EvenKeel; the defaults need no tuning."""

    step: StepOrAuto = Field("auto", description="eta: auto (2 / slots or devices, at most 1) | above 0, up to 1")
    trust: ShareOrAuto = Field(
        "auto", description="s, how far a remembered update counts: auto (estimated) | 0 (not at all) to 1"
    )
    decay: float = Field(
        0.002, ge=0, lt=1, description="weight decay per update that the model makes, once devices were visited often"
    )
    groups: int = Field(100, ge=1, description="updates the server remembers; larger fleets are grouped by features")
    features: Literal["auto", "off", "activations", "activation_counts", "labels"] = Field(
        "auto", description="what devices are grouped by: auto (activations, if they are more than groups)"
    )

    def settled(self, devices: int, simulated: bool) -> Self:
        """Decides ``features = "auto"``: a fleet that is not larger than ``groups`` needs none."""
        if self.features != "auto":
            return self
        return self.model_copy(update={"features": "activations" if devices > self.groups else "off"})


class Trust(State):
    """s: the share of an update that the remembered one predicts, a regression over recent uploads."""

    def __init__(self) -> None:
        self.common = 0.0  # products of remembered and new update, both without the fleet's mean
        self.square = 0.0  # squares of the remembered one
        self.share = 1.0

    def learn(self, remembered: Floats, update: Floats) -> None:
        """Takes in an upload; both updates are without the fleet's mean."""
        self.common = MEMORY * self.common + float((remembered * update).sum())
        self.square = MEMORY * self.square + float((remembered * remembered).sum())
        if self.square > 0:
            self.share = min(1.0, max(0.0, self.common / self.square))


class UpdateMemory(State):
    """h_k by group, in half precision, and their mean over all devices that have samples.

    A group that has sent nothing yet counts as zero. The mean follows the rounded values, so that it stays exact.
    """

    counted: npt.NDArray[np.bool_] | None = None  # which devices count in the mean; None: not asked yet

    def __init__(self, group: Ints, length: int) -> None:
        self.group = group  # of each device
        self.members = np.bincount(group)  # devices of each group that count in the mean
        self.seen = np.zeros(len(self.members), dtype=np.int64)  # uploads per group
        self.updates: dict[int, Half] = {}
        self.mean: Floats = frozen(np.zeros(length))

    def count(self, sizes: Ints) -> list[int]:
        """The mean is that of the devices with samples from now on: of those that may join a fleet, many never come.
        Returns the devices that have joined since it was asked before."""
        here = sizes > 0
        if self.counted is not None and np.array_equal(here, self.counted):
            return []
        joined: list[int] = [] if self.counted is None else np.flatnonzero(here & ~self.counted).tolist()
        self.counted = here
        self._weigh(np.bincount(self.group[here], minlength=len(self.members)))
        return joined

    def _weigh(self, members: Ints) -> None:
        """The mean with other numbers of members."""
        if np.array_equal(members, self.members):
            return
        total = self.mean * self.members.sum()
        for group in np.flatnonzero(members != self.members).tolist():
            if group in self.updates:
                total += (members[group] - self.members[group]) * self.updates[group].astype(np.float64)
        self.mean = frozen(total / max(1, members.sum()))
        self.members = members

    def of(self, device: int) -> Half | None:
        """The remembered update of a device's group."""
        return self.updates.get(int(self.group[device]))

    def remember(self, device: int, update: Floats) -> None:
        """Moves the memory of the device's group: to the update itself, or to the mean of its members' last ones."""
        group = int(self.group[device])
        self.seen[group] += 1
        before = self.updates.get(group)
        old = 0.0 if before is None else before
        share = max(1.0 / min(self.seen[group], self.members[group]), SMALLEST_SHARE)
        moved = update - old
        moved *= share
        moved += old
        after = np.clip(moved, -LARGEST_HALF, LARGEST_HALF, out=moved).astype(np.float16)
        np.subtract(after, old, out=moved, dtype=np.float64)
        moved *= self.members[group] / self.members.sum()
        moved += self.mean
        self.mean = frozen(moved)
        self.updates[group] = frozen(after)


class EvenKeel(SlotMethod):
    """Asynchronous; remembers what every device pulls."""

    name = "evenkeel"
    kind = "asynchronous"
    paper = "ours (docs/evenkeel.md)"
    Parameters = EvenKeelParameters
    parameters: EvenKeelParameters

    def needs(self) -> Needs:
        """Features, if devices are grouped by them."""
        kind = self.parameters.features
        return Needs() if kind == "auto" or kind == "off" else Needs(features=kind)

    def prepare(self, server: Server) -> None:
        """Remembers nothing yet. A fleet that is to be grouped reports its features first."""
        self.selected = SelectionCounts(len(server.sizes))
        self.trust = Trust()
        if self.parameters.trust != "auto":
            self.trust.share = self.parameters.trust
        self.memory: UpdateMemory | None = None
        kind = self.needs().features
        if kind is None:
            count = min(self.parameters.groups, len(server.sizes))
            self.memory = UpdateMemory(np.arange(len(server.sizes)) % count, server.trainable)
        else:
            server.collect_features(server.initial, kind, instant=True)

    def on_features(self, server: Server, features: npt.NDArray[np.float32]) -> None:
        """Groups the devices and sends the first models."""
        from cabafl.methods.groups import grouped  # loads torch

        groups = grouped(features, server.sizes, self.parameters.groups)
        server.note("groups", sizes=np.bincount(groups).tolist())
        self.memory = UpdateMemory(groups, server.trainable)
        self.refill(server)

    def receive(self, server: Server, upload: Upload) -> None:
        """Steers by the update and all remembered ones, then remembers it."""
        assert self.memory is not None
        device, trainable, devices = upload.job.device, server.trainable, population(server)
        self._welcome(self.memory.count(server.sizes), devices)
        update = upload.weights[:trainable].astype(np.float64) - upload.job.weights[:trainable]
        remembered, mean = self.memory.of(device), self.memory.mean
        known = 0.0 if remembered is None else remembered
        share = self.trust.share
        visits = (server.version + 1) / devices
        course = mean - known
        course *= share
        course += update
        course -= self.parameters.decay * visits / (visits + HALFWAY) * self.model[:trainable]
        self.model = self._moved(course, upload.weights[trainable:], self._step(min(server.slots, devices)))
        del course  # a model of 11 million numbers takes 88 MB in double precision
        if remembered is not None and self.parameters.trust == "auto":
            self.trust.learn(remembered - mean, update - mean)
        self.memory.remember(device, update)
        server.publish(self.model, device=device, trust=share)

    def _welcome(self, joined: list[int], devices: int) -> None:
        """Devices that join late count as if they had been selected like the others: they would get all jobs else."""
        usual = self.selected.total // max(1, devices - len(joined))
        for device in joined:
            for _ in range(usual - int(self.selected.counts[device])):
                self.selected.add(device)

    def _step(self, training: int) -> float:
        """eta, if so many devices train at the same time."""
        step = self.parameters.step
        return min(1.0, 2.0 / training) if step == "auto" else step

    def _moved(self, course: Floats, buffers: Weights, step: float) -> Weights:
        """The global model after a step; ``course`` is used up."""
        trainable = len(course)
        course *= step
        course += self.model[:trainable]
        return np.concatenate(
            [
                course.astype(np.float32),
                ((1.0 - step) * self.model[trainable:] + step * buffers).astype(np.float32),
            ]
        )

    def send(self, server: Server, device: int) -> None:
        """Dispatches the newest model and counts the selection; neither once the run sends no more jobs."""
        super().send(server, device)
        if device not in server.idle:
            self.selected.add(device)

    def refill(self, server: Server, without: int | None = None) -> None:
        """Fills the free slots with the devices that were selected least, ``without`` only if no other is idle."""
        if self.memory is None:
            return  # the features are not here yet
        for _ in range(min(server.slots - len(self.in_flight), len(server.idle))):
            left_out = without if len(server.idle) > 1 else None
            self.send(server, draw(self.selected.least_selected(server.idle, left_out), server.random("select")))
