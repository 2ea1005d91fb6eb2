"""Device speeds, tiers and energy."""

import json
from pathlib import Path

import numpy as np
import pytest

from cabafl import simulate
from cabafl.assembly import assemble, make_fleet
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.fleet import Fleet, Power, config_counts, gaussian_fleet, tiered_fleet
from cabafl.power import BOARDS, BoardName
from cabafl.tiers import CONFIGS, TIERS

POWER = dict.fromkeys(TIERS, Power(10.0, 10.0, 1.0))


def test_gaussian_times_follow_the_formula() -> None:
    sizes = np.array([1, 500, 500, 500] * 250, dtype=np.int64)
    fleet = gaussian_fleet(sizes, seed=1, latency=200.0)
    per_sample = gaussian_fleet(sizes, seed=1, answer_share=1.0).answer_seconds / sizes
    assert per_sample.min() >= 0.01
    assert per_sample.mean() == pytest.approx(0.03, abs=0.002)
    assert per_sample.std() == pytest.approx(0.01, abs=0.002)
    assert fleet.job(0)[0] == pytest.approx(1.0 + 4.0 + 200.0)  # one sample: never below a second of computing
    assert fleet.job(1)[0] == pytest.approx(500 * per_sample[1] + 204.0)
    assert fleet.job(1, work=0.5)[0] == pytest.approx(250 * per_sample[1] + 204.0)
    assert fleet.job(1)[1] == pytest.approx(500 * per_sample[1] * 15 + 4 * 2)


def test_a_job_that_ends_after_some_steps_takes_their_share_of_the_time(tmp_path: Path) -> None:
    """Each device has two batches in an epoch, one of a single sample or two: 3 of 10 steps are 1 epoch and a batch."""
    words = ["data.dataset=synthetic", "data.devices=10", "data.partition=iid", "model.name=mlp", "fleet.slots=2"]
    words += ["method.name=fedavg", "run.virtual_time=60", "run.workers=0", "fleet.link_seconds=2"]
    sizes = assemble(load_experiment(None, words)).fleet.sizes
    batch = int(sizes.min()) - 1

    def durations(name: str, *more: str) -> dict[int, float]:
        simulate(load_experiment(None, [*words, f"training.batch_size={batch}", *more]), tmp_path / name)
        lines = (tmp_path / name / "events.jsonl").read_text().splitlines()
        sent = [event for event in map(json.loads, lines) if event["event"] == "dispatch"]
        return {event["device"]: event["due"] - event["time"] for event in sent}

    whole, cut = durations("whole"), durations("cut", "training.max_steps=3")
    assert durations("long", "training.max_steps=11") == whole, "a job has no more than its epochs"
    both = cut.keys() & whole.keys()
    assert both
    for device in both:
        share = (1 + batch / sizes[device]) / 5
        assert cut[device] - 2 == pytest.approx((whole[device] - 2) * share)


def test_speeds_follow_from_the_seed() -> None:
    sizes = np.full(50, 100, dtype=np.int64)
    first, same, other = (gaussian_fleet(sizes, seed).compute_seconds for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("config", list(CONFIGS))
def test_paper_compositions(config: str) -> None:
    counts = config_counts(config, 100)
    assert tuple(counts.values()) == CONFIGS[config]
    assert sum(config_counts(config, 37).values()) == 37
    fleet = tiered_fleet(np.full(100, 9, dtype=np.int64), 1, counts, power=POWER)
    for tier, (mean, deviation) in TIERS.items():
        times = (fleet.compute_seconds + fleet.link_seconds)[[name == tier for name in fleet.tier]]
        assert len(times) == counts[tier]
        assert abs(times - mean).max() < 5 * deviation
    again = tiered_fleet(fleet.sizes, 1, counts, link_seconds=0.0, power=dict.fromkeys(TIERS, Power(10.0, 0.0, 0.0)))
    assert fleet.job(0)[0] == pytest.approx(again.job(0)[0])  # no link time is added
    assert fleet.job(0)[1] == pytest.approx(10 * fleet.job(0)[0])


def test_tiers_do_not_depend_on_data_size_and_power_follows_the_tier() -> None:
    power = {**POWER, "low": Power(3.0, 10.0, 1.0)}
    fleet = tiered_fleet(np.array([1, 900]), 1, {"high": 1, "low": 1}, power=power)
    assert sorted(zip(fleet.tier, fleet.compute_watts.tolist(), strict=True)) == [("high", 10.0), ("low", 3.0)]


def test_counts_must_fit_the_devices() -> None:
    with pytest.raises(ValueError, match="add up to 3; accepted: 2"):
        tiered_fleet(np.array([1, 1]), 1, {"high": 3}, power=POWER)


def fleet_of(*settings: str) -> Fleet:
    return make_fleet(load_experiment(None, list(settings)), np.array([100, 400, 900]), model_bytes=1000)


@pytest.mark.parametrize("epochs", [1, 5, 20])
def test_a_collection_costs_a_forward_pass(epochs: int) -> None:
    """Seconds per sample are those of all epochs; a forward pass is a third of one of them."""
    fleet = fleet_of(f"training.epochs={epochs}", "fleet.extra_latency=2")
    compute = fleet.compute_seconds / epochs / 3
    np.testing.assert_allclose(fleet.collection_seconds(), compute + 4.0 + 2.0)
    assert fleet.collection_joules(np.arange(3)) == pytest.approx(15.0 * compute.sum() + 3 * 4.0 * 2.0)
    assert fleet.collection_joules(np.array([1])) == pytest.approx(15.0 * compute[1] + 4.0 * 2.0)


def test_the_share_of_a_forward_pass_is_a_setting_and_holds_for_tiers() -> None:
    counts = "fleet.tiers={ high = 2, critical = 1 }"
    for share in (1.0, 0.25):
        fleet = fleet_of(counts, f"fleet.forward_share={share}", "fleet.link_seconds=3")
        compute = share / 5 * fleet.compute_seconds
        assert (fleet.compute_seconds > 5).all()
        np.testing.assert_allclose(fleet.collection_seconds(), compute + 3.0)
        assert fleet.collection_joules(np.arange(3)) == pytest.approx(15.0 * compute.sum() + 3 * 3.0 * 2.0)


def watts(fleet: Fleet) -> list[tuple[float, float, float]]:
    return list(zip(fleet.compute_watts.tolist(), fleet.radio_watts.tolist(), fleet.idle_watts.tolist(), strict=True))


def test_power_by_default_by_board_and_by_key() -> None:
    assert watts(fleet_of()) == [(15.0, 2.0, 0.0)] * 3
    assert watts(fleet_of("fleet.power=raspberry-pi-4")) == [tuple(BOARDS["raspberry-pi-4"])] * 3
    assert watts(fleet_of("fleet.power=jetson-nano", "fleet.idle_watts=0")) == [(10.0, 3.0, 0.0)] * 3


def test_power_by_tier() -> None:
    """The tier's watts, then the tier's board, then the watts and the board of the fleet."""
    fleet = fleet_of(
        "fleet.tiers={ high = 1, medium = 1, low = 1 }",
        "fleet.power=jetson-nano",
        "fleet.radio_watts=4",
        'fleet.tier_power={ low = "raspberry-pi-3", medium = "raspberry-pi-3" }',
        "fleet.tier_idle_watts={ low = 0.5 }",
    )
    found = dict(zip(fleet.tier, watts(fleet), strict=True))
    assert found == {"high": (10.0, 4.0, 2.0), "medium": (3.7, 2.4, 1.4), "low": (3.7, 2.4, 0.5)}


@pytest.mark.parametrize("name", list(BOARDS))
def test_a_board_draws_most_when_it_computes_and_is_in_the_documents(name: BoardName) -> None:
    power = BOARDS[name]
    assert power.compute > power.radio > power.idle > 0
    text = (Path(__file__).parents[2] / "docs" / "experiment-file.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {power.compute:g} | {power.radio:g} | {power.idle:g} |" in text


@pytest.mark.parametrize("key", ["fleet.link_seconds=inf", "fleet.extra_latency=1e300"])
def test_jobs_that_never_end_are_one_line(key: str) -> None:
    """Their ends could not be recorded as JSON."""
    with pytest.raises(UserError, match=r"fleet: a job of device \d+ takes .* s; accepted: 1e\+15 or less"):
        assemble(load_experiment(None, ["data.dataset=synthetic", "data.devices=4", "model.name=mlp", key]))
