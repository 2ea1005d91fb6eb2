"""Names that experiment files accept: `config` validates them, the packages that implement them use them too.

Imports nothing heavy: `cabafl --help` and `cabafl config` load this module.
"""

import re
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
GIVEN = "given"  # data handed in from Python; a run folder adds their fingerprint, "given:3f2a..."
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function, the user's own
PartitionName = Literal["iid", "dirichlet", "natural", "shards", "coarse-balanced"]
LabelLevel = Literal["fine", "coarse"]  # of CIFAR-100: 100 or 20 classes
AttackName = Literal["sign-flip", "noise", "scale", "label-flip", "claim"]  # what simulated liars do
LoggerName = Literal["tensorboard", "mlflow", "wandb"]  # the built-in loggers
TargetKind = Literal["class", "numbers", "labels", "tokens"]  # what a network predicts for a sample

PARTITIONS: tuple[str, ...] = get_args(PartitionName)
LABEL_LEVELS: tuple[str, ...] = get_args(LabelLevel)
LOGGERS: tuple[str, ...] = get_args(LoggerName)


def is_function(dataset: str) -> bool:
    """Whether the name of a data set is that of the user's own function."""
    return FUNCTION.fullmatch(dataset) is not None and not dataset.startswith(HUB) and not is_given(dataset)


def is_given(dataset: str) -> bool:
    """Whether it is the name of data handed in from Python."""
    return dataset == GIVEN or re.fullmatch(rf"{GIVEN}:[0-9a-f]{{16}}", dataset) is not None
