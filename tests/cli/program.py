"""Runs `cabafl` as a process, as a user does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cabafl.cli import main

CABAFL = [sys.executable, "-P", "-m", "cabafl"]  # -P: the working folder is not searched, as for the installed command
QUICK = [  # settings of a run of a few seconds
    "data.dataset=synthetic",
    "data.devices=10",
    "model.name=mlp",
    "run.virtual_time=40",
    "run.evaluate_every=4",
]


def cabafl(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end; the terminal is 200 columns wide."""
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [*CABAFL, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def refused(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command in this process; it must end in one line on standard error, which is returned, and exit code 2."""
    monkeypatch.setattr(sys, "argv", ["cabafl", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main()
    output, errors = capsys.readouterr()
    assert (ended.value.code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: ")
    return errors
