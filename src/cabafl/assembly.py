"""Builds the parts of a run from its experiment: data, network, devices, method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from cabafl.checked import make_method
from cabafl.config import Experiment, TrainingSection
from cabafl.data.dataset import Dataset, Partition
from cabafl.engine.average import AverageRule
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.defence import DefenceRules
from cabafl.engine.schedule import make_schedule
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
from cabafl.fleet.watts import fleet_power, tier_power
from cabafl.learning.builtin_tasks import chosen_metrics, find_task
from cabafl.learning.dp import per_sample_gradients
from cabafl.learning.features import find_layer
from cabafl.learning.panel import Panel, choose_panel
from cabafl.learning.probe import check_network
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.learning.training import passes_of
from cabafl.learning.weights import start_from
from cabafl.loggers.finding import find_loggers
from cabafl.methods.base import Method
from cabafl.own_code import blaming
from cabafl.recording.events import Event
from cabafl.recording.scale import MetricInfo
from cabafl.samples import limit_test, load_data, make_data, no_classes


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
    with blaming(own_code(experiment)):
        return _assembled(experiment, given)


def _assembled(experiment: Experiment, given: Dataset | None) -> SimulationParts:
    method = make_method(experiment)
    make_schedule(experiment.training, experiment.run.virtual_time)  # a wrong one is found before anything runs
    find_loggers(experiment.run.log)
    dataset, partition = make_data(experiment, given)
    task = make_task(experiment, dataset, partition)
    task.panel = make_panel(experiment, dataset, partition)
    check_target(experiment, task.goal.metrics[0].info)
    slots = slots_for(experiment, len(partition), method)
    method = settled(method, len(partition), simulated=True)
    check_fit(method, task)
    if experiment.fleet.faults.attack == "label-flip" and not dataset.has_classes:
        raise no_classes("fleet.faults.attack = 'label-flip'", experiment, "sign-flip, noise, scale, claim")
    try:
        fleet = make_fleet(experiment, partition.sizes, task.model.layout.bytes)
    except ValueError as error:
        raise UserError(str(error)) from None
    training = experiment.training
    if training.max_steps is not None:
        fleet = replace(fleet, most_passes=passes_of(training.max_steps, training.batch_size, partition.sizes))
    return SimulationParts(experiment, method, task, slots, fleet, make_faults(experiment, len(fleet)))


def assemble_server(experiment: Experiment, devices: int, say: Callable[[str], None] | None = None) -> Parts:
    """Builds the parts of a server for ``devices`` real devices; its task has test samples only."""
    with blaming(own_code(experiment)):
        method = make_method(experiment)
        make_schedule(experiment.training, experiment.run.wall_time)
        find_loggers(experiment.run.log)
        slots = slots_for(experiment, devices, method)
        method = settled(method, devices, simulated=False)
        task = make_server_task(experiment, say)
        check_target(experiment, task.goal.metrics[0].info)
        check_fit(method, task)
        return Parts(experiment, method, task, slots)


def own_code(experiment: Experiment) -> dict[str, str]:
    """The settings that may name code of the user's, apart from data, which the loader looks after."""
    training = experiment.training
    return {
        "method.name": experiment.method.name,
        "model.name": experiment.model.name,
        "task.name": experiment.task.name,
        "training.optimiser": training.optimiser,
        "training.schedule": training.schedule,
        "training.augment": training.augment or "",
    }


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
        momentum=training.momentum,
        defence=DefenceRules(**run.defence.model_dump()),
        panel=parts.task.panel,
        schedule=make_schedule(training, seconds),
        metrics=parts.task.goal.metrics,
        average=None if run.average is None else AverageRule(run.average, run.average_power, run.average_decay),
        keep_best=run.keep != "last",
    )


def announce(method: Method, warn: Callable[[str], None] | None) -> None:
    """Warns about what devices have to reveal for this method."""
    if warn is not None and method.needs().features == "labels":
        warn(f"method.name = {method.name}: every device reports its number of samples per class to the server")


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
    if needs.features == "labels" and not task.dataset.has_classes:
        key, accepted = f"name = {method.name!r}", "another method"
        if "features" in type(method.parameters).model_fields:
            key, accepted = "features = 'labels'", "activations, activation_counts"
        raise UserError(
            f"method.{key}: the samples have no classes (task.name = {task.spec.task.name!r}); accepted: {accepted}"
        )
    if needs.features not in (None, "labels"):
        find_layer(task.model.network, task.feature_layer)
    if needs.plain_sgd:
        check_plain_sgd(method, task.spec.training)
    if task.dp is None:
        return
    if needs.training_loss:
        raise UserError(
            f"privacy.dp_noise: devices then report no training loss, which method.name = {method.name!r} needs; "
            "accepted: another method, or wkafl with another method.stage_rule"
        )
    with per_sample_gradients(task.model.network):
        pass  # raises for layers it cannot handle


def check_plain_sgd(method: Method, training: TrainingSection) -> None:
    """Raises `UserError` if devices do not train with SGD and plain momentum."""
    if training.optimiser != "sgd":
        key, value, accepted = "optimiser", training.optimiser, "sgd"
    elif training.nesterov:
        key, value, accepted = "nesterov", "true", "false"
    else:
        return
    raise UserError(
        f"training.{key} = {value}: method.name = {method.name!r} computes the gradients of a device from the change "
        f"of its model, which only SGD with plain momentum allows; accepted: {accepted}"
    )


def check_target(experiment: Experiment, metric: MetricInfo) -> None:
    """Raises `UserError` for a target that no evaluation can reach, or every one does."""
    target = experiment.run.stop_at
    if target is None or metric.possible(target):
        return
    if not metric.percent:
        raise UserError(f"run.stop_at = {target:g}: no {metric.name} can reach it; accepted: a number{metric.bound}")
    hint = f", {target / 100:g} for {target:g} %" if 1 < target <= 100 else ""
    raise UserError(f"run.stop_at = {target:g}: {metric.name} is a share; accepted: above 0, at most 1{hint}")


def settled(method: Method, devices: int, simulated: bool) -> Method:
    """The method with parameters that suit its fleet; see `Parameters.settled`."""
    parameters = method.parameters.settled(devices, simulated)
    return method if parameters is method.parameters else type(method)(parameters)


def metric_of(experiment: Experiment) -> MetricInfo:
    """The metric that runs of the experiment are judged by; raises `UserError` if they have a target beyond it."""
    metric = chosen_metrics(find_task(experiment.task), experiment.task)[0].info
    check_target(experiment, metric)
    return metric


def make_task(experiment: Experiment, dataset: Dataset, partition: Partition) -> Task:
    """The network with its data, on the processor of the experiment."""
    processor = experiment.run.device
    check_processor(processor)
    task = TaskSpec.of(experiment, dataset).build(dataset, partition, processor)
    if experiment.model.weights is not None:
        start_from(task.model, Path(experiment.model.weights).expanduser())
    check_network(task)
    return task


def check_processor(name: str) -> None:
    """Raises `UserError` for a GPU that is not there."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"run.device = {name!r}: torch finds no such GPU; accepted here: cpu")


def make_server_task(experiment: Experiment, say: Callable[[str], None] | None = None) -> Task:
    """Network and test samples; the training samples are on the devices. ``say`` is told if it has no others."""
    dataset, panel = load_data(experiment, test_only=True), None
    if len(dataset.train):
        dataset, partition = make_data(experiment, dataset)
        panel = make_panel(experiment, dataset, partition)
    else:
        dataset = limit_test(dataset, experiment.data.test_limit, experiment.seed)
        if say is not None:
            say(f"{experiment.data.dataset}: {len(dataset.test)} test samples; the devices bring their own to train on")
    if experiment.run.evaluate_devices is not None and (panel is None or not panel.of_test):
        raise UserError(
            f"run.evaluate_devices = {experiment.run.evaluate_devices}: the training samples are on the devices; "
            "accepted: none, or a natural partition of data whose users have test samples"
        )
    nothing = dataset.train.select(torch.zeros(0, dtype=torch.int64))
    nobody = Partition(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    task = make_task(experiment, dataset.with_train(nothing), nobody)
    task.panel = panel
    return task


def make_panel(experiment: Experiment, dataset: Dataset, partition: Partition) -> Panel | None:
    """The devices that are evaluated on their own samples, if any."""
    count, natural = experiment.run.evaluate_devices, experiment.data.partition == "natural"
    return None if count is None else choose_panel(dataset, partition, count, experiment.seed, natural)


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
