"""Builds the parts of a run from its experiment: data, network, devices, method."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cabafl import data
from cabafl.checked import make_method
from cabafl.config import HUB_KEYS, DataSection, Experiment, FleetSection
from cabafl.data.dataset import Dataset, Partition, Split
from cabafl.data.given import dataset_from, given_name
from cabafl.data.loader import read, read_test
from cabafl.data.partition import make_partition
from cabafl.engine.average import AverageRule
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.defence import DefenceRules
from cabafl.errors import UserError
from cabafl.execution.base import Executor
from cabafl.fleet import (
    TIERS,
    Attack,
    Faults,
    Fleet,
    Speeds,
    config_counts,
    gaussian_fleet,
    read_trace,
    tiered_fleet,
)
from cabafl.fleet.attacks import STRENGTHS
from cabafl.learning.dp import per_sample_gradients
from cabafl.learning.features import find_layer
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.methods.base import Method
from cabafl.names import GIVEN, is_function, is_given
from cabafl.power import BOARDS, DEFAULT_POWER, Power
from cabafl.recording.events import Event
from cabafl.rng import rng


@dataclass(frozen=True)
class Parts:
    """The parts of a run on either clock."""

    experiment: Experiment
    method: Method
    task: Task
    slots: int


@dataclass(frozen=True)
class SimulationParts(Parts):
    """The parts of a simulation: also the simulated devices and their faults."""

    fleet: Fleet
    faults: Faults


def assemble(experiment: Experiment, given: Dataset | None = None) -> SimulationParts:
    """Builds all parts of a simulation; parts that do not fit together are a `UserError` before anything runs.

    ``given``: the samples, if they were handed in.
    """
    method = make_method(experiment)
    dataset, partition = make_data(experiment, given)
    task = make_task(experiment, dataset, partition)
    slots = slots_for(experiment, len(partition), method)
    method = settled(method, len(partition), simulated=True)
    check_fit(method, task)
    try:
        fleet = make_fleet(experiment, partition.sizes, task.model.layout.bytes)
    except ValueError as error:
        raise UserError(str(error)) from None
    return SimulationParts(experiment, method, task, slots, fleet, make_faults(experiment, len(fleet)))


def assemble_server(experiment: Experiment, devices: int, say: Callable[[str], None] | None = None) -> Parts:
    """Builds the parts of a server for ``devices`` real devices; its task has test samples only."""
    method = make_method(experiment)
    slots = slots_for(experiment, devices, method)
    method = settled(method, devices, simulated=False)
    task = make_server_task(experiment, say)
    check_fit(method, task)
    return Parts(experiment, method, task, slots)


def engine_setup(parts: Parts, executor: Executor, emit: Callable[[Event], None], seconds: float | None) -> EngineSetup:
    """What the engine of a run needs; the run lasts ``seconds`` on its engine's clock (None: no limit)."""
    run, training, model = parts.experiment.run, parts.experiment.training, parts.task.model
    limits = Limits(
        seconds=seconds,
        max_dispatches=run.max_dispatches,
        evaluate_every=run.evaluate_every,
        evaluate_versions=run.evaluate_versions,
        slot_timeout=run.slot_timeout,
        max_staleness=run.max_staleness,
    )
    return EngineSetup(
        method=parts.method,
        executor=executor,
        initial=model.save(),
        emit=emit,
        seed=parts.experiment.seed,
        slots=parts.slots,
        limits=limits,
        trainable=model.layout.trainable,
        epochs=training.epochs,
        learning_rate=training.learning_rate,
        defence=DefenceRules(**run.defence.model_dump()),
        average=None if run.average is None else AverageRule(run.average, run.average_power, run.average_decay),
    )


def announce(method: Method, warn: Callable[[str], None] | None) -> None:
    """Warns about what devices have to reveal for this method."""
    if warn is not None and method.needs().features == "labels":
        warn("method.features = labels: every device reports its number of samples per class to the server")


def slots_for(experiment: Experiment, devices: int, method: Method) -> int:
    """How many of ``devices`` train at a time, if that suits the method."""
    try:
        slots = experiment.slots(devices)
        method.check(slots)
    except ValueError as error:
        raise UserError(str(error)) from None
    return slots


def check_fit(method: Method, task: Task) -> None:
    """Raises `UserError` if network, privacy and method do not go together."""
    needs = method.needs()
    if needs.features not in (None, "labels"):
        find_layer(task.model.network, task.feature_layer)
    if task.dp is None:
        return
    if needs.training_loss:
        raise UserError("privacy.dp_noise: devices then report no training loss; accepted: another method.stage_rule")
    with per_sample_gradients(task.model.network):
        pass  # raises for layers it cannot handle


def settled(method: Method, devices: int, simulated: bool) -> Method:
    """The method with parameters that suit its fleet; see `Parameters.settled`."""
    parameters = method.parameters.settled(devices, simulated)
    return method if parameters is method.parameters else type(method)(parameters)


def with_given(experiment: Experiment, given: Any) -> tuple[Experiment, Dataset | None]:
    """The data handed in, if any, as a data set, and the experiment with a name for them that has their fingerprint."""
    section = experiment.data
    if given is None:
        return experiment, None
    if not is_given(section.dataset) and "dataset" in section.model_fields_set:
        raise UserError(f"data.dataset = {section.dataset!r}: data are handed in, too; accepted: given, or no data")
    dataset = dataset_from(given, hub_options(section), _given_error)
    name = given_name(dataset)
    if section.dataset.startswith(f"{GIVEN}:") and section.dataset != name:
        raise UserError(f"data: {name}, but the run has {section.dataset}; accepted: the data that it began with")
    named = section.model_copy(update={"dataset": name})
    return experiment.model_copy(update={"data": named}), dataset


def _given_error(reason: object) -> UserError:
    return UserError(f"data: cannot be used: {' '.join(str(reason).split())}")


def hub_options(section: DataSection) -> data.HubOptions:
    """The keys that say what is what in a table."""
    return data.HubOptions(**{key: getattr(section, key) for key in HUB_KEYS})


def load_data(experiment: Experiment, test_only: bool = False) -> Dataset:
    """All samples of the experiment's data set. ``test_only``: its training samples may be missing."""
    section = experiment.data
    name, options = section.dataset, hub_options(section)
    devices = None if section.devices == "auto" else section.devices
    if is_given(name):
        raise UserError(f"data.dataset = {name!r}: handed in from Python; accepted: simulate or resume with data=...")
    if is_function(name):
        dataset = read_test(name, options) if test_only else read(name, devices, section.partition, options)
    else:
        root = Path(section.root).expanduser() if section.root else None
        dataset = data.load(name, root=root, labels=section.labels, seed=experiment.seed, devices=devices, hub=options)
    if not len(dataset.train) and not test_only:
        raise UserError(f"data.dataset = {name!r}: has test samples only; accepted: on a server (`cabafl deploy`)")
    return dataset


def make_data(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Dataset, Partition]:
    """The data set, cut to its limits, and the partition. ``dataset``: those samples instead of the experiment's."""
    section, seed = experiment.data, experiment.seed
    devices = None if section.devices == "auto" else section.devices
    if dataset is None:
        dataset = load_data(experiment)

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
    # Choose users before applying the limit: otherwise every user would be left with very few samples.
    partition = split(dataset.train, devices, section.min_samples)
    dataset = _limit_test(_test_of_users(dataset, partition), section.test_limit, seed)
    if limit is None:
        return dataset, partition
    dataset = dataset.with_train(_sample_users(dataset.train, partition, limit, seed))
    return dataset, split(dataset.train, None, 1)


def _limit_test(dataset: Dataset, limit: int | None, seed: int) -> Dataset:
    return dataset if limit is None else dataset.with_test(_sample(dataset.test, limit, seed, "test limit"))


def _test_of_users(dataset: Dataset, partition: Partition) -> Dataset:
    """If training and test samples have the same users, drops the test samples of users that do not train."""
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
    """At most ``limit`` samples, at least one of every user."""
    if limit < len(users):
        raise UserError(f"data.train_limit = {limit}: fewer than the {len(users)} users; accepted: from {len(users)}")
    draw = rng(seed, "train limit")
    firsts = users.offsets[:-1] + draw.integers(0, users.sizes)
    others = np.setdiff1d(np.arange(len(users.indices)), firsts)
    chosen = np.concatenate([firsts, draw.permutation(others)[: limit - len(firsts)]])
    return train.select(torch.from_numpy(np.sort(users.indices[chosen])))


def make_task(experiment: Experiment, dataset: Dataset, partition: Partition) -> Task:
    """The network with its data, on the processor of the experiment."""
    processor = experiment.run.device
    check_processor(processor)
    if not dataset.classes:
        name = experiment.data.dataset
        raise UserError(f"data.dataset = {name!r}: its targets are numbers; accepted: classes, as integers or text")
    return TaskSpec.of(experiment, dataset).build(dataset, partition, processor)


def check_processor(name: str) -> None:
    """Raises `UserError` for a GPU that is not there."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"run.device = {name!r}: torch finds no such GPU; accepted here: cpu")


def make_server_task(experiment: Experiment, say: Callable[[str], None] | None = None) -> Task:
    """Network and test samples; the training samples are on the devices. ``say`` is told if it has no others."""
    dataset = load_data(experiment, test_only=True)
    if len(dataset.train):
        dataset, _ = make_data(experiment, dataset)
    else:
        dataset = _limit_test(dataset, experiment.data.test_limit, experiment.seed)
        if say is not None:
            say(f"{experiment.data.dataset}: {len(dataset.test)} test samples; the devices bring their own to train on")
    nothing = dataset.train.select(torch.zeros(0, dtype=torch.int64))
    nobody = Partition(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return make_task(experiment, dataset.with_train(nothing), nobody)


def make_fleet(experiment: Experiment, sizes: np.ndarray[tuple[int], np.dtype[np.int64]], model_bytes: int) -> Fleet:
    """The simulated devices with their speeds, link times and power."""
    section = experiment.fleet
    link = section.link_seconds
    if section.bandwidth_mbps is not None:
        link = 2 * 8 * model_bytes / (section.bandwidth_mbps * 1e6)
    answer_share = section.forward_share / experiment.training.epochs
    if section.tiers is None:
        return gaussian_fleet(
            sizes,
            experiment.seed,
            Speeds(section.seconds_per_sample, section.seconds_per_sample_deviation, section.seconds_per_sample_floor),
            link_seconds=link,
            latency=section.extra_latency,
            answer_share=answer_share,
            power=fleet_power(section),
        )
    counts = config_counts(section.tiers, len(sizes)) if isinstance(section.tiers, str) else section.tiers
    return tiered_fleet(
        sizes,
        experiment.seed,
        counts,
        link_seconds=link,
        latency=section.extra_latency,
        answer_share=answer_share,
        power={tier: tier_power(section, tier) for tier in TIERS},
    )


def fleet_power(section: FleetSection) -> Power:
    """What a device draws: the keys in watts, then the board, then the defaults."""
    board = DEFAULT_POWER if section.power is None else BOARDS[section.power]
    keys = section.compute_watts, section.radio_watts, section.idle_watts
    return Power(*(default if watts is None else watts for watts, default in zip(keys, board, strict=True)))


def tier_power(section: FleetSection, tier: str) -> Power:
    """What a device of a tier draws: the tier's watts, then the tier's board, then `fleet_power`."""
    board = BOARDS[section.tier_power[tier]] if tier in section.tier_power else fleet_power(section)
    return Power(
        section.tier_compute_watts.get(tier, board.compute),
        section.tier_radio_watts.get(tier, board.radio),
        section.tier_idle_watts.get(tier, board.idle),
    )


def make_faults(experiment: Experiment, devices: int) -> Faults:
    """The simulated faults: probabilities per job, and absences."""
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
        attack=make_attack(experiment, devices),
    )


def make_attack(experiment: Experiment, devices: int) -> Attack | None:
    """The simulated liars, if the experiment has any."""
    section = experiment.fleet.faults
    if section.attack is None or round(section.attack_share * devices) == 0:
        return None
    strength = section.attack_strength or STRENGTHS[section.attack]
    return Attack(section.attack, section.attack_share, strength, devices, experiment.seed)
