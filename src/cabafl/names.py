"""Names that experiment files accept: `config` validates them, the rooms that implement them use them too.

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
AttackName = Literal["sign-flip", "noise", "scale", "label-flip", "claim"]  # what simulated liars do

DATASETS: tuple[str, ...] = get_args(DatasetName)
PARTITIONS: tuple[str, ...] = get_args(PartitionName)
LABEL_LEVELS: tuple[str, ...] = get_args(LabelLevel)
