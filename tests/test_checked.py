"""The method of an experiment and its own keys."""

import subprocess
import sys
from pathlib import Path

import pytest

from cabafl.checked import load_checked, make_method
from cabafl.errors import UserError
from cabafl.methods.base import Job, LossReason, Method, Server, Upload


def test_the_method_and_all_its_wrong_keys_are_named() -> None:
    with pytest.raises(UserError) as refused:
        load_checked(None, ["method.name=fedavg", "method.kk=1", "method.weight=2"])
    assert str(refused.value) == (
        "method.kk = 1: unknown key; method.weight = 2: unknown key, did you mean 'weighting'?; accepted by fedavg: "
        "weighting, normaliser, round_timeout"
    )


def test_a_wrong_key_of_the_method_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[method]\ngama = 1\n")
    with pytest.raises(UserError, match=r"mine\.toml: method\.gama = 1: unknown key, did you mean 'gamma'"):
        load_checked(file, ["seed=3"])
    file.write_text("[method]\ngamma = 0.1\n")
    with pytest.raises(UserError, match=r"^method\.gama = 1: unknown key, did you mean 'gamma'"):
        load_checked(file, ["method.gama=1"])


def test_wrong_keys_of_the_method_and_of_other_tables_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[data]\nbetta = 1\n[method]\nname = 'fedavg'\ngama = 1\n")
    with pytest.raises(UserError, match=r"mine\.toml: data\.betta = 1: .*; method\.gama = 1: .*; accepted by fedavg: "):
        load_checked(file, [])
    with pytest.raises(UserError, match=r"data\.betta = 1: .*; method\.kk = 2: .*; accepted by fedprox: ") as refused:
        load_checked(file, ["method.name=fedprox", "method.kk=2"])
    assert "gama" not in str(refused.value)  # the file's keys are not for another method
    with pytest.raises(UserError, match=r"^data\.betta = 1: [^;]*; accepted in \[data\]: [^;]*$"):
        load_checked(None, ["data.betta=1"])
    with pytest.raises(UserError, match=r"^[^;]*nothing\.toml: cannot be read [^;]*; accepted: an experiment file$"):
        load_checked(tmp_path / "nothing.toml", [])


def test_a_key_of_the_method_without_its_table() -> None:
    with pytest.raises(UserError, match=r"^k = 20: unknown key, did you mean 'method\.k'\?"):
        load_checked(None, ["k=20"])
    with pytest.raises(UserError, match=r"^zzz = 20: unknown key; accepted here: seed, data"):
        load_checked(None, ["zzz=20"])
    with pytest.raises(UserError, match=r"data\.bta = 1: unknown key.*k = 20: unknown key"):
        load_checked(None, ["k=20", "data.bta=1"])


def test_what_is_checked_can_be_made() -> None:
    method = make_method(load_checked(None, ["method.name=fedasync", "method.alpha=0.3"]))
    assert method.parameters.model_dump()["alpha"] == 0.3


@pytest.mark.parametrize("command", [["methods"], ["models"], ["config"], ["data", "list"], ["--version"]])
def test_quick_commands_load_no_large_package(command: list[str], tmp_path: Path) -> None:
    program = (
        f"import sys\nsys.argv = ['cabafl', *{command!r}]\nfrom cabafl.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print([name for name in ('torch', 'pandas', 'matplotlib') if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


class Half(Method):
    """Lacks what every method has."""

    def start(self, server: Server) -> None:
        """Sends nothing."""


class Whole(Half):
    """Has it."""

    name = "whole"

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Hears of an upload."""

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Hears of a loss."""


class Short(Whole):
    """Forgets that it is called with an argument."""

    def on_upload(self, server: Server) -> None:  # type: ignore[override]
        """Cannot hear of an upload."""


class Keyless(Whole):
    """Forgets its parameters."""

    def __init__(self) -> None:
        """Takes none."""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Half", "the class has no on_upload, on_loss, name; accepted: one that has$"),
        ("Short", "its on_upload is called with 2 arguments besides self: too many positional arguments$"),
        ("Keyless", "its __init__ is called with 1 argument besides self: too many positional arguments$"),
    ],
)
def test_a_class_that_cannot_be_called_is_refused_before_the_run(name: str, line: str) -> None:
    with pytest.raises(UserError, match=f"^method.name = '{__name__}:{name}': {line}"):
        load_checked(None, [f"method.name={__name__}:{name}"])
    load_checked(None, [f"method.name={__name__}:Whole"])
