"""`cabafl run`: output, settings, the user's own code, and Ctrl-C."""

import gzip
import json
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cabafl.cli.run import new_folder
from cabafl.config import Experiment
from tests.cli.program import CABAFL, QUICK, cabafl, cabafl_here


def test_run_prints_a_table_and_the_curve_without_colour(tmp_path: Path) -> None:
    done = cabafl("run", *QUICK, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best window of 10 versions" in done.stdout
    assert "curve.png" in done.stdout
    assert "\x1b" not in done.stdout
    assert (tmp_path / "here" / "summary.json").exists()
    assert (tmp_path / "here" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_quiet_run_of_a_file_with_an_override(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('seed = 3\n[data]\ndataset = "synthetic"\ndevices = 10\n[model]\nname = "mlp"\n')
    done = cabafl("run", "e.toml", "run.virtual_time=20", "run.workers=0", "--quiet", "--out", "here", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["seed"] == 3


def test_own_model_and_method_are_imported_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from cabafl.methods.fedavg import FedAvg\n"
        "class Mine(FedAvg):\n    name = 'mine'\n"
        "def net(shape, classes):\n    return nn.Sequential(nn.Linear(shape[0], classes))\n"
    )
    done = cabafl("run", *QUICK, "run.workers=1", "model.name=mine:net", "method.name=mine:Mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_files_in_the_working_folder_hide_no_module(tmp_path: Path) -> None:
    for name in ("queue", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user')\n")
    compared = ["compare", "--methods", "fedavg", "--jobs", "2", *QUICK, "--quiet"]  # a run of its own with two workers
    done = cabafl(*compared, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_interrupt_leaves_a_readable_folder_without_a_summary(tmp_path: Path) -> None:
    words = ["run", *QUICK, "run.virtual_time=1000000", "run.workers=1", "--out", "here"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*CABAFL, *words], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    metrics = tmp_path / "here" / "metrics.csv"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 4) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "cabafl resume here" in output
    assert not (tmp_path / "here" / "summary.json").exists()
    assert (tmp_path / "here" / "curve.png").exists()
    events = (tmp_path / "here" / "events.jsonl").read_text().splitlines()
    assert all(json.loads(line)["event"] for line in events)


def test_shakespeare_roles_with_the_lstm(tmp_path: Path) -> None:
    text = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings. " * 6
    roles = {f"hamlet__ROLE_{i}": [text, text] for i in range(4)}
    with gzip.open(tmp_path / "roles.json.gz", "wt") as file:
        json.dump(roles, file)
    settings = ["data.dataset=shakespeare", "data.root=roles.json.gz", "data.partition=natural", "model.name=lstm"]
    limits = [
        "data.train_limit=200",
        "data.test_limit=20",
        "run.max_dispatches=2",
        "training.epochs=1",
        "run.workers=0",
    ]
    done = cabafl_here("run", *settings, *limits, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        folders = [each.result() for each in [threads.submit(new_folder, Experiment()) for _ in range(40)]]
    assert len(set(folders)) == 40
    assert all(folder.is_dir() for folder in folders)


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    done = cabafl("run", *QUICK, "run.workers=1", "model.name=resnet18", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_file_in_the_way_of_the_run_folders(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    done = cabafl_here("run", *QUICK, "run.workers=0", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be made: Not a directory; accepted: --out DIR" in done.stderr


WAITING = """
import threading
import time
from pathlib import Path
from torch.optim import SGD

class Waiting(SGD):
    def step(self):
        while len(self.param_groups[0]["params"]) > 1 and not Path("go").exists():  # not when it is only tried out
            time.sleep(0.01)
        super().step()
"""


def test_the_first_line_of_a_piped_run_comes_before_any_training_is_done(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    own = ["training.optimiser=waiting:Waiting", "training.momentum=0", "method.name=fedavg", "run.workers=0"]
    words = [*CABAFL, "run", *QUICK, *own, "--out", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        killer = threading.Timer(100, process.kill)
        killer.start()
        first = process.stdout.readline()
        (tmp_path / "go").touch()
        process.communicate()
        killer.cancel()
    assert first.startswith("  0 %  t = 0 s  0 uploads")
    assert process.returncode == 0
