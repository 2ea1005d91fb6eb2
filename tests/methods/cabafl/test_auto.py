"""Settings that tune themselves: the rules in worked numbers, through the real engine, and against wrong input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl import simulate
from cabafl.checked import make_method
from cabafl.config import load_experiment
from cabafl.engine.core import Limits
from cabafl.errors import UserError
from cabafl.methods.cabafl import CaBaFL, CaBaFLParameters
from cabafl.methods.cabafl.auto import BALANCE, LONGEST, NAMES, SHORTEST, agreement, measure
from cabafl.methods.cabafl.selector import FeatureTable
from cabafl.recording.events import Collection, Noted, Published
from tests.runs import AUTO, same_bytes, settings
from tests.scripted import World, fleet, vector

ALL: dict[str, Any] = dict.fromkeys(NAMES, "auto")
NAN = float("nan")


def table(rows: npt.ArrayLike) -> FeatureTable:
    features = FeatureTable()
    features.replace(np.array(rows, dtype=np.float32))
    return features


def world(features: npt.ArrayLike, seconds: float, slots: int, picks: tuple[int, ...] = (), **given: Any) -> World:
    """One second per job; four samples per device."""
    devices = len(np.asarray(features))
    return World(
        CaBaFL(CaBaFLParameters(**given)),
        fleet([1.0] * devices, [4] * devices),
        lambda job: job.weights + 1,
        initial=vector(0, 0),
        slots=slots,
        limits=Limits(seconds=seconds),
        features=features,
        picks=picks,
    )


def tuning(made: World) -> Any:
    method = made.engine.method
    assert isinstance(method, CaBaFL)
    return method.tuning


@pytest.mark.parametrize(("samples", "evenness"), [(1, 1.0), (4, 0.966450), (40, 0.305619), (4000, 0.030562)])
def test_dissimilarity_and_evenness_in_numbers(samples: int, evenness: float) -> None:
    """The devices of the worked example: cosines 9, 7, 32 / sqrt(8) and 34 / sqrt(10), each over sqrt(130)."""
    found = measure(table([[4, 0], [0, 4], [2, 2], [3, 1]]), np.full(4, samples))
    np.testing.assert_allclose(found.devices, [0.210648, 0.386059, 0.007722, 0.057010], atol=1e-6)
    assert found.typical == pytest.approx((0.057010 + 0.210648) / 2, abs=1e-6)
    assert found.evenness == pytest.approx(evenness, abs=1e-5)  # 1 / sqrt(2 * samples * 0.133829), at most 1


def test_devices_with_random_samples_are_even_and_devices_with_one_class_are_not() -> None:
    """Exponential activations, the model behind the rule, whatever their scale and the number of samples."""
    draw = np.random.default_rng(3)
    for samples, scale, skew in ((20, 1.0, 0.8), (500, 1e-3, 0.3)):
        classes = scale * draw.uniform(0.4, 1.6, (10, 32))  # mean activations of each class
        iid, skewed = np.zeros((60, 32)), np.zeros((60, 32))
        for device in range(60):
            iid[device] = (classes[draw.integers(0, 10, samples)] * draw.exponential(1.0, (samples, 32))).sum(axis=0)
            own = classes[draw.integers(0, 10, 2)][draw.integers(0, 2, samples)]
            skewed[device] = (own * draw.exponential(1.0, (samples, 32))).sum(axis=0)
        assert measure(table(iid), np.full(60, samples)).evenness > 0.7
        assert measure(table(skewed), np.full(60, samples)).evenness < skew


def test_a_liar_does_not_move_the_rules() -> None:
    rows = np.random.default_rng(4).random((101, 6))
    sizes = np.full(101, 50)
    honest = measure(table(rows), sizes)
    sizes[7] = 10**12
    lied = measure(table(rows), sizes)
    assert lied.typical == honest.typical
    assert lied.evenness == pytest.approx(honest.evenness, rel=0.1)


@pytest.mark.parametrize("rows", [np.zeros((3, 2)), np.zeros((0, 0)), [[1, -1], [-1, 1], [0, 0]]])
def test_without_known_devices_or_a_global_feature_everything_counts_as_even(rows: npt.ArrayLike) -> None:
    found = measure(table(rows), np.full(len(np.asarray(rows)), 5))
    assert (found.typical, found.evenness) == (0.0, 1.0)
    assert np.isnan(found.devices).all()


def test_unknown_devices_and_devices_without_samples_are_left_out() -> None:
    rows = [[4, 0], [0, 4], [2, 2], [3, 1], [0, 0], [0, 0]]
    assert np.isnan(measure(table(rows), np.full(6, 4)).devices).tolist() == [False] * 4 + [True] * 2
    assert measure(table(rows), np.full(6, 4)).typical == measure(table(rows[:4]), np.full(4, 4)).typical
    assert np.isnan(measure(table(rows[:4]), np.array([4, 4, 0, 4])).devices).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0], 1.0),
        ([0.1, 0.2, 0.3, 0.4], [4.0, 3.0, 2.0, 1.0], -1.0),
        ([0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.3, 0.4], 0.8),  # two neighbours swapped: 1 - 6 * 2 / 60
        ([0.1, NAN, 0.2, 0.3, 0.4], [1.0, 9.0, 2.0, 3.0, NAN], 1.0),  # devices known in both
        ([0.1, NAN, 0.2], [1.0, 2.0, 3.0], None),
    ],
)
def test_agreement_of_two_collections(before: list[float], now: list[float], expected: float | None) -> None:
    assert agreement(np.array(before), np.array(now)) == expected


@given(st.lists(st.floats(0, 2), min_size=3, max_size=30, unique=True), st.randoms())
def test_agreement_is_the_correlation_of_ranks(values: list[float], random: Any) -> None:
    other = random.sample(values, len(values))
    ranks = [np.array([sorted(row).index(value) for value in row]) for row in (values, other)]
    found = agreement(np.array(values), np.array(other))
    assert found == pytest.approx(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), abs=1e-9)


OPPOSITE = [[4, 0], [0, 4], [4, 0], [0, 4]]


def test_worked_example() -> None:
    """Two kinds of devices. Every d_j is 1 - 1/sqrt(2) = 0.292893, so q = 8 d = 2.343146 and r = 0.653281. A model that
    has visited one of each kind is balanced: cycles of 2, and k goes from 10 to 9.2, 8.48, 7.832, 7.2488."""
    made = world(OPPOSITE, 4.5, slots=2, picks=(0, 2), **ALL).run()
    notes = [(e.time, *e.facts.values()) for e in made.events if isinstance(e, Noted) and e.kind == "auto"]
    first, rest = notes[:3], notes[3:]
    assert [(time, setting) for time, setting, _, _ in first] == [(0.0, "alpha"), (0.0, "gamma"), (0.0, "sigma")]
    assert [value for _, _, value, _ in first] == pytest.approx([0.826641, 0.104016, 1.693437], abs=1e-6)
    assert [measured for _, _, _, measured in first] == pytest.approx([0.653281] * 3, abs=1e-6)
    assert [(time, setting, value) for time, setting, value, _ in rest] == [
        (2.0, "k", 9),
        (2.0, "k", 8),
        (4.0, "k", 7),
    ]  # 8.48 and 7.832 round to 8
    assert [measured for _, _, _, measured in rest] == pytest.approx([9.2, 8.48, 7.2488])
    assert [(e.time, e.facts["slot"]) for e in made.publications()] == [(2.0, 0), (2.0, 1), (4.0, 0), (4.0, 1)]
    assert [note["accepted"] for note in made.notes("cache") if note["trained"] == 2] == [True] * 4


def test_given_numbers_stay_and_are_not_recorded() -> None:
    numbers: dict[str, Any] = {"k": 3, "alpha": 0.25, "gamma": 0.75, "sigma": 2.0, "m": 4, "sigma_scale": "relative"}
    made = world(OPPOSITE, 40.0, 2, **numbers).run()
    assert made.notes("auto") == []
    for name in NAMES:
        one = world(OPPOSITE, 40.0, 2, **{**numbers, name: "auto"}).run()
        assert {note["setting"] for note in one.notes("auto")} <= {name}
        assert {other: getattr(tuning(one), other) for other in NAMES if other != name} == {
            other: numbers[other] for other in NAMES if other != name
        }
    assert {note["setting"] for note in world(OPPOSITE, 800.0, 2, **ALL).run().notes("auto")} == set(NAMES)


@pytest.mark.parametrize("width", [2, 8])
def test_every_cycle_ends_when_its_trace_is_balanced_and_not_before(width: int) -> None:
    draw = np.random.default_rng(6)
    made = world(draw.random((12, width)) ** 4, 400.0, slots=3, k="auto").run()
    lengths = []
    for event, following in zip(made.events, made.events[1:], strict=False):
        if isinstance(event, Noted) and event.kind == "cache":
            facts = event.facts
            balanced = 1 - facts["similarity"] <= tuning(made).typical / BALANCE
            due = facts["trained"] == LONGEST or (balanced and facts["trained"] >= SHORTEST)
            ended = isinstance(following, Published) or (isinstance(following, Noted) and following.kind == "auto")
            assert ended == due
            lengths += [facts["trained"]] if due else []
    assert min(lengths) >= SHORTEST
    assert max(lengths) <= LONGEST
    assert len(set(lengths)) > 3
    assert tuning(made).k == pytest.approx(np.mean(lengths[-10:]), abs=3)


def test_equal_devices_need_no_more_than_the_shortest_cycle() -> None:
    """The cosines differ from 1 by rounding only; `epsilon` says that this counts as equal."""
    made = world([[0.1, 0.2, 0.3]] * 5, 12.5, slots=1, **ALL).run()
    assert {note["trained"] for note in made.notes("cache")} == {1, 2}
    assert (tuning(made).alpha, tuning(made).gamma, tuning(made).sigma) == pytest.approx((1.0, 0.0, 1.0), abs=1e-6)


class Drifting(World):
    """Every collection reports features in which the devices have other places."""

    def run(self) -> "World":
        draw = np.random.default_rng(8)
        result = self.executor.result

        def shuffled(ticket: int, interrupt: Any = None) -> Any:
            made = result(ticket, interrupt)
            return draw.permutation(made) if isinstance(made, np.ndarray) else made

        self.executor.result = shuffled  # type: ignore[method-assign]
        return super().run()


def collections(made: World) -> list[int]:
    """The versions at which collections started."""
    version, found = 0, []
    for event in made.events:
        version += isinstance(event, Published)
        if isinstance(event, Collection) and event.step == "start":
            found.append(version)
    return found


def test_collections_become_rarer_while_features_agree() -> None:
    rows = np.random.default_rng(7).random((30, 4))
    made = world(rows, 1300.5, slots=1, k=1, m="auto").run()
    assert collections(made) == [0, 50, 100, 200, 400, 800, 1200]
    assert [(note["value"], note["measured"]) for note in made.notes("auto")] == [(100, 1.0), (200, 1.0), (400, 1.0)]


def test_collections_become_more_frequent_while_features_change() -> None:
    rows = np.random.default_rng(7).random((30, 4))
    made = world(rows, 120.5, slots=1, k=1, m="auto")
    made.__class__ = Drifting
    made.run()
    assert [note["value"] for note in made.notes("auto")] == [25, 12, 10]
    assert all(note["measured"] < 0.5 for note in made.notes("auto"))
    assert collections(made) == [0, 50, 75, 84, 90, 100, 110, 120]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("k=automatic", "method.k = 'automatic': accepted: 'auto' or a whole number from 1"),
        ("k=0", "method.k = 0: accepted: 'auto' or a whole number from 1"),
        ("m=2.5", "method.m = 2.5: accepted: 'auto' or a whole number from 1"),
        ("m=true", "method.m = True: accepted: 'auto' or a whole number from 1"),
        ("alpha=1.5", "method.alpha = 1.5: accepted: 'auto' or a number from 0 to 1"),
        ("gamma=Auto", "method.gamma = 'Auto': accepted: 'auto' or a number from 0 to 1"),
        ("gamma=nan", "method.gamma = nan: accepted: 'auto' or a number from 0 to 1"),
        ("sigma=-1", "method.sigma = -1: accepted: 'auto' or a number from 0"),
        ("sigma=[1]", "method.sigma = [1]: accepted: 'auto' or a number from 0"),
    ],
)
def test_other_values_are_refused_in_one_line(setting: str, line: str) -> None:
    with pytest.raises(UserError) as refused:
        make_method(load_experiment(None, [f"method.{setting}"]))
    assert str(refused.value) == line


@pytest.mark.parametrize("scale", ["auto", "absolute", "relative"])
def test_a_sigma_that_tunes_itself_is_relative_whatever_the_scale(scale: Any) -> None:
    """The files in ``experiments/`` set the absolute scale."""
    given = CaBaFLParameters(sigma="auto", sigma_scale=scale)
    for devices, simulated in ((100, True), (7, True), (100, False)):
        settled = given.settled(devices, simulated)
        assert (settled.sigma, settled.sigma_scale) == ("auto", "relative")
        assert settled.settled(devices, simulated) == settled
    assert tuning(world(OPPOSITE, 0.5, 1, sigma="auto", sigma_scale=scale).run()).sigma > 1


def test_a_real_run_records_its_decisions_and_repeats(tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("cabafl", *AUTO, "run.workers=0", "run.virtual_time=150"))
    for name in ("one", "other"):
        simulate(experiment, tmp_path / name)
    same_bytes(tmp_path / "one", tmp_path / "other")
    events = [json.loads(line) for line in (tmp_path / "one" / "events.jsonl").read_text().splitlines()]
    decided = [event for event in events if event["event"] == "auto"]
    assert {event["setting"] for event in decided} >= {"k", "alpha", "gamma", "sigma"}
    assert all(set(event) == {"time", "event", "setting", "value", "measured"} for event in decided)
    text = (tmp_path / "one" / "experiment.toml").read_text()
    assert all(f'{name} = "auto"' in text for name in NAMES)
