"""Runs `cabafl` as a process, as a user does, or in the process of the tests, which has loaded torch already."""

import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

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
        [*CABAFL, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def cabafl_here(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Does what `cabafl` does, in this process, for tests that are about the command and not about its process. The
    user's own modules in the folder are forgotten afterwards."""
    output, errors, path = StringIO(), StringIO(), list(sys.path)
    with (
        chdir(cwd),
        patch.dict(os.environ, COLUMNS="200"),
        patch.object(sys, "argv", ["cabafl", *words]),
        patch.object(sys, "path", path),
        redirect_stdout(output),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(cwd)):
            del sys.modules[name]
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["cabafl", *words], code, output.getvalue(), errors.getvalue())


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
