"""From an experiment to the parts that run it: data, network, devices, method."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cabafl import data, methods, models
from cabafl.config import Experiment
from cabafl.data.dataset import Dataset, Split
from cabafl.data.partition import Partition, make_partition
from cabafl.errors import UserError
from cabafl.fleet import TIERS, Faults, Fleet, config_counts, gaussian_fleet, read_trace, tiered_fleet
from cabafl.learning.dp import DpSgd, per_sample_gradients
from cabafl.learning.features import find_layer
from cabafl.learning.privacy import FeaturePrivacy
from cabafl.learning.task import Task
from cabafl.learning.training import LocalTraining, seeded
from cabafl.learning.weights import FlatModel
from cabafl.methods.base import Method, Parameters
from cabafl.rng import rng, seed64
from cabafl.validation import unknown, validated


@dataclass(frozen=True)
class Parts:
    """Everything an engine needs for one run."""

    experiment: Experiment
    task: Task
    fleet: Fleet
    faults: Faults
    slots: int
    method: Method
    parameters: Parameters


def assemble(experiment: Experiment) -> Parts:
    """Builds all parts; whatever does not fit together is a `UserError` before anything runs."""
    method, parameters = make_method(experiment)
    dataset, partition = make_data(experiment)
    task = make_task(experiment, dataset, partition)
    check_fit(experiment, parameters, task)
    slots = slots_for(experiment, len(partition), method)
    try:
        fleet = make_fleet(experiment, partition.sizes, task.model.layout.bytes)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Parts(experiment, task, fleet, make_faults(experiment, len(fleet)), slots, method, parameters)


def slots_for(experiment: Experiment, devices: int, method: Method) -> int:
    """How many of ``devices`` train at a time, if that suits the method."""
    try:
        slots = experiment.slots(devices)
        method.check(slots)
    except ValueError as error:
        raise UserError(str(error)) from None
    return slots


def check_fit(experiment: Experiment, parameters: Parameters, task: Task) -> None:
    """Whether network, privacy and method go together."""
    if getattr(parameters, "features", "labels") != "labels":
        find_layer(task.model.network, task.feature_layer)
    if experiment.privacy.dp_clip is None:
        return
    if getattr(parameters, "stage_rule", None) == "loss":
        raise UserError("privacy.dp_noise: with it devices tell no training loss; accepted: another method.stage_rule")
    with per_sample_gradients(task.model.network):
        pass  # what does not fit is told here, before anything runs


def make_method(experiment: Experiment) -> tuple[Method, Parameters]:
    """The method with its own keys checked."""
    name = experiment.method.name
    try:
        cls = methods.find(name)
    except KeyError:
        raise unknown("method.name", name, [*methods.NAMES, "my_module:MyMethod"]) from None
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(f"method.name = {name!r}: cannot be used: {error}") from None
    parameters = validated(cls.Parameters, experiment.method.parameters, "method")
    return cls(parameters), parameters


def make_data(experiment: Experiment) -> tuple[Dataset, Partition]:
    """The data set, cut to its limits, and who holds what."""
    section, seed = experiment.data, experiment.seed
    devices = None if section.devices == "auto" else section.devices
    root = Path(section.root).expanduser() if section.root else None
    dataset = data.load(section.dataset, root=root, labels=section.labels, seed=seed, devices=devices)

    def split(train: Split, devices: int | None, min_samples: int) -> Partition:
        return make_partition(
            section.partition,
            train,
            devices,
            beta=section.beta,
            min_samples=min_samples,
            shards=section.shards,
            seed=seed,
        )

    limit = section.train_limit
    if section.partition != "natural":
        if limit is not None:
            dataset = dataset.with_train(_sample(dataset.train, limit, seed, "train limit"))
        return _limit_test(dataset, section.test_limit, seed), split(dataset.train, devices, section.min_samples)
    # First the users, then the limit: the other way round it would leave every user next to nothing.
    partition = split(dataset.train, devices, section.min_samples)
    dataset = _limit_test(_test_of_users(dataset, partition), section.test_limit, seed)
    if limit is None:
        return dataset, partition
    dataset = dataset.with_train(_sample_users(dataset.train, partition, limit, seed))
    return dataset, split(dataset.train, None, 1)


def _limit_test(dataset: Dataset, limit: int | None, seed: int) -> Dataset:
    return dataset if limit is None else dataset.with_test(_sample(dataset.test, limit, seed, "test limit"))


def _test_of_users(dataset: Dataset, partition: Partition) -> Dataset:
    """Where test samples belong to the users that train, those of users left out are left out too."""
    train, test = dataset.train.users, dataset.test.users
    if train is None or test is None or not torch.isin(test, train).any():
        return dataset
    chosen = torch.isin(test, train[torch.from_numpy(partition.indices)])
    return dataset.with_test(dataset.test.select(torch.nonzero(chosen).flatten()))


def _sample(split: Split, limit: int, seed: int, purpose: str) -> Split:
    if limit >= len(split):
        return split
    index = np.sort(rng(seed, purpose).permutation(len(split))[:limit])
    return split.select(torch.from_numpy(index))


def _sample_users(train: Split, users: Partition, limit: int, seed: int) -> Split:
    """At most ``limit`` samples of the given users, at least one of each."""
    if limit < len(users):
        raise UserError(f"data.train_limit = {limit}: fewer than the {len(users)} users; accepted: from {len(users)}")
    draw = rng(seed, "train limit")
    firsts = users.offsets[:-1] + draw.integers(0, users.sizes)
    others = np.setdiff1d(np.arange(len(users.indices)), firsts)
    chosen = np.concatenate([firsts, draw.permutation(others)[: limit - len(firsts)]])
    return train.select(torch.from_numpy(np.sort(users.indices[chosen])))


def make_task(experiment: Experiment, dataset: Dataset, partition: Partition) -> Task:
    """The network, initialised from the seed, with the data and the local training."""
    section = experiment.model
    device = experiment.run.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"run.device = {device!r}: torch finds no such GPU; accepted here: cpu")
    with seeded(seed64(experiment.seed, "initial weights")):
        network = models.build(section.name, dataset.kind, dataset.input_shape, dataset.classes)
    layer = section.feature_layer or models.default_feature_layer(section.name, network)
    if section.feature_layer is not None:
        find_layer(network, layer)
    training, private = experiment.training, experiment.privacy
    settings = LocalTraining(
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        dp=None if private.dp_clip is None else DpSgd(private.dp_clip, private.dp_noise),
    )
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = FlatModel(network)
    privacy = FeaturePrivacy(private.feature_clip, private.feature_noise)
    return Task(dataset, partition, model, settings, experiment.seed, layer, device, privacy)


def make_fleet(experiment: Experiment, sizes: np.ndarray[tuple[int], np.dtype[np.int64]], model_bytes: int) -> Fleet:
    """The devices' speeds, links and powers."""
    section = experiment.fleet
    link = section.link_seconds
    if section.bandwidth_mbps is not None:
        link = 2 * 8 * model_bytes / (section.bandwidth_mbps * 1e6)
    if section.tiers is None:
        return gaussian_fleet(
            sizes,
            experiment.seed,
            mean=section.seconds_per_sample,
            deviation=section.seconds_per_sample_deviation,
            floor=section.seconds_per_sample_floor,
            link_seconds=link,
            latency=section.extra_latency,
            compute_watts=section.compute_watts,
            radio_watts=section.radio_watts,
        )
    counts = config_counts(section.tiers, len(sizes)) if isinstance(section.tiers, str) else section.tiers
    return tiered_fleet(
        sizes,
        experiment.seed,
        counts,
        link_seconds=link,
        latency=section.extra_latency,
        compute_watts={tier: section.tier_compute_watts.get(tier, section.compute_watts) for tier in TIERS},
        radio_watts={tier: section.tier_radio_watts.get(tier, section.radio_watts) for tier in TIERS},
    )


def make_faults(experiment: Experiment, devices: int) -> Faults:
    """What goes wrong, and when devices are away."""
    section = experiment.fleet.faults
    return Faults(
        seed=experiment.seed,
        loss=section.loss,
        corrupt=section.corrupt,
        slowdown=section.slowdown,
        slowdown_factor=section.slowdown_factor,
        present_seconds=section.present_seconds,
        absent_seconds=section.absent_seconds,
        trace=read_trace(Path(section.trace), devices) if section.trace else {},
    )
