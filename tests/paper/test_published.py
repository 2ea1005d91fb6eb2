"""A published accuracy is found only where every key that matters is the paper's."""

from pathlib import Path

import pytest

from cabafl.config import load_experiment
from cabafl.paper.published import METHODS, published_accuracy
from cabafl.reporting.measures import measure
from cabafl.reporting.runs import load_runs
from tests.reporting.sample_runs import write_run

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"
RESNET = "cifar10-resnet18-beta0.1"


def published(stem: str, *settings: str) -> tuple[float, float] | None:
    return published_accuracy(load_experiment(EXPERIMENTS / f"{stem}.toml", settings))


@pytest.mark.parametrize(
    ("stem", "settings", "value"),
    [
        ("cifar10-cnn-beta0.1", [], (52.92, 0.62)),
        ("cifar10-cnn-beta0.1", ["run.virtual_time=400", "run.evaluate_every=40", "seed=7"], (52.92, 0.62)),
        ("cifar10-cnn-beta0.1", ["run.workers=3", "data.root=/elsewhere", "fleet.compute_watts=3"], (52.92, 0.62)),
        ("cifar10-cnn-iid", ["data.beta=0.3", "data.devices=100", "fleet.slots=10"], (61.75, 0.30)),
        ("shakespeare-lstm", [], (52.69, 0.10)),
        ("activity-mlp", [], (95.43, 0.23)),
        ("femnist-vgg16", [], (84.30, 0.13)),
        ("cifar100-resnet18-iid", [], (49.64, 0.06)),
        (f"{RESNET}-config2", [], (56.06, 0.50)),
        (RESNET, ["method.l1_cache=false"], (53.29, 2.12)),
        (RESNET, ["method.alpha=0.9"], (55.14, 0.79)),
        (RESNET, ["method.sigma=2e-6"], (53.60, 0.33)),
        (RESNET, ["method.gamma=0.4"], (54.59, 1.62)),
        (RESNET, ["model.feature_layer=block4"], (55.46, 0.67)),
        (RESNET, ["fleet.tiers={excellent=10, high=10, medium=10, low=30, critical=40}"], (56.06, 0.50)),
    ],
)
def test_the_papers_settings_have_a_value(stem: str, settings: list[str], value: tuple[float, float]) -> None:
    assert published(stem, *settings) == value


@pytest.mark.parametrize(
    "change",
    [
        "method.k=20",
        "method.m=10",
        "method.alpha=0.6",
        "method.sigma=9e-6",
        "method.gamma=0.25",
        "method.k=auto",
        "method.m=auto",
        "method.alpha=auto",
        "method.sigma=auto",
        "method.gamma=auto",
        "method.features=labels",
        "method.feature_latency=instant",
        "model.feature_layer=block2",
        "fleet.participation=0.2",
        "fleet.extra_latency=200.0",
        "fleet.link_seconds=5.0",
        "fleet.faults.loss=0.1",
        "training.epochs=1",
        "training.learning_rate=0.1",
        "training.batch_size=10",
        "data.beta=0.2",
        "data.train_limit=10000",
        "data.test_limit=1000",
        "data.devices=20",
        "data.min_samples=1",
        "privacy.feature_clip=1.0",
        "run.max_staleness=3",
        "run.defence.update_clip=2.0",
        "model.name=mlp",
    ],
)
def test_another_key_has_none(change: str) -> None:
    assert published(RESNET) == (55.46, 0.67)
    assert published(RESNET, change) is None


def test_default_parameters_are_not_those_of_beta_0_1() -> None:
    """CaBaFL's defaults suit beta 0.5; with them the paper has no result at 0.1."""
    cifar = ["data.dataset=cifar10", "model.name=cnn"]
    assert published_accuracy(load_experiment(None, [*cifar, "data.beta=0.1"])) is None
    assert published_accuracy(load_experiment(None, [*cifar, "data.beta=0.5"])) == (57.89, 0.59)


def test_fine_labels_of_cifar100_have_none() -> None:
    assert published("cifar100-cnn-iid", "data.labels=fine") is None


@pytest.mark.parametrize("method", METHODS[:-1])
def test_every_method_has_its_value_and_its_own_parameters_matter(method: str) -> None:
    base = ["data.dataset=cifar10", "data.beta=0.1", f"method.name={method}"]
    assert published_accuracy(load_experiment(None, base)) is not None
    assert published_accuracy(load_experiment(None, [*base, "model.feature_layer=pool1"])) is not None  # not used
    other = {"fedavg": "weighting=uniform", "fedprox": "mu=0.1", "fedasync": "alpha=0.9", "fedsa": "buffer=7"}
    change = {**other, "safa": "tau=9", "wkafl": "clip=1.0"}[method]
    assert published_accuracy(load_experiment(None, [*base, f"method.{change}"])) is None


def test_methods_that_are_not_in_the_paper() -> None:
    assert published_accuracy(load_experiment(None, ["data.dataset=cifar10", "method.name=fedbuff"])) is None
    assert published_accuracy(load_experiment(None, ["data.dataset=cifar10", "method.name=mine:Mine"])) is None


def test_a_folder_of_an_older_version_matches_through_defaults(tmp_path: Path) -> None:
    """Its experiment file lacks the keys that came later."""
    keys = 'k = 10\nalpha = 0.5\nsigma = 3e-6\ngamma = 0.3\n[data]\ndataset = "cifar10"\nbeta = 0.1'
    write_run(tmp_path / "a", "cabafl", settings=keys)
    assert measure(load_runs([tmp_path])).rows[0].values["published_mean"] == pytest.approx(0.5292)


def test_a_run_on_real_devices_has_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "fedavg", settings='[data]\ndataset = "cifar10"')
    text = (folder / "summary.json").read_text()
    assert measure(load_runs([tmp_path])).rows[0].values["published_mean"] == pytest.approx(0.5477)
    (folder / "summary.json").write_text(text.replace('"virtual"', '"wall"'))
    assert measure(load_runs([tmp_path])).rows[0].values["published_mean"] is None
