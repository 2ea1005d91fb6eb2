"""`cabafl export`: which model is written, what is said about it, and what is refused."""

import json
import os
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from cabafl import UserError, export_model, load_experiment, load_model, resume, simulate
from cabafl.cli.main import app
from cabafl.exporting import model as exporting
from cabafl.exporting.formats import FORMATS, SUFFIXES, Format
from cabafl.lifecycle.stopping import Paused
from cabafl.recording.folder import read_metrics
from cabafl.samples import load_data
from tests.runs import settings

RUN = settings("fedavg", "run.workers=0", "data.test_limit=100")


def run(folder: Path, *more: str, until: float | None = None) -> Path:
    simulate(load_experiment(None, [*RUN, *more]), folder, until=until)
    return folder


def command(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, words)], env={"COLUMNS": "300"})
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = ["run.average=polynomial", "run.keep=both"]
    return run(tmp_path_factory.mktemp("finished") / "run", *more)


@pytest.mark.parametrize("form", FORMATS)
def test_a_finished_run(form: Format, finished: Path) -> None:
    printed = command(finished, "--format", form)
    file = finished / "export" / f"model{SUFFIXES[form]}"
    assert printed.startswith(f"{file}: version ")
    assert "Checked on 100 test samples: the same predictions in " in printed
    card = file.with_name(f"{file.name}.md").read_text()
    last = read_metrics(finished)[-1]
    assert last.averaged_value is not None
    assert f"| accuracy on the test samples | {100 * last.averaged_value:.2f} % |" in card
    assert f"| energy of the devices | {last.joules / 1e3:,.1f} kJ |" in card
    assert "| averaged | polynomial average of the published models |" in card
    assert "| licence | none: generated |" in card
    assert 'name = "fedavg"' in card
    with pytest.raises(UserError, match=rf"^--out = {re.escape(str(file))}: exists; accepted: a new file$"):
        command(finished, "--format", form)


def test_onnx_predicts_what_the_run_has_recorded(finished: Path, tmp_path: Path) -> None:
    """With onnxruntime alone, on samples as they are in the data set."""
    found = export_model(finished, tmp_path / "m.onnx", "onnx")
    test = load_data(load_experiment(finished / "experiment.toml")).test
    session = onnxruntime.InferenceSession(str(found.file))
    [outputs] = session.run(["outputs"], {"samples": test.x.numpy()})
    np.testing.assert_array_equal(outputs.argmax(axis=1), load_model(finished).predict(test.x))
    [one] = session.run(["outputs"], {"samples": test.x[:1].numpy()})
    np.testing.assert_allclose(one, outputs[:1], rtol=1e-4, atol=1e-5)
    assert found.figures["accuracy"] == read_metrics(finished)[-1].averaged_value


def test_which_model(finished: Path, tmp_path: Path) -> None:
    last = read_metrics(finished)[-1]
    for flag, name in (("--averaged", "model"), ("--raw", "model-raw"), ("--best", "model-best")):
        out = tmp_path / f"{name}.safetensors"
        command(finished, "--format", "safetensors", flag, "--out", out)
        expected, found = load_file(finished / f"{name}.safetensors"), load_file(out)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in found)
    raw = export_model(finished, tmp_path / "raw.pt", "torchscript", "raw")
    assert raw.figures["accuracy"] == last.value
    assert "| averaged | no |" in raw.card.read_text()
    with pytest.raises(UserError, match=r"^--averaged, --raw, --best: more than one; accepted: one of them, or none$"):
        command(finished, "--format", "onnx", "--raw", "--best")
    plain = run(tmp_path / "plain", "run.virtual_time=10")
    with pytest.raises(UserError, match=r"^--averaged: the run in .* averages no models \(run.average\); accepted: "):
        command(plain, "--format", "onnx", "--averaged")


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        run(folder, "method.name=cabafl", until=40)
    found = export_model(folder, tmp_path / "early.onnx")
    row = read_metrics(folder)[-1]
    assert found.what == f"version {row.version} at 40 s, from the last checkpoint of a run that is not finished"
    assert found.figures["accuracy"] == row.value
    assert "a run that is not finished" in found.card.read_text()
    resume(folder)
    late = export_model(folder, tmp_path / "late.onnx")
    assert late.what == f"version {read_metrics(folder)[-1].version} at 60 s"
    assert late.figures["accuracy"] == read_metrics(folder)[-1].value


def test_a_network_that_cannot_be_exported_is_one_line(tmp_path: Path) -> None:
    here = "tests.exporting.branching"
    other = run(tmp_path / "undecided", f"model.name={here}:Undecided", "run.virtual_time=10")
    with pytest.raises(
        UserError, match=rf"^--format = 'onnx': model.name = '{here}:Undecided' cannot be exported: "
    ) as no:
        export_model(other, format="onnx")
    assert str(no.value).endswith("accepted: torchscript, safetensors")
    assert "\n" not in str(no.value)
    assert not (other / "export").exists()
    frozen = run(tmp_path / "frozen", f"model.name={here}:Branching", "run.virtual_time=10", "method.name=fedavg")
    with pytest.raises(UserError, match=r"test samples differently .* nothing is written$"):
        export_model(frozen, tmp_path / "frozen.pt", "torchscript")
    assert not list(tmp_path.glob("*frozen.pt*"))
    assert export_model(frozen, tmp_path / "frozen.safetensors", "safetensors").file.exists()


def test_data_that_are_handed_in(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(300, 2)).astype(np.float32)
    data = {"x_train": x[:200], "y_train": x[:200, 0] > 0, "x_test": x[200:], "y_test": x[200:, 0] > 0}
    data |= {name: np.where(data[name], "right | ``` left", "<b>left</b>") for name in ("y_train", "y_test")}
    small = ["data.partition=iid", "data.devices=4", "fleet.slots=2", "model.name=mlp", "method.name=fedavg"]
    simulate(load_experiment(None, [*small, "run.virtual_time=30", "run.workers=0"]), tmp_path / "run", data=data)
    with pytest.raises(UserError, match=r"^data.dataset = 'given:.*handed in from Python"):
        export_model(tmp_path / "run")
    card = export_model(tmp_path / "run", data=data).card.read_text()
    assert "| licence | not known here: data of the user's own |" in card
    assert "`<b>left</b>`, `right | ''' left`" in card
    data["x_train"] = data["x_train"] + 1
    with pytest.raises(UserError, match="accepted: the data that it began with"):
        export_model(tmp_path / "run", tmp_path / "other.onnx", data=data)


def test_what_is_refused(finished: Path, tmp_path: Path) -> None:
    for words, message in (
        ((tmp_path, "--format", "onnx"), r"not a run folder \(it has no experiment.toml\)"),
        ((finished, "--format", "tflite"), "--format = 'tflite': unknown; accepted: onnx, torchscript, safetensors"),
        ((finished, "--format", "onnx", "--out", tmp_path / "no" / "m"), "its folder does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            command(*words)
    (tmp_path / "m.onnx.md").write_text("mine")
    with pytest.raises(UserError, match=r"m.onnx.md: exists; accepted: a new file"):
        export_model(finished, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.md").read_text() == "mine"


def test_a_full_disk_leaves_nothing_behind(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_atomic", full)
    with pytest.raises(UserError, match=r"m.pt: cannot be written: No space left on device$"):
        export_model(finished, tmp_path / "m.pt", "torchscript")
    assert list(tmp_path.iterdir()) == []


def test_a_card_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((60, 4), dtype=np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    data = ["data.dataset=npz", f"data.root={tmp_path / 'mine.npz'}", "data.partition=iid", "data.devices=4"]
    more = ["fleet.slots=2", "model.name=mlp", "method.name=fedavg", "run.virtual_time=10", "run.workers=0"]
    simulate(load_experiment(None, [*data, *more]), tmp_path / "run")
    card = export_model(tmp_path / "run", format="safetensors").card.read_text()
    assert 'root = "mine.npz"' in card
    assert str(tmp_path) not in card
    assert os.getcwd() not in card  # noqa: PTH109
    assert json.dumps(str(tmp_path)) not in card
