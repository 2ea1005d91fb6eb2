"""Notebooks: the quick start, a run that is interrupted and goes on, and what the progress shows."""

import json
import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from cabafl import UserError, load_experiment, simulate
from cabafl.lifecycle import notebook
from cabafl.lifecycle.notebook import NotebookProgress, in_notebook
from cabafl.recording.events import Evaluated, Uploaded
from tests.runs import same_bytes, settings

EXAMPLE = Path(__file__).parents[2] / "docs/examples/quickstart.ipynb"
PATIENCE = 300  # seconds


def test_the_quick_start_runs(tmp_path: Path) -> None:
    example = nbformat.read(EXAMPLE, 4)
    assert [cell.outputs for cell in example.cells if cell.cell_type == "code" if cell.outputs] == []
    client = NotebookClient(example, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises if a cell does
    _, run, plot, table, longer, predicted, exported = [cell for cell in example.cells if cell.cell_type == "code"]
    [live] = run.outputs
    assert re.search(r"fedbuff on synthetic, seed 1: complete, 100 %\nt = 200 s", live.data["text/plain"])
    assert live.data["text/html"].count("<polyline") == 1
    assert "image/png" in plot.outputs[0].data
    assert "accuracy" in table.outputs[0].data["text/html"]
    assert "t = 300 s" in longer.outputs[0].data["text/plain"]
    assert predicted.outputs[0].data["text/plain"].startswith("array([")
    assert exported.outputs[0].data["text/plain"].startswith("'1,000 test samples: the same predictions")


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One for several tests, as for the cells of one notebook."""
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=PATIENCE)
    yield SimpleNamespace(manager=manager, client=client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client: Any, message: str, until: str) -> list[dict[str, Any]]:
    """Of a cell, up to one whose text contains ``until``, or to the end."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            each = client.get_iopub_msg(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(found) from None
        if each["parent_header"].get("msg_id") != message:
            continue
        if each["msg_type"] == "status" and each["content"]["execution_state"] == "idle":
            return found
        found.append(each)
        if until in json.dumps(each["content"]):
            return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stops."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=600")), folder)
    return folder


@pytest.mark.parametrize("workers", [0, 1])
def test_the_stop_button_and_resume(workers: int, kernel: Any, whole: Path, tmp_path: Path) -> None:
    words = settings("fedavg", f"run.workers={workers}", "run.virtual_time=600")
    kernel.client.execute_interactive(
        f"from cabafl import load_experiment, resume, simulate\nexperiment = load_experiment(None, {words!r})",
        timeout=PATIENCE,
    )
    where = str(tmp_path / "run")
    message = kernel.client.execute(f"result = simulate(experiment, out={where!r})")
    outputs(kernel.client, message, "polyline")  # it shows a curve, so it is under way
    kernel.manager.interrupt_kernel()
    last = outputs(kernel.client, message, "no such text")
    [error] = [each["content"] for each in last if each["msg_type"] == "error"]
    assert error["ename"] == "Stopped"
    assert error["traceback"] == ["Stopped: the run was interrupted between two of its events."]
    shown = [each["content"]["data"]["text/plain"] for each in last if each["msg_type"] == "update_display_data"]
    assert "stopped" in shown[-1]
    assert shown[-1].endswith(f'continue with resume("{where}")')
    assert not (tmp_path / "run" / "summary.json").exists()
    done = kernel.client.execute(f"result = resume({where!r})")
    shown = [
        each["content"]["data"]["text/plain"]
        for each in outputs(kernel.client, done, "no such text")
        if each["msg_type"] == "update_display_data"
    ]
    assert "complete, 100 %\nt = 600 s" in shown[-1]
    same_bytes(tmp_path / "run", whole)


def row(time: float, value: float, averaged: float | None = None) -> Evaluated:
    return Evaluated(time, int(time), value, 1.0, 5, 4, 0, 9, 100, 1.0, averaged, averaged)


class Screen:
    """Stands for the display of a cell."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, made: NotebookProgress) -> None:
        self.shown.append(made._repr_mimebundle_())


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    made = Screen()
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: made)
    return made


def test_what_is_shown(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "INTERVAL", 0.0)
    experiment = load_experiment(None, ["run.virtual_time=100"])
    with NotebookProgress(experiment, None) as progress:
        for event in (row(0, 0.1, 0.1), Uploaded(3.0, 1, 1, 1, 1, 0), row(10, float("nan"), 0.4), row(20, 0.5, 0.6)):
            progress(event)
        progress.warn("disk <b>full</b>")
    last = screen.shown[-1]
    assert last["text/plain"].startswith("cabafl on mnist5k, seed 1: complete, 20 %\nt = 20 s, 4 uploads, 20 versions")
    assert "accuracy 50.0 %, averaged 60.0 %" in last["text/plain"]
    assert "<b>full" not in last["text/html"]
    assert "nan" not in last["text/html"]
    first, second = re.findall(r'points="([^"]*)"', last["text/html"])
    assert (len(first.split()), len(second.split())) == (2, 3)


def test_a_long_run_is_thinned_out_and_drawn_seldom(screen: Screen) -> None:
    with NotebookProgress(load_experiment(), None) as progress:
        for i in range(3000):
            progress(row(i, 0.5))
    assert len(screen.shown) < 50
    [points] = re.findall(r'points="([^"]*)"', screen.shown[-1]["text/html"])
    assert 300 < len(points.split()) <= notebook.MOST_POINTS + 1


def test_a_stop_without_a_folder_says_so(screen: Screen) -> None:
    with pytest.raises(KeyboardInterrupt), NotebookProgress(load_experiment(), None):
        raise KeyboardInterrupt
    assert screen.shown[-1]["text/plain"].endswith("nothing was kept (no out)")
    with pytest.raises(UserError), NotebookProgress(load_experiment(), None):
        raise UserError("something is wrong")
    assert screen.shown[-1]["text/plain"].startswith("cabafl on mnist5k, seed 1: failed, 0 %")


def test_outside_of_a_notebook_nothing_is_shown_or_imported() -> None:
    assert not in_notebook()
    code = (
        "import sys\nfrom cabafl import load_experiment, simulate\n"
        f"simulate(load_experiment(None, {settings('fedavg', 'run.workers=0', 'run.virtual_time=5')!r}))\n"
        "print('IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
