"""The samples of an experiment, and how they are split over its devices."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cabafl import data
from cabafl.config import HUB_KEYS, DataSection, Experiment, TaskSection
from cabafl.data.dataset import Dataset, Partition, Split
from cabafl.data.given import dataset_from, given_name
from cabafl.data.loader import read, read_test
from cabafl.data.partition import make_partition
from cabafl.errors import UserError
from cabafl.learning.builtin_tasks import find_task
from cabafl.names import GIVEN, is_function, is_given
from cabafl.rng import rng


def no_classes(what: str, experiment: Experiment, accepted: str) -> UserError:
    return UserError(
        f"{what}: the samples have no classes (task.name = {experiment.task.name!r}); accepted: {accepted}"
    )


def with_given(experiment: Experiment, given: Any) -> tuple[Experiment, Dataset | None]:
    """The data handed in, if any, as a data set, and the experiment with a name for them that has their fingerprint."""
    section = experiment.data
    if given is None:
        return experiment, None
    if not is_given(section.dataset) and "dataset" in section.model_fields_set:
        raise UserError(f"data.dataset = {section.dataset!r}: data are handed in, too; accepted: given, or no data")
    dataset = dataset_from(given, hub_options(section, experiment.task), _given_error)
    if not len(dataset.train):
        raise _given_error("there are test samples only; accepted: training samples beside them")
    name = given_name(dataset)
    if section.dataset.startswith(f"{GIVEN}:") and section.dataset != name:
        raise UserError(f"data: {name}, but the run has {section.dataset}; accepted: the data that it began with")
    named = section.model_copy(update={"dataset": name})
    return experiment.model_copy(update={"data": named}), dataset


def _given_error(reason: object) -> UserError:
    return UserError(f"data: cannot be used: {' '.join(str(reason).split())}")


def hub_options(section: DataSection, task: TaskSection) -> data.HubOptions:
    """The keys that say what is what in a table, and whether arrays are text."""
    keys = {key: getattr(section, key) for key in HUB_KEYS}
    return data.HubOptions(**keys, tokens=find_task(task).targets == "tokens")


def load_data(experiment: Experiment, test_only: bool = False) -> Dataset:
    """All samples of the experiment's data set. ``test_only``: its training samples may be missing."""
    section = experiment.data
    name, options = section.dataset, hub_options(section, experiment.task)
    devices = None if section.devices == "auto" else section.devices
    if is_given(name):
        raise UserError(f"data.dataset = {name!r}: handed in from Python; accepted: simulate or resume with data=...")
    if is_function(name):
        dataset = read_test(name, options) if test_only else read(name, devices, section.partition, options)
    else:
        root = Path(section.root).expanduser() if section.root else None
        dataset = data.load(
            name,
            root=root,
            labels=section.labels,
            seed=experiment.seed,
            devices=devices,
            hub=options,
            targets=find_task(experiment.task).targets,
        )
    if not len(dataset.train) and not test_only:
        raise UserError(f"data.dataset = {name!r}: has test samples only; accepted: on a server (`cabafl deploy`)")
    return dataset


def evaluated_data(experiment: Experiment, given: Dataset | None = None, deployed: bool = False) -> Dataset:
    """The data set with the test samples on which the runs of an experiment are evaluated; ``deployed``: on a server,
    whose devices have the training samples."""
    dataset = load_data(experiment, test_only=deployed) if given is None else given
    if len(dataset.train):
        return make_data(experiment, dataset)[0]
    return limit_test(dataset, experiment.data.test_limit, experiment.seed)


def make_data(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Dataset, Partition]:
    """The data set, cut to its limits, and the partition. ``dataset``: those samples instead of the experiment's."""
    section, seed = experiment.data, experiment.seed
    devices = None if section.devices == "auto" else section.devices
    if dataset is None:
        dataset = load_data(experiment)
    if section.partition in ("dirichlet", "shards") and not dataset.has_classes:
        raise no_classes(f"data.partition = {section.partition!r}", experiment, "iid, natural")

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
        return limit_test(dataset, section.test_limit, seed), split(dataset.train, devices, section.min_samples)
    # Choose users before applying the limit: otherwise every user would be left with very few samples.
    partition = split(dataset.train, devices, section.min_samples)
    dataset = limit_test(_test_of_users(dataset, partition), section.test_limit, seed)
    if limit is None:
        return dataset, partition
    dataset = dataset.with_train(_sample_users(dataset.train, partition, limit, seed))
    return dataset, split(dataset.train, None, 1)


def limit_test(dataset: Dataset, limit: int | None, seed: int) -> Dataset:
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
