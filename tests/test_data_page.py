"""The examples of docs/data.md work as they stand."""

import os
import re
from contextlib import chdir
from pathlib import Path

import pytest

from tests.cli.program import cabafl_here

PAGE = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def blocks(title: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), re.M | re.S)
    return [text for kind, text in found if kind == language]


def run_commands(title: str, folder: Path) -> list[str]:
    """Runs the commands of a section, without worker processes; returns what each prints."""
    printed = []
    for line in "\n".join(blocks(title, "")).splitlines():
        words = line.removeprefix("$ ").split()
        if words[:1] == ["cabafl"]:
            done = cabafl_here(*words[1:], *["run.workers=0"] * (words[1] == "run"), cwd=folder)
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            printed.append(done.stdout)
    return printed


def run_python(title: str, folder: Path) -> None:
    for code in blocks(title, "python"):
        with chdir(folder):
            exec(compile(code, "data.md", "exec"), {})


@pytest.mark.parametrize("title", ["Your own arrays", "Data from Python"])
def test_python_examples(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)  # a core has one worker process
    run_python(title, tmp_path)
    run_commands(title, tmp_path)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1


def test_the_example_of_a_function(tmp_path: Path) -> None:
    [code] = blocks("Your own function", "python")
    (tmp_path / "my_module.py").write_text(code)
    assert len(run_commands("Your own function", tmp_path)) == 2
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2


def test_the_transcript_of_a_table(tmp_path: Path) -> None:
    title = "Tables, time series and images"
    run_python(title, tmp_path)
    [transcript] = blocks(title, "")
    shown = transcript.splitlines()
    assert (tmp_path / "steps.csv").read_text().splitlines()[:3] == shown[1:4]
    made, ran = run_commands(title, tmp_path)
    assert made in transcript, "the command prints what the page shows"
    first, last = (line.split("accuracy")[0] for line in (shown[-3], shown[-1]))
    assert ran.startswith(first)
    assert last in ran
    assert (tmp_path / "runs" / "steps" / "model.safetensors").exists()
