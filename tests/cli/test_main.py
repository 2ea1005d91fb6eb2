"""Lists and help texts."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

from cabafl import __version__
from cabafl.cli.main import app
from tests.cli.program import cabafl, refused


@pytest.mark.parametrize("command", [["methods"], ["models"], ["data", "list"], ["--help"], ["bench", "--help"]])
def test_lists(command: list[str], tmp_path: Path) -> None:
    done = cabafl(*command, cwd=tmp_path)
    assert done.returncode == 0
    assert "cabafl" in done.stdout or "cnn" in done.stdout


def test_version(tmp_path: Path) -> None:
    done = cabafl("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"cabafl {__version__}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runn"], "No such command 'runn'. Did you mean 'run'?; see `cabafl --help`"),
        (["rum"], "No such command 'rum'. Did you mean 'run', 'resume'?; see `cabafl --help`"),
        (["run", "--outt", "x"], "No such option '--outt'"),
        (
            ["run", "--until", "soon"],
            "'--until': 'soon' is not a valid float; see `cabafl run --help`",
        ),
        (["data", "convert", "mine.csv"], "Missing option '--out'; see `cabafl data convert --help`"),
        (["export"], "Missing argument 'DIR'; see `cabafl export --help`"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(words, monkeypatch, capsys)


def test_without_a_word_the_help_is_printed(tmp_path: Path) -> None:
    for words in ([], ["data"]):
        done = cabafl(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, "")
        assert "Usage: " in done.stdout


def test_help_explains_every_argument_and_option() -> None:
    def silent(command: click.Command, name: str) -> Iterator[str]:
        yield from (f"{name}: {each.name}" for each in command.params if not getattr(each, "help", None))
        for inner, below in getattr(command, "commands", {}).items():
            yield from silent(below, f"{name} {inner}")

    assert list(silent(typer.main.get_command(app), "cabafl")) == []
