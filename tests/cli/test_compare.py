"""Which runs `cabafl compare` and `cabafl ablate` make of a command line; nothing is run here."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cabafl.cli import compare, main
from tests.cli.program import refused

FILE = '[method]\nname = "cabafl"\nk = 7\n'


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Mapping[str, Any]]:
    """The variants that the command would run."""
    found: dict[str, Mapping[str, Any]] = {}
    monkeypatch.setattr(compare, "_run_and_report", lambda base, variants, *_: found.update(variants))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "a.toml").write_text(FILE)
    return found


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["cabafl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_keys_of_the_file_belong_to_its_method(
    variants: dict[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("a.toml", "method.name=fedavg", "method.weighting=uniform", "--methods", "cabafl,fedavg,fedasync")
    assert command(monkeypatch, "compare", *words) == 0
    assert variants == {
        "cabafl": {"name": "cabafl", "k": 7},
        "fedavg": {"name": "fedavg", "weighting": "uniform"},
        "fedasync": {"name": "fedasync"},
    }


def test_a_study_of_cabafl_refuses_another_method(
    variants: dict[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "ablate", "a.toml", "method.name=fedavg") == 2
    assert capsys.readouterr().err == ("error: method.name = 'fedavg': the study varies CaBaFL; accepted: cabafl\n")
    assert not variants
    Path("a.toml").write_text('[method]\nname = "fedavg"\nweighting = "uniform"\n')
    assert command(monkeypatch, "ablate", "a.toml", "method.name=cabafl", "method.k=9") == 0
    assert variants["conf4"] == {"name": "cabafl", "k": 9, "l1_cache": False}


@pytest.mark.parametrize(("word", "says"), [("run.stop_at=90", "run.stop_at = 90"), ("--targets=900", "--targets")])
def test_a_target_that_no_run_can_reach_is_refused_before_any_run(
    word: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(["compare", word], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_key_for_a_method_that_is_not_compared_is_refused(
    variants: dict[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "compare", "method.k=1", "--methods", "fedavg,fedprox") == 2
    assert capsys.readouterr().err == (
        "error: method.k=1: is for method.name = cabafl, which is not compared; accepted: NAME.key=value for one of "
        "fedavg, fedprox, or cabafl in --methods\n"
    )
    assert not variants
    assert command(monkeypatch, "compare", "a.toml", "--methods", "fedavg") == 0  # the file is for other commands, too
    assert variants == {"fedavg": {"name": "fedavg"}}
