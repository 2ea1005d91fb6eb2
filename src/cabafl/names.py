"""Names that experiment files accept: `config` validates them, the rooms that implement them use them too.

Imports nothing heavy: `cabafl --help` and `cabafl config` load this module.
"""

from typing import Literal, get_args

DATASETS: tuple[str, ...] = (
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
)
HUB = "hf:"  # followed by a folder or a name on the Hugging Face Hub, it is the name of a data set, too
PartitionName = Literal["iid", "dirichlet", "natural", "shards", "coarse-balanced"]
LabelLevel = Literal["fine", "coarse"]  # of CIFAR-100: 100 or 20 classes
AttackName = Literal["sign-flip", "noise", "scale", "label-flip", "claim"]  # what simulated liars do
TargetKind = Literal["class", "numbers", "labels", "tokens"]  # what a network predicts for a sample

PARTITIONS: tuple[str, ...] = get_args(PartitionName)
LABEL_LEVELS: tuple[str, ...] = get_args(LabelLevel)
