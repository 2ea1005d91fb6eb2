"""The experiment files of the paper: complete, valid, and with the published hyper-parameters."""

from pathlib import Path
from typing import Any

import pytest

from cabafl.checked import make_method
from cabafl.config import Experiment, load_experiment
from cabafl.methods.cabafl import CaBaFLParameters

FOLDER = Path(__file__).parent.parent / "experiments"
FILES = sorted(FOLDER.iterdir())
SETTINGS = ("beta0.1", "beta0.5", "beta1.0", "iid")
NETWORKS = ("resnet18", "cnn", "vgg16")
PUBLISHED = {  # alpha, sigma, gamma
    "beta0.1": (0.5, 3e-6, 0.3),
    "beta0.5": (0.7, 1e-6, 0.2),
    "beta1.0": (0.9, 1e-6, 0.11),
    "iid": (1.0, 1e-6, 0.01),
}

MAIN = {f"{data}-{model}-{setting}" for data in ("cifar10", "cifar100") for model in NETWORKS for setting in SETTINGS}
NATURAL = {*(f"femnist-{model}" for model in NETWORKS), "shakespeare-lstm", "activity-mlp"}
STUDIES = {
    *(f"cifar10-resnet18-beta0.1-config{n}" for n in (1, 2, 3, 4)),
    *(f"cifar10-resnet18-beta0.5-participation{n}" for n in (5, 20, 50)),
    *(f"cifar10-resnet18-{setting}-block{n}" for setting in ("beta0.5", "iid") for n in (1, 2, 3)),
    *(f"cifar10-resnet18-iid-k{n}" for n in (15, 20, 25, 30)),
    *(f"cifar10-resnet18-{setting}-m{n}" for setting in ("beta0.1", "iid") for n in (1, 10, 20, 100)),
    *(f"cifar10-resnet18-{setting}-labels" for setting in ("beta0.1", "iid")),
    "cifar100-resnet18-coarse-balanced",
    "cifar100-resnet18-coarse-balanced-labels",
    *(f"cifar10-{model}-beta0.1-authors" for model in NETWORKS),
}
TESTBED = {"testbed-beta1.0", "testbed-iid"}


def read(stem: str) -> tuple[Experiment, CaBaFLParameters]:
    experiment = load_experiment(FOLDER / f"{stem}.toml")
    parameters = make_method(experiment).parameters
    assert isinstance(parameters, CaBaFLParameters)
    return experiment, parameters


def test_every_setting_has_its_file_and_there_is_no_other() -> None:
    assert {path.name for path in FILES} == {f"{stem}.toml" for stem in MAIN | NATURAL | STUDIES | TESTBED}


@pytest.mark.parametrize("path", [path for path in FILES if path.stem not in TESTBED], ids=lambda path: path.stem)
def test_file_is_valid_and_says_what_it_is(path: Path) -> None:
    experiment, parameters = read(path.stem)
    head = [line for line in path.read_text().split("\n\n")[0].splitlines() if line.startswith("# ")]
    assert 1 <= len(head) <= 3
    assert "published: " in " ".join(line[2:] for line in head)
    dataset, model, *_ = path.stem.split("-")
    assert (experiment.data.dataset, experiment.model.name) == (dataset, model)
    assert experiment.training == Experiment().training
    assert experiment.run.virtual_time is not None
    assert 500 <= experiment.run.virtual_time / experiment.run.evaluate_every <= 1100
    setting = next((name for name in SETTINGS if f"-{name}" in path.stem), "beta0.1")  # natural partitions: as beta 0.1
    assert (parameters.alpha, parameters.sigma, parameters.gamma) == PUBLISHED[setting]
    assert parameters.sigma_scale == "absolute"  # on fleets of another size than 100 too
    assert experiment.data.labels == ("coarse" if dataset == "cifar100" else "fine")


@pytest.mark.parametrize("stem", sorted(MAIN | STUDIES))
def test_partition_is_the_one_in_the_name(stem: str) -> None:
    data = read(stem)[0].data
    setting = next((name for name in SETTINGS if f"-{name}" in stem), "coarse-balanced")
    if setting.startswith("beta"):
        assert (data.partition, data.beta) == ("dirichlet", float(setting.removeprefix("beta")))
    else:
        assert data.partition == setting


@pytest.mark.parametrize("stem", sorted(NATURAL))
def test_natural_partitions(stem: str) -> None:
    data = read(stem)[0].data
    assert data.partition == "natural"
    assert data.devices == {"femnist": 180, "shakespeare": 100, "activity": "auto"}[data.dataset]


@pytest.mark.parametrize("stem", sorted(MAIN))
def test_main_table_uses_the_common_length_and_fleet(stem: str) -> None:
    experiment, parameters = read(stem)
    assert experiment.run.virtual_time == 19_000
    assert experiment.fleet == Experiment().fleet
    assert (parameters.k, parameters.m, parameters.features) == (10, 50, "activations")


@pytest.mark.parametrize("stem", sorted(TESTBED))
def test_the_test_bed_has_the_boards_of_the_paper(stem: str) -> None:
    experiment, parameters = read(stem)
    setting = stem.removeprefix("testbed-")
    data, fleet, run = experiment.data, experiment.fleet, experiment.run
    assert (data.dataset, data.devices, experiment.model.name) == ("cifar10", 10, "cnn")
    assert data.partition == ("iid" if setting == "iid" else "dirichlet")
    assert data.partition == "iid" or data.beta == 1.0
    assert fleet.tiers == {"high": 4, "low": 6}
    assert fleet.tier_power == {"high": "jetson-nano", "low": "raspberry-pi-4"}
    assert run.wall_time is not None
    assert run.virtual_time == 5 * run.wall_time
    assert (parameters.alpha, parameters.gamma) == (PUBLISHED[setting][0], PUBLISHED[setting][2])
    assert "published: " in (FOLDER / f"{stem}.toml").read_text().split("\n\n")[0]


def test_the_test_bed_trains_longer_with_iid_data() -> None:
    few, many = differences("testbed-beta1.0", "testbed-iid"), differences("testbed-iid", "testbed-beta1.0")
    assert few["training.epochs"] < many["training.epochs"]
    assert few.keys() == {"data.partition", "data.beta", "training.epochs", "method.alpha", "method.gamma"}


def settings(stem: str) -> dict[str, Any]:
    """All keys of a file as ``section.key``, the method's own included."""
    experiment, parameters = read(stem)
    sections = experiment.model_dump(exclude={"seed", "method"}) | {"method": parameters.model_dump()}
    return {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}


def differences(stem: str, base: str) -> dict[str, Any]:
    """The keys that differ between two files."""
    theirs = settings(base)
    return {key: value for key, value in settings(stem).items() if value != theirs[key]}


@pytest.mark.parametrize("stem", sorted(STUDIES))
def test_a_study_changes_one_thing(stem: str) -> None:
    if stem.startswith("cifar100"):
        changed = differences(stem, "cifar100-resnet18-beta0.1")
        features = {"method.features": "labels"} if stem.endswith("labels") else {}
        assert changed == {"data.partition": "coarse-balanced"} | features
        return
    base, _, what = stem.rpartition("-")
    number = int("".join(c for c in what if c.isdigit()) or 0)
    changed = differences(stem, base)
    length = {key: changed.pop(key) for key in ("run.virtual_time", "run.evaluate_every") if key in changed}
    assert not length or what.startswith(("config", "authors"))
    expected = {
        "config": {"fleet.tiers": what},
        "participation": {"fleet.participation": number / 100},
        "block": {"model.feature_layer": what},
        "k": {"method.k": number},
        "m": {"method.m": number},
        "labels": {"method.features": "labels"},
        "authors": {"fleet.extra_latency": 200.0},
    }
    assert changed == expected[what.rstrip("0123456789")]


def test_the_same_number_of_jobs_with_slower_devices() -> None:
    """About 10,000 jobs on 10 slots: the length is 1,000 times the mean time of a job."""
    means = {"config1": 18.5, "config2": 33.5, "config3": 23.0, "config4": 25.0}
    for config, seconds in means.items():
        assert read(f"cifar10-resnet18-beta0.1-{config}")[0].run.virtual_time == 1000 * seconds
    assert read("cifar10-cnn-beta0.1-authors")[0].run.virtual_time == 19_000 + 1000 * 200
