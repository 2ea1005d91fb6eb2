"""Data, partition and network together: everything that a job needs in one process.

Outside of the network a model is one flat float32 vector: parameters, then floating-point buffers, then integer
buffers.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cabafl.data.dataset import Dataset, Partition
from cabafl.learning.augmentation import find_augmentation
from cabafl.learning.dp import DpSgd
from cabafl.learning.evaluation import Score, evaluate
from cabafl.learning.features import feature_sum, find_layer, label_histogram
from cabafl.learning.learning_task import LearningTask, TaskMetric
from cabafl.learning.panel import Panel
from cabafl.learning.privacy import FeaturePrivacy
from cabafl.learning.training import Enough, LocalTraining, Stop, train
from cabafl.methods.base import FeatureKind, Objective, Weights
from cabafl.rng import rng, seed64

if TYPE_CHECKING:
    from cabafl.learning.spec import TaskSpec

EVALUATION_CHUNK = 2500  # test samples per evaluation job; fixed, so that sums do not depend on the executor
FEATURE_CHUNK = 2500  # approximate number of training samples per feature job


@dataclass(frozen=True)
class Layout:
    """The position of each tensor in the flat vector.

    Integer buffers (batch counters) are stored as floats and rounded when a model is loaded. A weighted mean of models
    therefore contains the rounded weighted mean of the counters.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]  # one more than names; the last one is the length of the vector
    trainable: int  # entries [0, trainable) are parameters, the rest buffers
    integers: int  # entries [integers, end) are integer buffers

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.offsets[-1]

    @property
    def bytes(self) -> int:
        """Bytes of one model when sent."""
        return 4 * self.size

    def tensors(self, weights: Weights) -> dict[str, Tensor]:
        """Splits a flat vector into named tensors, integer buffers as int64: the form of ``model.safetensors``."""
        flat = torch.from_numpy(weights.copy())
        named = {}
        for name, shape, start, end in zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False):
            tensor = flat[start:end].reshape(shape)
            named[name] = tensor.round().long() if start >= self.integers else tensor.clone()
        return named


class FlatModel:
    """A network with its layout. Weights are copied into and out of the network's tensors.

    The network does not use views of a shared buffer: their alignment could change the summation order of matrix
    products, and with it the last bits.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        # named_parameters lists shared tensors once
        parameters = list(network.named_parameters())
        buffers = list(_persistent_buffers(network))
        floating = [(name, b) for name, b in buffers if b.is_floating_point()]
        integer = [(name, b) for name, b in buffers if not b.is_floating_point()]
        named = [*parameters, *floating, *integer]
        self.tensors = [tensor.detach() for _, tensor in named]
        sizes = [tensor.numel() for tensor in self.tensors]
        offsets = (0, *np.cumsum(sizes, dtype=int).tolist())
        self.layout = Layout(
            names=tuple(name for name, _ in named),
            shapes=tuple(tuple(tensor.shape) for tensor in self.tensors),
            offsets=offsets,
            trainable=offsets[len(parameters)],
            integers=offsets[len(parameters) + len(floating)],
        )

    @property
    def processor(self) -> torch.device:
        """The torch device that holds the network."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    def load(self, weights: Weights) -> None:
        """Copies a flat vector into the network."""
        flat = torch.from_numpy(weights)
        with torch.no_grad():
            for tensor, start, end in self._slices():
                part = flat[start:end].view(tensor.shape)
                tensor.copy_(part if tensor.is_floating_point() else part.round())

    def save(self) -> Weights:
        """Copies the network's state into a new flat vector."""
        weights = np.empty(self.layout.size, dtype=np.float32)
        flat = torch.from_numpy(weights)
        with torch.no_grad():
            for tensor, start, end in self._slices():
                flat[start:end].view(tensor.shape).copy_(tensor)
        return weights

    def trained_parts(self, vector: Weights) -> list[Tensor]:
        """A flat vector as one tensor for each parameter that is trained, in their order; entries of buffers are left
        out."""
        flat = torch.from_numpy(vector)
        parameters = [parameter.requires_grad for parameter in self.network.parameters()]
        return [
            flat[start:end].view(tensor.shape).to(tensor.device)
            for trained, (tensor, start, end) in zip(parameters, self._slices(), strict=False)
            if trained
        ]

    def _slices(self) -> Iterable[tuple[Tensor, int, int]]:
        return zip(self.tensors, self.layout.offsets, self.layout.offsets[1:], strict=False)


class TrainingResult(NamedTuple):
    """The result of a training job: the model, and the fields of `learning.training.Figures`."""

    weights: Weights
    loss: float | None = None
    square_loss: float | None = None
    steps: int = 1
    epochs: int = 1


@dataclass(frozen=True)
class Control:
    """How a training may end before its time, and whether it is that of a simulated attacker: ``flipped`` labels are
    C - 1 - y."""

    stop: Stop | None = None
    enough: Enough | None = None
    flipped: bool = False


UNTIL_THE_END = Control()


@dataclass(frozen=True)
class Goal:
    """What the network learns; ``metrics`` are those of the run, and the first is the one it is judged by."""

    learning: LearningTask
    metrics: tuple[TaskMetric, ...]


class Task:
    """Computes jobs. A result depends only on the arguments and the seed, never on earlier jobs.

    Made by `TaskSpec.build`, which puts the model on its processor.
    """

    def __init__(
        self,
        spec: "TaskSpec",
        dataset: Dataset,
        partition: Partition,
        model: FlatModel,
        feature_layer: str | None,
        goal: Goal,
        repeatable: bool = True,
    ) -> None:
        self.spec = spec
        self.own_code = spec.code()  # the user's, by the setting that names it
        self.dataset = dataset
        self.partition = partition
        self.model = model
        self.feature_layer = feature_layer
        self.goal = goal
        self.repeatable = repeatable
        self.processor = model.processor
        self.panel: Panel | None = None  # devices that are evaluated, if any
        self.dp = DpSgd.of(spec.privacy)
        self.feature_privacy = FeaturePrivacy.of(spec.privacy)
        smoothing = spec.training.label_smoothing
        loss: Callable[..., Tensor] = goal.learning.loss
        self._loss = partial(loss, label_smoothing=smoothing) if smoothing else loss
        self._augment = find_augmentation(spec.training.augment)
        self._test: dict[int, tuple[Tensor, Tensor]] = {}

    def train(
        self,
        job: int,
        device: int,
        weights: Weights,
        objective: Objective,
        correction: Weights | None = None,
        control: Control = UNTIL_THE_END,
    ) -> TrainingResult:
        """Trains ``weights`` on the samples of one device. ``correction`` is added to every gradient; raises
        `Cancelled` if ``control.stop`` says so."""
        self.model.load(weights)
        x, y = self._samples(device)
        if control.flipped:
            y = self.dataset.classes - 1 - y
        seed = seed64(self.spec.seed, "job", job)
        corrected = None if correction is None else self.model.trained_parts(correction)
        loss, losses, augment = self._loss, self.goal.learning.losses, self._augment
        stop, enough = control.stop, control.enough
        how = LocalTraining(self.spec.training, objective, self.dp, loss, losses, stop, enough, corrected, augment)
        figures = train(self.model.network, x, y, how, seed, None if self.repeatable else secrets.randbits(63))
        return TrainingResult(self.model.save(), *figures)

    def features(self, weights: Weights, kind: FeatureKind, devices: Sequence[int]) -> npt.NDArray[np.float32]:
        """One feature vector per device: summed in float64, returned as float32, zero for devices without samples."""
        rows: list[Tensor | None] = []
        if kind != "labels":
            self.model.load(weights)
            layer = find_layer(self.model.network, self.feature_layer)
        for device in devices:
            x, y = self._samples(device, inputs=kind != "labels")
            if not len(y):
                rows.append(None)
            elif kind == "labels":
                rows.append(label_histogram(y, self.dataset.classes))
            else:
                rows.append(feature_sum(self.model.network, layer, x, counts=kind == "activation_counts"))
        width = next((len(row) for row in rows if row is not None), 0)
        table = np.zeros((len(rows), width), dtype=np.float32)
        for i, (device, row) in enumerate(zip(devices, rows, strict=True)):
            if row is not None:
                noise = self._feature_noise(weights, device) if self.feature_privacy.noise else None
                table[i] = self.feature_privacy.applied(row.numpy(), noise)
        return table

    def feature_width(self, kind: FeatureKind) -> int:
        """Length of a feature vector, found with one test sample."""
        if kind == "labels":
            return self.dataset.classes
        layer = find_layer(self.model.network, self.feature_layer)
        x = self._to_processor(self.dataset.inputs(self.dataset.test.x[:1]))
        return len(feature_sum(self.model.network, layer, x))

    def _feature_noise(self, weights: Weights, device: int) -> np.random.Generator:
        """In a simulation the noise is a function of seed, device and weights."""
        if not self.repeatable:
            return np.random.default_rng()
        digest = hashlib.blake2b(weights.tobytes(), digest_size=8).digest()
        return rng(self.spec.seed, "feature noise", device, int.from_bytes(digest, "little"))

    def evaluate(self, weights: Weights, chunk: int) -> Score:
        """The score on one chunk of the test samples; the caller adds the chunks in order."""
        self.model.load(weights)
        if chunk not in self._test:
            part = slice(chunk * EVALUATION_CHUNK, (chunk + 1) * EVALUATION_CHUNK)
            x = self._to_processor(self.dataset.inputs(self.dataset.test.x[part]))
            x = x.clone()  # aligned memory: the same bits in every run
            self._test[chunk] = x, self.dataset.test.y[part].to(self.processor)
        return evaluate(self.model.network, *self._test[chunk], self.goal.learning, self.goal.metrics)

    def evaluate_devices(self, weights: Weights, places: range) -> list[Score]:
        """The score of each of these places in the panel on its own samples."""
        assert self.panel is not None
        self.model.load(weights)
        split = self.dataset.test if self.panel.of_test else self.dataset.train
        scores = []
        for place in places:
            index = torch.from_numpy(self.panel.samples.device(place))
            x, y = self._to_processor(self.dataset.inputs(split.x[index])), split.y[index].to(self.processor)
            scores.append(evaluate(self.model.network, x, y, self.goal.learning, self.goal.metrics[:1]))
        return scores

    @property
    def evaluation_chunks(self) -> int:
        """Number of chunks of the test samples."""
        return -(-len(self.dataset.test) // EVALUATION_CHUNK)

    def feature_chunks(self) -> list[range]:
        """Ranges of consecutive devices, each with about `FEATURE_CHUNK` samples in total."""
        return self.partition.chunks(FEATURE_CHUNK)

    def _samples(self, device: int, inputs: bool = True) -> tuple[Tensor, Tensor]:
        return self.gather(self.partition.device(device), inputs)

    def gather(self, samples: npt.NDArray[np.int64], inputs: bool = True) -> tuple[Tensor, Tensor]:
        """Training samples in the form the network takes, and their labels; without ``inputs`` only the labels."""
        index = torch.from_numpy(samples)
        y = self.dataset.train.y[index].to(self.processor)
        x = self.dataset.inputs(self.dataset.train.x[index]) if inputs else y
        return self._to_processor(x), y

    def first_tests(self, count: int) -> tuple[Tensor, Tensor]:
        """The first test samples in the form the network takes, repeated if there are fewer than ``count``."""
        index = torch.arange(count) % len(self.dataset.test)
        x = self.dataset.inputs(self.dataset.test.x[index])
        return self._to_processor(x), self.dataset.test.y[index].to(self.processor)

    def _to_processor(self, x: Tensor) -> Tensor:
        """Images use channels-last memory, like the network: up to twice as fast on CPUs."""
        return x.to(self.processor, memory_format=torch.channels_last) if x.dim() == 4 else x.to(self.processor)


def _persistent_buffers(network: nn.Module) -> Iterable[tuple[str, Tensor]]:
    saved = network.state_dict().keys()
    return ((name, buffer) for name, buffer in network.named_buffers() if name in saved)
