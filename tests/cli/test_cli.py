"""The command line as a user meets it: real processes, real exit codes."""

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import typer.main

from cabafl.cli import main
from cabafl.cli.main import app

CABAFL = [sys.executable, "-m", "cabafl"]
QUICK = [
    "data.dataset=synthetic",
    "data.devices=10",
    "model.name=mlp",
    "run.virtual_time=40",
    "run.evaluate_every=4",
]


def cabafl(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CABAFL, *words],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def arrays(path: Path, **changes: object) -> Path:
    draw = np.random.default_rng(1)
    content = {
        "x_train": draw.random((60, 4), dtype=np.float32),
        "y_train": np.arange(60) % 3,
        "x_test": draw.random((9, 4), dtype=np.float32),
        "y_test": np.arange(9) % 3,
        **changes,
    }
    np.savez(path, **{name: value for name, value in content.items() if value is not None})  # type: ignore[arg-type]
    return path


class Hostile:
    """A pickle that would run a program when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch hacked",)


def cifar(root: Path, content: bytes) -> str:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(content)
    return str(root)


def nan_arrays(root: Path) -> str:
    x = np.zeros((60, 4), dtype=np.float32)
    x[7, 2] = np.nan
    return str(arrays(root / "nan.npz", x_train=x))


BAD: dict[str, tuple[list[str] | Callable[[Path], list[str]], str]] = {
    "wrong key": (["method.gama=0.3"], "method.gama = 0.3: unknown key, did you mean 'gamma'?"),
    "wrong section key": (["data.betta=0.3"], "data.betta = 0.3: unknown key, did you mean 'beta'?"),
    "unknown section": (["fleat.slots=3"], "fleat = {'slots': 3}: unknown key, did you mean 'fleet'?"),
    "wrong type": (["training.epochs=many"], "training.epochs = 'many': input should be a valid integer"),
    "wrong choice": (["data.partition=dirichlett"], "did you mean 'dirichlet'?"),
    "beta not positive": (["data.beta=0"], "data.beta = 0: input should be greater than 0"),
    "unknown data set": (["data.dataset=cifar"], "did you mean 'cifar10'?"),
    "missing data": (["data.dataset=cifar10"], "cabafl data fetch cifar10"),
    "truncated pickle": (lambda d: ["data.dataset=cifar10", f"data.root={cifar(d, b'half a pickle')}"], "data_batch_1"),
    "hostile pickle": (
        lambda d: ["data.dataset=cifar10", f"data.root={cifar(d, pickle.dumps(Hostile()))}"],
        "data_batch_1",
    ),
    "wrong-shape npz": (
        lambda d: ["data.dataset=npz", f"data.root={arrays(d / 'a.npz', y_train=np.zeros(3, dtype=int))}"],
        "y_train",
    ),
    "npz without test": (
        lambda d: ["data.dataset=npz", f"data.root={arrays(d / 'a.npz', x_test=None)}"],
        "x_test",
    ),
    "NaN in data": (lambda d: ["data.dataset=npz", "model.name=mlp", f"data.root={nan_arrays(d)}"], "x_train"),
    "no users": (
        lambda d: ["data.dataset=npz", f"data.root={arrays(d / 'a.npz')}", "data.partition=natural"],
        "natural",
    ),
    "slots > devices": (["data.devices=20", "fleet.slots=21"], "fleet.slots = 21: at most the number of devices, 20"),
    "slots > automatic devices": (["fleet.slots=101"], "fleet.slots = 101: at most the number of devices, 100"),
    "unknown method": (["method.name=cabaffl"], "method.name = 'cabaffl': unknown, did you mean 'cabafl'?"),
    "method not found": (["method.name=nowhere:Method"], "method.name = 'nowhere:Method': cannot be used"),
    "unknown model": (["model.name=resnet"], "did you mean 'resnet18'?"),
    "feature layer": (["model.feature_layer=relu9"], "model.feature_layer = 'relu9'"),
    "impossible split": (["data.beta=0.01", "data.min_samples=35"], "min_samples"),
    "impossible size": (["data.min_samples=900"], "min_samples"),
    "no end": (["run.virtual_time=none"], "run.virtual_time or run.max_dispatches"),
    "tier counts": (["fleet.tiers={ high = 3 }"], "fleet.tiers: the counts add up to 3"),
    "unknown tier": (["fleet.tiers={ fast = 3 }"], "excellent"),
    "not a setting": (["data.beta"], "data.beta"),
    "no GPU": (["run.device=cuda"], "run.device = 'cuda'"),
    "bad device": (["run.device=tpu"], "run.device = 'tpu'"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_one_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if case == "no GPU" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    words, says = BAD[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path / "none"))
    settings = words(tmp_path) if callable(words) else words
    monkeypatch.setattr(sys, "argv", ["cabafl", "run", *settings, "--out", "run"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main()
    output, errors = capsys.readouterr()
    assert ended.value.code == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert says in errors
    assert output == ""
    assert not (tmp_path / "run").exists()  # nothing that looks like a run
    assert not (tmp_path / "hacked").exists()


def test_bad_input_in_a_real_process(tmp_path: Path) -> None:
    done = cabafl("run", "method.gama=0.3", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: method.gama = 0.3")


def test_unwritable_and_existing_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = cabafl("run", *QUICK, "--out", "file/run", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "file/run" in done.stderr
    full = tmp_path / "full"
    full.mkdir()
    (full / "summary.json").write_text("precious")
    done = cabafl("run", *QUICK, "--out", "full", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "not empty" in done.stderr
    assert [path.name for path in full.iterdir()] == ["summary.json"]
    assert (full / "summary.json").read_text() == "precious"


def test_missing_and_broken_experiment_files(tmp_path: Path) -> None:
    done = cabafl("run", "nothing.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    (tmp_path / "broken.toml").write_text("[data\n")
    done = cabafl("run", "broken.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "broken.toml" in done.stderr


def test_run_prints_a_table_and_the_curve_without_colour(tmp_path: Path) -> None:
    done = cabafl("run", *QUICK, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best 10-evaluation window" in done.stdout
    assert "curve.png" in done.stdout
    assert "\x1b" not in done.stdout
    assert (tmp_path / "here" / "summary.json").exists()
    assert (tmp_path / "here" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_quiet_run_of_a_file_with_an_override(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('seed = 3\n[data]\ndataset = "synthetic"\ndevices = 10\n[model]\nname = "mlp"\n')
    done = cabafl("run", "e.toml", "run.virtual_time=20", "--quiet", "--out", "here", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["seed"] == 3


def test_users_own_model_and_method_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from cabafl.methods.fedavg import FedAvg\n"
        "class Mine(FedAvg):\n    name = 'mine'\n"
        "def net(shape, classes):\n    return nn.Sequential(nn.Linear(shape[0], classes))\n"
    )
    done = cabafl("run", *QUICK, "model.name=mine:net", "method.name=mine:Mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_printed_configuration_is_a_working_file(tmp_path: Path) -> None:
    done = cabafl("config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "all.toml").write_text(done.stdout)
    again = cabafl("config", "all.toml", cwd=tmp_path)
    assert again.stdout == done.stdout
    changed = cabafl("config", "all.toml", "method.k=7", 'fleet.tiers="config2"', cwd=tmp_path)
    assert "k = 7" in changed.stdout
    assert 'tiers = "config2"' in changed.stdout


def test_a_switched_off_limit_survives_the_file(tmp_path: Path) -> None:
    done = cabafl("config", "run.max_dispatches=5", cwd=tmp_path)
    assert 'virtual_time = "none"' in done.stdout
    (tmp_path / "all.toml").write_text(done.stdout)
    again = cabafl("config", "seed=1", "all.toml", cwd=tmp_path)
    assert again.stdout == done.stdout


@pytest.mark.parametrize("command", [["methods"], ["models"], ["data", "list"], ["--help"], ["bench", "--help"]])
def test_lists(command: list[str], tmp_path: Path) -> None:
    done = cabafl(*command, cwd=tmp_path)
    assert done.returncode == 0
    assert "cabafl" in done.stdout or "cnn" in done.stdout


def test_help_explains_every_argument_and_option() -> None:
    def silent(command: click.Command, name: str) -> Iterator[str]:
        yield from (f"{name}: {each.name}" for each in command.params if not getattr(each, "help", None))
        for inner, below in getattr(command, "commands", {}).items():
            yield from silent(below, f"{name} {inner}")

    assert list(silent(typer.main.get_command(app), "cabafl")) == []


def test_data_show_draws_the_partition(tmp_path: Path) -> None:
    done = cabafl("data", "show", "mnist5k", "data.beta=0.3", "data.devices=20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4,000 of 4,000 training samples" in done.stdout
    assert (tmp_path / "partition-mnist5k.png").read_bytes().startswith(b"\x89PNG")


def test_bench_selection_prints_a_row_per_number_of_devices(tmp_path: Path) -> None:
    done = cabafl("bench", "selection", "--devices", "50", "--devices", "200", "--repetitions", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "200" in done.stdout


def test_interrupt_leaves_a_readable_folder_that_does_not_look_complete(tmp_path: Path) -> None:
    words = ["run", *QUICK, "run.virtual_time=1000000", "--out", "here"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*CABAFL, *words], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    metrics = tmp_path / "here" / "metrics.csv"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 4) and time.monotonic() < deadline:
        time.sleep(0.1)
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
    limits = ["data.train_limit=200", "data.test_limit=20", "run.max_dispatches=2", "training.epochs=1"]
    done = cabafl("run", *settings, *limits, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
