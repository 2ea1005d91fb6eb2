"""Runs that lead nowhere say so once, with the time and the reason."""

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cabafl import Job, Method, Objective, Server, Upload, UserError, load_experiment, simulate

pytestmark = pytest.mark.usefixtures("no_pixels")

BASE = ["data.dataset=synthetic", "data.devices=6", "model.name=mlp", "fleet.slots=2", "run.workers=0"]
SHORT = [*BASE, "run.virtual_time=60", "run.evaluate_every=5"]


class Lazy(Method):
    """Sends two jobs and no more."""

    name = "lazy"
    kind = "asynchronous"
    paper = "a test"

    def start(self, server: Server) -> None:
        for device in (0, 1):
            server.dispatch(device, server.initial)

    def on_upload(self, server: Server, upload: Upload) -> None:
        pass

    def on_loss(self, server: Server, job: Job, reason: str) -> None:
        pass


class Hoarder(Lazy):
    def start(self, server: Server) -> None:
        super().start(server)
        self.kept = {"seen": [{1, 2}]}


class Inventive(Lazy):
    def start(self, server: Server) -> None:
        server.dispatch(0, server.initial, objective={"epochs": 3})  # type: ignore[arg-type]


class MyObjective(Objective):
    temperature: float = 2.0


class Subclassing(Lazy):
    def start(self, server: Server) -> None:
        server.dispatch(0, server.initial, objective=MyObjective())


def warned(*more: str) -> list[str]:
    texts: list[str] = []
    simulate(load_experiment(None, [*SHORT, *more]), warn=texts.append)
    return texts


def test_a_method_that_stops_sending_is_reported_once() -> None:
    texts = warned(f"method.name={__name__}:Lazy")
    assert len(texts) == 1
    assert "nothing is under way: method.name = 'lazy' has sent no job and waits for nothing" in texts[0]
    assert texts[0].startswith("at 1") or texts[0].startswith("at 5")


@pytest.mark.parametrize("method", ["fedavg", "cabafl"])
def test_ordinary_runs_are_quiet(method: str) -> None:
    assert warned(f"method.name={method}") == []


def test_a_look_leaves_the_figures_alone() -> None:
    experiment = load_experiment(None, [*SHORT, "method.name=fedavg"])
    one, other = simulate(experiment).summary, simulate(experiment, warn=lambda _: None).summary
    assert one | {"wall_seconds": 0} == other | {"wall_seconds": 0}
    assert other["losses"] == {}


def test_a_run_whose_jobs_are_all_lost_says_so_once() -> None:
    texts = warned("method.name=fedasync", "fleet.faults.loss=1", "run.virtual_time=200")
    assert len(texts) == 1
    assert re.fullmatch(r"at \d+ s no upload has arrived, and \d\d+ jobs have been lost \(crash: \d\d+\)", texts[0])


def test_rejected_uploads_are_reported_without_numpy_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        wild = ["method.name=fedasync", "training.learning_rate=1e8"]
        texts = warned(*wild, "run.virtual_time=200", "run.evaluate_every=5")
    assert any("uploads have been rejected" in text for text in texts)


def test_a_loss_that_is_not_finite_is_reported() -> None:
    from cabafl.lifecycle.alerts import Alerts
    from cabafl.recording.events import Evaluated

    engine: Any = SimpleNamespace(ledger=SimpleNamespace(uploads=0, losses={"rejected": 0}))
    texts: list[str] = []
    alerts = Alerts(texts.append)
    for time in (10.0, 20.0):
        alerts.look(engine, Evaluated(time, 1, 0.1, float(np.nan), 0, 0, 0, 0, 0, 0.0))
    assert len(texts) == 1
    assert texts[0].startswith("at 10 s the loss on the test samples is not finite (nan); what helps: a smaller")


def test_a_state_that_cannot_be_stored_is_named_before_any_work_is_lost() -> None:
    message = r"^method.name = 'lazy': its attribute 'kept': a checkpoint cannot store a set: \{1, 2\}; accepted: "
    with pytest.raises(UserError, match=message):
        warned(f"method.name={__name__}:Hoarder")


def test_a_method_that_fails_at_its_start_leaves_no_folder(tmp_path: Path) -> None:
    for method in ("Hoarder", "Inventive"):
        experiment = load_experiment(None, [*SHORT, f"method.name={__name__}:{method}"])
        with pytest.raises(UserError, match=r"^method.name = 'lazy'"):
            simulate(experiment, tmp_path / "run")
        assert not (tmp_path / "run").exists()


class Late(Lazy):
    def on_upload(self, server: Server, upload: Upload) -> None:
        if server.now > 10:  # type: ignore[attr-defined]
            server.publish([1.0])  # type: ignore[arg-type]
        server.dispatch(upload.job.device, server.initial)


def test_a_run_that_fails_later_keeps_its_folder(tmp_path: Path) -> None:
    for every in (5, 1000):  # its events count, however few evaluations there were
        experiment = load_experiment(None, [*SHORT, f"method.name={__name__}:Late", f"run.evaluate_every={every}"])
        with pytest.raises(UserError, match="publishes"):
            simulate(experiment, tmp_path / f"{every}")
        assert (tmp_path / f"{every}/events.jsonl").read_text().count("upload") > 1


class Gathers(Lazy):
    """Keeps from the first upload on what no checkpoint can hold."""

    kept: Any = np.float64(1)

    def on_upload(self, server: Server, upload: Upload) -> None:
        self.found = self.kept
        server.dispatch(upload.job.device, server.initial)


@pytest.mark.parametrize("kept", [np.float64(1), {3}, np.array([None]), torch.ones(1, requires_grad=True)])
def test_a_state_that_cannot_be_stored_later_is_named_at_the_checkpoint(
    kept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gathers, "kept", kept)
    settings = [*SHORT, f"method.name={__name__}:Gathers", "run.keep_state=true"]
    with pytest.raises(UserError, match=r"^method.name = 'lazy': its attribute 'found': ") as caught:
        simulate(load_experiment(None, settings), tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("method", "found"), [("Inventive", "dict"), ("Subclassing", "MyObjective")])
def test_an_objective_with_other_fields_is_refused(method: str, found: str) -> None:
    message = rf"^method.name = 'lazy': dispatches at 0 s with an objective of type {found}; accepted: cabafl.Objective"
    with pytest.raises(UserError, match=message):
        warned(f"method.name={__name__}:{method}")
