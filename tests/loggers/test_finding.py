"""What ``run.log`` accepts; everything else is one line before the run begins."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cabafl import UserError, load_experiment, simulate
from cabafl.loggers import finding
from tests.runs import settings

OWN = "tests.loggers.own"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("none", None),
        ("[]", []),
        ("tensorboard", ["tensorboard"]),
        ("tensorboard, wandb", ["tensorboard", "wandb"]),
        ('["mlflow", "a.b:C"]', ["mlflow", "a.b:C"]),
    ],
)
def test_accepted(value: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(UserError, match=r"^run.log = None: accepted: a list of tensorboard, mlflow, wandb and my_"):
            load_experiment(None, [f"run.log={value}"])
    else:
        assert load_experiment(None, [f"run.log={value}"]).run.log == expected


@pytest.mark.parametrize("value", ["tensorbord", "3", "[1]", "a.b:", "wandb,wandb", "{ a = 1 }", '["../x:C"]'])
def test_refused_by_the_file(value: str) -> None:
    with pytest.raises(UserError, match=r"^run.log = .*accepted: a list of tensorboard, mlflow, wandb and my_module"):
        load_experiment(None, [f"run.log={value}"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{OWN}:something", "is not a subclass of cabafl.Logger"),
        (f"{OWN}:Nothing", "cannot be imported: AttributeError: "),
        ("no.such.module:Logger", "cannot be imported: ModuleNotFoundError: "),
    ],
)
def test_refused_before_the_run_begins(name: str, message: str, tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("fedavg", "run.workers=0", f"run.log={name}"))
    with pytest.raises(UserError, match=f"^run.log = '{name}': {message}") as refused:
        simulate(experiment, tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(wanted: str) -> Any:
        return None if wanted == name else find_spec(wanted)

    monkeypatch.setattr(finding, "find_spec", missing)
    experiment = load_experiment(None, settings("fedavg", "run.workers=0", f"run.log={name}"))
    with pytest.raises(UserError, match=rf"^run.log = '{name}': needs {name}: pip install 'cabafl\[{name}\]'"):
        simulate(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
