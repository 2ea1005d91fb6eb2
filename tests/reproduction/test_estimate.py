"""The estimate of processor time: the number of jobs, and the measured speed."""

import pytest

from cabafl.config import load_experiment
from cabafl.paper.definitions import artefacts, layout, settings
from cabafl.reproduction.estimate import Stopwatch, facts_of, in_words, jobs_of


def test_jobs_are_those_of_the_documented_runs() -> None:
    """CIFAR-10, beta 0.5, 4,000 s: 2,191 jobs of CaBaFL and 1,360 of FedAvg were counted."""
    words = ["data.dataset=cifar10", "run.virtual_time=4000"]
    facts = settings().data["cifar10"]
    cabafl = jobs_of(load_experiment(None, words), facts)
    assert cabafl.jobs == pytest.approx(2191, rel=0.1)
    assert cabafl.samples == 500
    assert cabafl.collected == pytest.approx((1 + 2191 / 500) * 50_000, rel=0.1)
    fedavg = jobs_of(load_experiment(None, [*words, "method.name=fedavg"]), facts)
    assert 0.5 * 1360 < fedavg.jobs < 1.5 * 1360
    assert fedavg.collected == 0


def test_tiers_set_the_time_of_a_job() -> None:
    words = ["data.dataset=cifar10", "run.virtual_time=33500", "fleet.tiers=config2"]
    assert jobs_of(load_experiment(None, words), settings().data["cifar10"]).jobs == pytest.approx(10_000)


def test_a_network_is_measured_once_and_longer_runs_take_longer() -> None:
    watch, facts = Stopwatch(), settings().data["synthetic"]
    short, long = (
        load_experiment(None, ["data.dataset=synthetic", "model.name=mlp", f"run.virtual_time={seconds}"])
        for seconds in (100, 10_000)
    )
    first = watch.seconds([short], [facts])
    assert watch.seconds([short], [facts]) == first
    assert watch.seconds([long], [facts]) > first > 0


def test_facts_of_the_users_own_file() -> None:
    table = layout(artefacts()["table7"], "desk", None, {"activity": "/x/windows.npz"})
    cell = next(cell for cell in table.cells if cell.setting == "activity-mlp")
    assert facts_of(cell.experiment, cell.setting).label == "Activity"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (80, "80 s"), (600, "10 min"), (9000, "2.5 h"), (864000, "10 days")]
)
def test_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
