"""What a sweep runs: the values of its keys, the methods to which they apply, and what is refused before it starts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.comparison.sweep import SweepPlan, parse_axes, plan_sweep, split_values
from cabafl.errors import UserError


def plan(*settings: str, methods: str | None = None, seeds: int = 1, file: Path | None = None) -> SweepPlan:
    return plan_sweep(file, settings, methods, seeds)


def labels(*settings: str, methods: str | None = None) -> list[str]:
    return [case.label for case in plan(*settings, methods=methods).cases]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5,10,20", ["5", "10", "20"]),
        ("0.1", ["0.1"]),
        (" 5 , 10 ", ["5", "10"]),
        ("{ high = 40, low = 60 },config1", ["{ high = 40, low = 60 }", "config1"]),
        ("[1, [2, 3]],[4]", ["[1, [2, 3]]", "[4]"]),
        ('"a,b",\'c,"d\',e', ['"a,b"', "'c,\"d'", "e"]),
        (r'"a\",b",c', [r'"a\",b"', "c"]),
        ('{ name = "a},b" },c', ['{ name = "a},b" }', "c"]),
        ("it's,that's", ["it's", "that's"]),  # plain text, as in a path
    ],
)
def test_values_are_separated_by_commas_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values("a.b", text) == values


@pytest.mark.parametrize("text", ["", "1,,2", ",1", "1,", " , ", "{ high = 40, low = 60", "[1,2", '"a,b', "1,'b"])
def test_empty_and_unclosed_values_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^a\.b = "):
        split_values("a.b", text)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20, unique=True))
def test_numbers_are_in_ascending_order(values: list[int]) -> None:
    [axis] = parse_axes([f"method.k={','.join(map(str, values))}"])
    assert list(axis.values) == sorted(values)


def test_rows_are_in_the_natural_order_of_the_values() -> None:
    assert labels("method.k=10,5,20") == ["k = 5", "k = 10", "k = 20"]
    assert labels("method.k=20,auto,5") == ["k = 20", "k = auto", "k = 5"]  # not all numbers: as given
    assert labels("data.partition=iid,dirichlet") == ["partition = iid", "partition = dirichlet"]
    assert labels("method.k=5,10", "data.beta=0.5,0.1") == [
        "k = 5, beta = 0.1",
        "k = 5, beta = 0.5",
        "k = 10, beta = 0.1",
        "k = 10, beta = 0.5",
    ]


def test_every_case_has_its_values_and_the_settings_of_all() -> None:
    cases = plan("method.k=5,10", "data.beta=0.1,0.5", "method.m=7", "fleet.slots=3", "seed=4").cases
    found = [(case.experiment.method.parameters, case.experiment.data.beta) for case in cases]
    assert found == [({"k": k, "m": 7}, beta) for k in (5, 10) for beta in (0.1, 0.5)]
    assert {case.experiment.fleet.slots for case in cases} == {3}
    assert plan("method.k=5,10", "seed=4").seed == 4


def test_values_that_are_tables_or_switched_off() -> None:
    cases = plan("fleet.tiers={ high = 40, low = 60 },config1,none").cases
    assert [case.experiment.fleet.tiers for case in cases] == [{"high": 40, "low": 60}, "config1", None]
    assert [case.label for case in cases] == ["tiers = {high = 40, low = 60}", "tiers = config1", "tiers = none"]


def test_a_methods_key_applies_to_the_methods_that_have_it() -> None:
    found = plan("method.k=5,10", "data.beta=0.1,0.5", methods="cabafl,fedavg")
    assert [case.label for case in found.cases[3:]] == [
        "cabafl (k = 10, beta = 0.5)",
        "fedavg (beta = 0.1)",
        "fedavg (beta = 0.5)",
    ]
    assert found.sweep.keys == {"k": "method.k", "beta": "data.beta"}
    assert found.sweep.points["fedavg (beta = 0.5)"].values == {"beta": 0.5}
    assert labels("method.k=5,10", methods="cabafl,fedavg") == ["cabafl (k = 5)", "cabafl (k = 10)", "fedavg"]


def test_a_key_may_be_for_one_method() -> None:
    found = plan("fedasync.alpha=0.4,0.6", "method.alpha=0.5", methods="cabafl,fedasync,fedavg").cases
    assert [(case.label, case.experiment.method.parameters) for case in found] == [
        ("cabafl", {"alpha": 0.5}),
        ("fedasync (alpha = 0.4)", {"alpha": 0.4}),
        ("fedasync (alpha = 0.6)", {"alpha": 0.6}),
        ("fedavg", {}),
    ]
    both = plan("fedasync.alpha=0.4,0.6", "cabafl.alpha=0.5,0.7", methods="cabafl,fedasync")
    assert list(both.sweep.keys.values()) == ["fedasync.alpha", "cabafl.alpha"]
    assert list(both.sweep.keys) == ["fedasync.alpha", "cabafl.alpha"]  # "alpha" alone would be ambiguous


def test_keys_of_the_file_belong_to_its_method(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[data]\nbeta = 0.3\n[method]\nm = 9\n")
    own = plan("method.k=5,10", file=file).cases
    assert own[0].experiment.method.parameters == {"m": 9, "k": 5}
    other = plan("method.alpha=0.4,0.6", "method.name=fedasync", file=file).cases
    assert other[0].experiment.method.parameters == {"alpha": 0.4}
    both = plan("fleet.slots=5,10", methods="cabafl,fedavg", file=file).cases
    assert [case.experiment.method.parameters for case in both] == [{"m": 9}, {"m": 9}, {}, {}]
    assert {case.experiment.data.beta for case in both} == {0.3}


def test_rules_about_several_keys_hold_in_every_combination() -> None:
    assert len(plan("privacy.dp_clip=0.5,1.0", "privacy.dp_noise=1.0").cases) == 2
    with pytest.raises(UserError, match=r"fleet\.slots = 30: at most the number of devices, 20"):
        plan("data.devices=20,40", "fleet.slots=10,30")


def test_folder_names_are_plain_and_different() -> None:
    settings = ("model.name=cnn,my/net:A,my_net:A", "data.beta=0.1,1.0")
    names = [case.name for case in plan(*settings).cases]
    assert names[:2] == ["cabafl-namecnn-beta0.1", "cabafl-namecnn-beta1"]
    assert len(set(names)) == 6
    assert all(set(name).isdisjoint(" /:=\\") for name in names)
    long = [case.name for case in plan(f"data.root={'a' * 300},{'a' * 301}").cases]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 150
    assert plan("data.beta=0.10,1e0").cases[0].name == plan("data.beta=0.1,1").cases[0].name  # the same runs


WRONG = {
    ("data.betta=0.1,0.5",): "data.betta = 0.1: unknown key, did you mean 'beta'?",
    ("method.kk=5,10",): "method.kk = 5: unknown key, did you mean 'k'?",
    ("dta.beta=0.1,0.5",): "dta.beta: unknown section, did you mean 'data'?; accepted: data, task, model,",
    (
        "fedavg.weighting=samples,uniform",
    ): "fedavg.weighting: a setting for a method that does not run; accepted: cabafl",
    ("beta=0.1,0.5",): "beta: not a key; accepted: section.key",
    ("method.k=",): "method.k = : no value",
    ("method.k=5,,10",): "method.k = 5,,10: an empty value",
    ("method.k=5,many",): "method.k = 'many': accepted: 'auto' or a whole number from 1",
    ("method.k=5,2.5",): "method.k = 2.5: accepted: 'auto' or a whole number from 1",
    ("data.beta=0.1,-1",): "data.beta = -1: input should be greater than 0",
    ("method.k=5,10,5",): "method.k = 5,10,5: 5 is there twice",
    ("data.beta=1,1.0",): "data.beta = 1,1.0: 1 is there twice",
    ('data.devices=auto,"auto"',): "auto is there twice",
    ("method.k=5,10", "method.k=20"): "method.k: given twice",
    ("seed=1,2,3",): "seed = 1,2,3: seeds are not swept; accepted: --seeds 3",
    ("method.name=cabafl,fedavg",): "methods are not swept; accepted: --methods cabafl,fedavg",
    ("run.workers=1,2",): "run.workers = 1,2: changes no result",
    ("run.device=cpu,cuda",): "run.device = cpu,cuda: changes no result",
    ("run.wall_time=60,120",): "run.wall_time = 60,120: changes no result",
    ("deploy.job_ttl=60,120",): "deploy.job_ttl = 60,120: changes no result",
    ("method.k=5",): "sweep: no key has several values",
    (): "sweep: no key has several values",
    ("method.k=5,10", "method.name=cabaffl"): "method.name = 'cabaffl': unknown, did you mean 'cabafl'?",
    ("method.k=5,10", "cabafl.name=fedavg"): "cabafl.name: not a key of a method",
}


@pytest.mark.parametrize("settings", list(WRONG))
def test_a_wrong_sweep_is_one_line(settings: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as refused:
        plan(*settings)
    assert WRONG[settings] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_wrong_keys_of_several_methods_are_one_line() -> None:
    with pytest.raises(UserError, match=r"^method\.gama: none of cabafl, fedavg has this key, did you mean 'gamma'\?$"):
        plan("method.gama=0.1,0.2", methods="cabafl,fedavg")
    with pytest.raises(UserError, match="did you mean 'fedavg'"):
        plan("method.k=5,10", methods="cabafl,fedavgg")
    with pytest.raises(UserError, match=r"method\.name = 'nowhere:Mine': cannot be used"):
        plan("method.k=5,10", methods="cabafl,nowhere:Mine")


def test_an_absurd_number_of_runs_is_refused_at_once() -> None:
    ten = ",".join(map(str, range(1, 11)))
    with pytest.raises(UserError, match=r"^sweep: 6,000 runs; accepted: at most 5,000"):
        plan("method.k=1,2", *(f"fleet.{key}={ten}" for key in ("slots", "link_seconds", "radio_watts")), seeds=3)
    with pytest.raises(UserError, match=r"^method\.k: 50,000 values; accepted: at most 5,000 runs$"):
        plan(f"method.k={','.join(map(str, range(50_000)))}")
