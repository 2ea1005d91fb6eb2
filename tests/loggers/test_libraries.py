"""TensorBoard, MLflow and W&B: what they have kept is read back by their own libraries."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cabafl import Experiment, load_experiment, load_runs, resume, simulate
from cabafl.lifecycle.stopping import Paused
from cabafl.loggers.base import final_figures
from cabafl.recording.folder import read_metrics
from tests.deployment.fleet_runs import FleetRun, fleet_run
from tests.loggers.wandb_records import read_run
from tests.runs import same_bytes, settings

__all__ = ["fleet_run"]
ALL = "run.log=tensorboard,mlflow,wandb"
PROGRAM = [sys.executable, "-m", "cabafl"]
Figures = list[dict[str, float]]


def experiment(*more: str) -> Experiment:
    return load_experiment(None, settings("fedavg", "run.workers=0", "run.average=polynomial", *more))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No account, no server."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)


def metrics(folder: Path) -> Figures:
    return [dict(zip(row.columns, row.numbers, strict=True)) for row in read_metrics(folder)]


def accumulator(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()


def tensorboard_rows(folder: Path) -> Figures:
    """Checks that the steps are 0, 1, 2, ..., each once."""
    found = accumulator(folder)
    tags = [tag for tag in found.Tags()["scalars"] if not tag.startswith("final/")]
    columns = {tag: found.Scalars(tag) for tag in tags}
    for points in columns.values():
        assert [point.step for point in points] == list(range(len(points)))
    return [{tag: columns[tag][i].value for tag in tags} for i in range(len(columns["time"]))]


def mlflow_client(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'mlflow/mlflow.db'}")


def mlflow_run(folder: Path) -> Any:
    client = mlflow_client(folder)
    [found] = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return found


def mlflow_rows(folder: Path) -> Figures:
    client, run = mlflow_client(folder), mlflow_run(folder)
    names = [name for name in run.data.metrics if not name.startswith("final.")]
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    columns = {name: sorted(points, key=lambda point: point.step) for name, points in histories.items()}
    for points in columns.values():
        assert [point.step for point in points] == list(range(len(points)))
    return [{name: columns[name][i].value for name in names} for i in range(len(columns["time"]))]


def wandb_run(folder: Path) -> dict[str, Any]:
    [path] = (folder / "wandb").glob("offline-run-*/*.wandb")
    return read_run(path)


def wandb_rows(folder: Path) -> Figures:
    history = wandb_run(folder)["history"]
    assert [entry["_step"] for entry in history] == list(range(len(history)))
    return [{key: value for key, value in entry.items() if not key.startswith("_")} for entry in history]


def check_rows(folder: Path) -> None:
    expected = metrics(folder)
    assert mlflow_rows(folder) == expected
    assert wandb_rows(folder) == expected
    assert tensorboard_rows(folder) == [pytest.approx(row, rel=1e-6) for row in expected]  # it keeps 32-bit floats


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with all three."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    said: list[str] = []
    simulate(experiment(ALL), folder, warn=said.append)
    assert said == []
    return folder


def test_the_rows_of_metrics(logged: Path, tmp_path: Path) -> None:
    check_rows(logged)
    simulate(experiment(), tmp_path / "plain")
    same_bytes(logged, tmp_path / "plain")
    assert [run.folder for run in load_runs([logged])] == [logged]  # what loggers keep is no run folder


def test_tensorboard_has_final_figures_settings_and_model(logged: Path) -> None:
    summary = simulate(experiment()).summary
    found, figures = accumulator(logged), final_figures(summary)
    assert {"final_accuracy", "averaged.final_accuracy", "joules", "losses.crash"} < figures.keys()
    for name in figures.keys() - {"wall_seconds"}:
        [point] = found.Scalars(f"final/{name}")
        assert point.value == pytest.approx(figures[name], rel=1e-6)
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "    data.devices = 12\n" in text
    assert "model/fc1.weight" in found.Tags()["histograms"]
    times = [point.wall_time for point in found.Scalars("accuracy")]
    assert times[-1] - times[0] == pytest.approx(60)  # the axis "Relative" is the clock of the run


def test_mlflow_has_final_figures_settings_and_model(logged: Path) -> None:
    run = mlflow_run(logged)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["data.devices"] == "12"
    assert run.data.params["run.stop_at"] == "none"
    last = metrics(logged)[-1]
    assert run.data.metrics["final.final_accuracy"] == last["accuracy"]
    files = {each.path for each in mlflow_client(logged).list_artifacts(run.info.run_id)}
    assert files == {"model.safetensors", "settings.toml", "task.json", "summary.json", "curve.png"}
    local = mlflow_client(logged).download_artifacts(run.info.run_id, "model.safetensors")
    assert Path(local).read_bytes() == (logged / "model.safetensors").read_bytes()


def test_wandb_has_final_figures_settings_and_model(logged: Path) -> None:
    run = wandb_run(logged)
    assert (run["name"], run["project"]) == ("run", "cabafl")
    assert run["config"]["data.devices"] == 12
    assert run["summary"]["final.final_accuracy"] == metrics(logged)[-1]["accuracy"]
    assert {"model.safetensors", "settings.toml", "task.json"} <= set(run["files"])
    [copy] = (logged / "wandb").glob("offline-run-*/files/model.safetensors")
    assert copy.read_bytes() == (logged / "model.safetensors").read_bytes()


def test_a_run_that_was_killed_goes_on_without_a_gap_or_a_step_twice(tmp_path: Path) -> None:
    """Before the resume, loggers are ahead of the checkpoint, behind it, or in the middle of a record."""
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        simulate(experiment(ALL), folder, until=30)
    assert mlflow_run(folder).info.status == "KILLED"
    check_rows(folder)
    [events] = (folder / "tensorboard").iterdir()
    events.write_bytes(events.read_bytes()[:-7])
    [binary] = (folder / "wandb").glob("offline-run-*/*.wandb")
    binary.write_bytes(binary.read_bytes()[:-5000])
    ahead, run = metrics(folder)[-1], mlflow_run(folder)
    mlflow_client(folder).log_metric(run.info.run_id, "time", 35.0, step=len(metrics(folder)))  # beyond the checkpoint
    for name in ahead.keys() - {"time"}:
        value = metrics_after(tmp_path, name, len(metrics(folder)))
        mlflow_client(folder).log_metric(run.info.run_id, name, value, step=len(metrics(folder)))
    resume(folder)
    check_rows(folder)
    assert mlflow_run(folder).info.status == "FINISHED"
    resume(folder, settings=["run.virtual_time=90"])
    check_rows(folder)
    assert wandb_run(folder)["summary"]["final.time"] == 90
    assert mlflow_run(folder).data.metrics["final.time"] == 90


def metrics_after(tmp_path: Path, name: str, step: int) -> float:
    """What the run logs in a later step."""
    if not (tmp_path / "whole").exists():
        simulate(experiment(), tmp_path / "whole")
    return metrics(tmp_path / "whole")[step][name]


def test_sigkill_and_resume(tmp_path: Path) -> None:
    """A kill at no moment in particular, of another process than that of the resume."""
    folder = tmp_path / "run"
    words = settings("fedavg", "run.workers=0", "run.virtual_time=400", "run.checkpoint_every=0.2", ALL)
    with subprocess.Popen([*PROGRAM, "run", *words, "--out", str(folder), "--quiet"]) as process:
        give_up = time.monotonic() + 300
        while not (folder / "checkpoint.json").exists() or not list(folder.glob("wandb/offline-run-*/*.wandb")):
            assert process.poll() is None, "it has ended before it was killed"
            assert time.monotonic() < give_up
            time.sleep(0.05)
        process.kill()
    assert not (folder / "summary.json").exists()
    said: list[str] = []
    resume(folder, warn=said.append)
    assert said == []
    check_rows(folder)


def test_a_run_on_devices(fleet_run: FleetRun) -> None:
    assert fleet_run.serve(ALL) is not None
    check_rows(fleet_run.out)
    assert mlflow_run(fleet_run.out).info.status == "FINISHED"
    assert not fleet_run.said("run.log")


def test_a_tracking_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []
    simulate(experiment("run.log=mlflow"), tmp_path / "run", warn=said.append)
    [line] = said
    assert line.startswith("run.log = 'mlflow': fails, and the run goes on without it: ")
