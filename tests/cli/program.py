"""Runs `cabafl` as a process, as a user does."""

import os
import subprocess
import sys
from pathlib import Path

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
