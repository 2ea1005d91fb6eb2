"""Names of data sets, partitions and label levels: `config` validates them, `data` implements them.

Imports nothing heavy: `cabafl --help` and `cabafl config` load this module.
"""

from typing import Literal, get_args

DatasetName = Literal[
    "mnist5k",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "femnist",
    "shakespeare",
    "activity",
    "npz",
    "synthetic",
]
PartitionName = Literal["iid", "dirichlet", "natural", "shards", "coarse-balanced"]
LabelLevel = Literal["fine", "coarse"]  # of CIFAR-100: 100 or 20 classes

DATASETS: tuple[str, ...] = get_args(DatasetName)
PARTITIONS: tuple[str, ...] = get_args(PartitionName)
LABEL_LEVELS: tuple[str, ...] = get_args(LabelLevel)
