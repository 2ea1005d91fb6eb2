"""Invalid input ends in one line on standard error and exit code 2, and leaves nothing behind."""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cabafl.cli import main
from tests.cli.program import QUICK, cabafl, cabafl_here


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
    """Its pickle runs a program when it is loaded."""

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


NUMBERS = ["task.name=regression", "data.dataset=synthetic", "data.partition=natural", "model.name=mlp"]
BAD: dict[str, tuple[list[str] | Callable[[Path], list[str]], str]] = {
    "wrong key": (["method.gama=0.3"], "method.gama = 0.3: unknown key, did you mean 'gamma'?"),
    "name of the method": (["method.nme=fedavg"], "method.nme = 'fedavg': unknown key, did you mean 'name'?"),
    "wrong section key": (["data.betta=0.3"], "data.betta = 0.3: unknown key, did you mean 'beta'?"),
    "value for a section": (["data=synthetic"], "data = 'synthetic': is a section; accepted: data.KEY=VALUE; `cabafl"),
    "unknown section": (["fleat.slots=3"], "fleat = {'slots': 3}: unknown key, did you mean 'fleet'?"),
    "wrong type": (["training.epochs=many"], "training.epochs = 'many': input should be a valid integer"),
    "wrong choice": (["data.partition=dirichlett"], "did you mean 'dirichlet'?"),
    "beta not positive": (["data.beta=0"], "data.beta = 0: input should be greater than 0"),
    "unknown data set": (["data.dataset=cifar"], "did you mean 'cifar10'?"),
    "a file as data set": (["data.dataset=a.npz"], "'a.npz': is a file; accepted: data.dataset=npz data.root=a.npz"),
    "a table as data set": (["data.dataset=a.csv"], "accepted: the .npz file that `cabafl data convert a.csv --out"),
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
    "no end": (["run.virtual_time=none"], "error: run.virtual_time, run.max_dispatches: both missing"),
    "tier counts": (["fleet.tiers={ high = 3 }"], "fleet.tiers: the counts add up to 3"),
    "unknown tier": (["fleet.tiers={ fast = 3 }"], "excellent"),
    "not a setting": (["data.beta"], "data.beta"),
    "unknown task": (["task.name=regresion"], "task.name = 'regresion': unknown, did you mean 'regression'?"),
    "task not found": (["task.name=nowhere:Task"], "task.name = 'nowhere:Task': cannot be imported"),
    "unknown metric": (["task.metrics=mse"], "task.metrics = 'mse': unknown; accepted: accuracy, macro_f1, top5"),
    "classes as numbers": (
        ["task.name=regression"],
        "task.name = 'regression': the targets of the data are int64 of shape (1000,); accepted: floating-point",
    ),
    "partition by class": ([*NUMBERS, "data.partition=dirichlet"], "data.partition = 'dirichlet': the samples have no"),
    "label features": ([*NUMBERS, "method.features=labels"], "method.features = 'labels': the samples have no classes"),
    "label counts": ([*NUMBERS, "method.name=periodic"], "method.name = 'periodic': the samples have no classes"),
    "flipped numbers": (
        [*NUMBERS, "fleet.faults.attack=label-flip"],
        "fleet.faults.attack = 'label-flip': the samples",
    ),
    "unknown optimiser": (["training.optimiser=adamx"], "training.optimiser = 'adamx': unknown, did you mean 'adam"),
    "optimiser not found": (["training.optimiser=no:Where"], "training.optimiser = 'no:Where': cannot be imported: No"),
    "not an optimiser": (["training.optimiser=math:sqrt"], "training.optimiser = 'math:sqrt': cannot be used"),
    "keys of adam": (
        ["training.betas=[0.5, 0.5]"],
        "training.betas = [0.5, 0.5]: has no effect; accepted",
    ),
    "momentum of adam": (
        ["training.optimiser=adam", "training.momentum=0.9"],
        "training.momentum = 0.9: has no effect; accepted: with training.optimiser = sgd",
    ),
    "wrong betas": (["training.optimiser=adam", "training.betas=[0.5, 1.5]"], "training.betas.1 = 1.5"),
    "nesterov alone": (["training.nesterov=true", "training.momentum=0"], "training.nesterov = true: accepted: with"),
    "options of sgd": (["training.options={ rho = 1 }"], "training.options = {'rho': 1}: has no effect"),
    "unknown schedule": (
        ["training.schedule=cosinus"],
        "training.schedule = 'cosinus': unknown, did you mean",
    ),
    "no length": (["training.schedule=step"], "training.schedule_length: not set; training.schedule = step over time"),
    "target in percent": (
        ["run.stop_at=90"],
        "run.stop_at = 90: accuracy is a share; accepted: above 0, at most 1, 0.9",
    ),
    "target 0": (["run.stop_at=0"], "run.stop_at = 0: accuracy is a share; accepted: above 0, at most 1"),
    "target above 1": (["run.stop_at=1.5"], "run.stop_at = 1.5: accuracy is a share; accepted: above 0, at most 1"),
    "target no error reaches": (
        [*NUMBERS, "run.stop_at=-1"],
        "run.stop_at = -1: no mse can reach it; accepted: a number, at least 0",
    ),
    "target no R2 reaches": (
        [*NUMBERS, "task.metric=r2", "run.stop_at=90"],
        "run.stop_at = 90: no r2 can reach it; accepted: a number, at most 1",
    ),
    "folder of generated data": (
        ["data.dataset=synthetic", "data.root=mine"],
        "data.root = 'mine': data.dataset = 'synthetic' reads no folder; accepted: none, or with mnist5k, mnist,",
    ),
    "folder of a function": (
        ["data.dataset=math:sqrt", "data.root=mine"],
        "data.root = 'mine': data.dataset = 'math:sqrt' reads no folder",
    ),
    "folder of mnist5k": (["data.root=mine"], "data set mnist5k: mine/mnist_5k.csv.gz not found; comes with"),
    "schedule not found": (["training.schedule=no:where"], "training.schedule = 'no:where': cannot be imported"),
    "schedule of zero": (
        ["training.schedule=math:sin"],
        "training.schedule = 'math:sin': 0.0 at 0 s; accepted",
    ),
    "length of constant": (
        ["training.schedule_length=9"],
        "training.schedule_length = 9.0: has no effect",
    ),
    "unknown augmentation": (["training.augment=flop"], "training.augment = 'flop': unknown, did you mean 'flip'?"),
    "flipped vectors": (
        ["data.dataset=synthetic", "training.augment=flip"],
        "training.augment = 'flip': is for",
    ),
    "augmentation fails": (["training.augment=math:sqrt"], "training.augment = 'math:sqrt': cannot be used"),
    "smoothed numbers": ([*NUMBERS, "training.label_smoothing=0.1"], "training.label_smoothing = 0.1: task.name"),
    "no weights": (
        ["model.weights=none.safetensors"],
        "model.weights = 'none.safetensors': cannot be read: No",
    ),
    "not weights": (
        lambda d: [f"model.weights={arrays(d / 'a.npz')}"],
        "cannot be read; accepted: a safetensors file, or a state dictionary",
    ),
    "more devices than there are": (
        ["data.devices=20", "run.evaluate_devices=21"],
        "run.evaluate_devices = 21: only 20 devices have samples to evaluate; accepted: 1 to 20",
    ),
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
    done = cabafl_here("run", *QUICK, "run.workers=0", "--out", "file/run", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "file/run" in done.stderr
    full = tmp_path / "full"
    full.mkdir()
    (full / "summary.json").write_text("precious")
    done = cabafl("run", *QUICK, "run.workers=1", "--out", "full", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "not empty" in done.stderr
    assert [path.name for path in full.iterdir()] == ["summary.json"]
    assert (full / "summary.json").read_text() == "precious"


def test_missing_and_broken_experiment_files(tmp_path: Path) -> None:
    done = cabafl_here("run", "nothing.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    (tmp_path / "broken.toml").write_text("[data\n")
    done = cabafl_here("run", "broken.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "broken.toml" in done.stderr
