"""Device speeds, tiers and energy."""

import numpy as np
import pytest

from cabafl.fleet import config_counts, gaussian_fleet, tiered_fleet
from cabafl.tiers import CONFIGS, TIERS

WATTS = dict.fromkeys(TIERS, 10.0)


def test_gaussian_times_follow_the_formula() -> None:
    sizes = np.array([1, 500, 500, 500] * 250, dtype=np.int64)
    fleet = gaussian_fleet(sizes, seed=1, latency=200.0)
    per_sample = fleet.answer_seconds / sizes
    assert per_sample.min() >= 0.01
    assert per_sample.mean() == pytest.approx(0.03, abs=0.002)
    assert per_sample.std() == pytest.approx(0.01, abs=0.002)
    assert fleet.job(0)[0] == pytest.approx(1.0 + 4.0 + 200.0)  # one sample: never below a second of computing
    assert fleet.job(1)[0] == pytest.approx(500 * per_sample[1] + 204.0)
    assert fleet.job(1, work=0.5)[0] == pytest.approx(250 * per_sample[1] + 204.0)
    assert fleet.job(1)[1] == pytest.approx(500 * per_sample[1] * 15 + 4 * 2)
    assert fleet.collection_seconds()[1] == pytest.approx(fleet.job(1)[0])


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
    fleet = tiered_fleet(np.full(100, 9, dtype=np.int64), 1, counts, compute_watts=WATTS, radio_watts=WATTS)
    for tier, (mean, deviation) in TIERS.items():
        times = (fleet.compute_seconds + fleet.link_seconds)[[name == tier for name in fleet.tier]]
        assert len(times) == counts[tier]
        assert abs(times - mean).max() < 5 * deviation
    again = tiered_fleet(
        fleet.sizes, 1, counts, link_seconds=0.0, compute_watts=WATTS, radio_watts=dict.fromkeys(TIERS, 0.0)
    )
    assert fleet.job(0)[0] == pytest.approx(again.job(0)[0])  # no link time is added
    assert fleet.job(0)[1] == pytest.approx(10 * fleet.job(0)[0])


def test_tiers_do_not_depend_on_data_size_and_power_follows_the_tier() -> None:
    watts = {**WATTS, "low": 3.0}
    fleet = tiered_fleet(np.array([1, 900]), 1, {"high": 1, "low": 1}, compute_watts=watts, radio_watts=WATTS)
    assert sorted(zip(fleet.tier, fleet.compute_watts.tolist(), strict=True)) == [("high", 10.0), ("low", 3.0)]


def test_counts_must_fit_the_devices() -> None:
    with pytest.raises(ValueError, match="add up to 3; accepted: 2"):
        tiered_fleet(np.array([1, 1]), 1, {"high": 3}, compute_watts=WATTS, radio_watts=WATTS)
