"""Simulated attackers: who they are, what they upload, and that runs with them repeat."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from cabafl import simulate
from cabafl.assembly import assemble
from cabafl.config import load_experiment
from cabafl.engine.core import Limits
from cabafl.errors import UserError
from cabafl.fleet import Attack, Faults
from cabafl.fleet.attacks import STRENGTHS
from cabafl.learning.task import Control
from cabafl.methods.base import PLAIN
from cabafl.methods.cabafl import CaBaFL, CaBaFLParameters
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from cabafl.names import AttackName
from tests.lasting import LastingPools
from tests.lasting import lasting as lasting
from tests.runs import ALL_METHODS, same_bytes, settings
from tests.scripted import World, fleet, vector

KINDS: tuple[AttackName, ...] = get_args(AttackName)
SENT, TRAINED = vector(1.0, 2.0), vector(1.5, 1.0)


def attack(kind: AttackName, share: float = 1.0, strength: float = 3.0, devices: int = 10) -> Attack:
    return Attack(kind, share, strength, devices, seed=1)


def test_shares_are_exact_nested_and_follow_from_the_seed() -> None:
    few, many = attack("scale", 0.1, devices=100), attack("scale", 0.3, devices=100)
    assert len(few.attackers) == 10
    assert len(many.attackers) == 30
    assert few.attackers < many.attackers
    assert Attack("noise", 0.3, 1.0, 100, seed=1).attackers == many.attackers
    assert Attack("noise", 0.3, 1.0, 100, seed=2).attackers != many.attackers
    assert attack("scale", 0.0).attackers == frozenset()


def test_what_attackers_upload() -> None:
    np.testing.assert_allclose(attack("sign-flip").upload(0, 0, SENT, TRAINED), [-0.5, 5.0])
    np.testing.assert_allclose(attack("scale").upload(0, 0, SENT, TRAINED), [2.5, -1.0])
    for kind in ("label-flip", "claim"):
        assert attack(kind).upload(0, 0, SENT, TRAINED) is TRAINED
    noise = [attack("noise").upload(job, 0, SENT, TRAINED) for job in (4, 4, 5)]
    np.testing.assert_array_equal(noise[0], noise[1])
    assert not np.array_equal(noise[0], noise[2])
    assert np.linalg.norm(noise[0] - SENT) == pytest.approx(3.0 * np.linalg.norm(TRAINED - SENT), rel=1e-5)
    honest = attack("sign-flip", 0.5)
    [device, *_] = set(range(10)) - honest.attackers
    assert honest.upload(0, device, SENT, TRAINED) is TRAINED


def test_claims() -> None:
    sizes = np.arange(1, 11)
    claimed = attack("claim", 0.5).claims(sizes)
    liars = sorted(attack("claim", 0.5).attackers)
    assert (claimed[liars] == 3 * sizes[liars]).all()
    assert claimed.sum() == sizes.sum() + 2 * sizes[liars].sum()
    assert attack("scale").claims(sizes) is sizes
    assert attack("claim", strength=1e300).claims(sizes).max() == 2**53


def world(kind: AttackName | None, **more: object) -> World:
    devices = fleet([1.0, 1.0], [10, 30])
    found = None if kind is None else Attack(kind, 0.5, 5.0, 2, seed=1)
    return World(
        FedAvg(FedAvgParameters()),
        devices,
        lambda job: job.weights + 1,
        initial=vector(0.0),
        slots=2,
        limits=Limits(seconds=1.0),
        faults=Faults(attack=found),
    )


def test_the_engine_passes_the_attack_to_the_method() -> None:
    [liar] = Attack("claim", 0.5, 5.0, 2, seed=1).attackers
    claims = [10 * (5 if liar == 0 else 1), 30 * (5 if liar == 1 else 1)]
    made = world("claim").run()
    assert made.engine.sizes.tolist() == claims
    assert made.publications()[0].facts["weights"] == [claim / sum(claims) for claim in claims]
    share = [0.25, 0.75][liar]
    assert world("scale").run().published[0][0] == pytest.approx(1 + 4 * share)
    assert world("sign-flip").run().published[0][0] == pytest.approx(1 - 6 * share)
    flipped = world("label-flip").run()
    assert {job.device for job in flipped.executor.trained if job.flipped} == {liar}
    assert not any(job.flipped for job in world(None).run().executor.trained)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("kind", ["sign-flip", "claim"])
def test_every_method_runs_with_attackers_and_defences(method: str, kind: str) -> None:
    words = settings(method, "run.workers=0", f"fleet.faults.attack={kind}", "fleet.faults.attack_share=0.3")
    words += ["run.defence.update_clip=2", "run.defence.feature_clip=2", "run.defence.sample_quantile=0.5"]
    summary = simulate(load_experiment(None, [*words, "run.virtual_time=60"])).summary
    what = "update" if kind == "sign-flip" else "samples"
    assert summary["defence"][what] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_with_any_number_of_workers(kind: str, lasting: LastingPools, tmp_path: Path) -> None:
    words = settings("cabafl", f"fleet.faults.attack={kind}", "run.virtual_time=25", "run.defence.update_clip=2")
    simulate(load_experiment(None, [*words, "run.workers=0"]), tmp_path / "0")
    with lasting.serving():
        simulate(load_experiment(None, [*words, "run.workers=2"]), tmp_path / "2")
    same_bytes(tmp_path / "0", tmp_path / "2")


def test_label_flips_reach_the_label_counts() -> None:
    table = np.array([[5.0, 3.0, 2.0], [1.0, 0.0, 9.0]])
    made = World(
        CaBaFL(CaBaFLParameters(features="labels")),
        fleet([1.0, 1.0], [10, 10]),
        lambda job: job.weights + 1,
        initial=vector(0.0),
        slots=1,
        limits=Limits(seconds=1.0),
        features=table,
        faults=Faults(attack=Attack("label-flip", 0.5, 1.0, 2, seed=1)),
    ).run()
    [liar] = Attack("label-flip", 0.5, 1.0, 2, seed=1).attackers
    table[liar] = table[liar, ::-1]
    assert isinstance(made.engine.method, CaBaFL)
    np.testing.assert_array_equal(made.engine.method.features.rows.numpy(), table)


def test_an_attacker_trains_on_flipped_labels() -> None:
    words = ["data.dataset=synthetic", "data.devices=10", "model.name=mlp"]
    task = assemble(load_experiment(None, words)).task
    start = task.model.save()
    flipped = task.train(3, 2, start, PLAIN, control=Control(flipped=True)).weights
    assert not np.array_equal(flipped, task.train(3, 2, start, PLAIN).weights)
    task.dataset.train.y.copy_(task.dataset.classes - 1 - task.dataset.train.y)
    np.testing.assert_array_equal(flipped, task.train(3, 2, start, PLAIN).weights)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fleet.faults.attack=sign"], "fleet.faults.attack = 'sign': unknown, did you mean 'sign-flip'"),
        (["fleet.faults.attack_share=2"], "fleet.faults.attack_share = 2: input should be less than or equal to 1"),
        (["fleet.faults.attack_strength=2"], "fleet.faults.attack_strength = 2.0: needs an attack with a factor"),
        (
            ["fleet.faults.attack=label-flip", "fleet.faults.attack_strength=2"],
            "needs an attack with a factor; accepted",
        ),
        (["run.defence.update_clip=0"], "run.defence.update_clip = 0: accepted: 'auto', 'none' or a number above 0"),
        (["run.defence.sample_factor=0.5"], "run.defence.sample_factor = 0.5: input should be greater than or equal"),
        (["run.defence.clip=3"], "run.defence.clip = 3: unknown key"),
        (["run.slot_timeout=0"], "run.slot_timeout = 0: accepted: 'auto', 'none' or a number above 0"),
    ],
)
def test_wrong_settings(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        load_experiment(None, words)


def test_every_kind_has_a_strength() -> None:
    assert set(STRENGTHS) == set(KINDS)
