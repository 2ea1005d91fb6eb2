"""The learning rate over a run: the factors, and that jobs, methods and devices see them."""

import math

import numpy as np
import pytest

from cabafl.config import TrainingSection, load_experiment
from cabafl.engine.orders import told
from cabafl.engine.schedule import make_schedule
from cabafl.errors import UserError
from cabafl.lifecycle.simulate import simulate
from cabafl.methods.base import Job, Objective, Server, Upload
from cabafl.methods.fedasync import FedAsync

QUICK = ["data.dataset=synthetic", "data.devices=10", "fleet.slots=2", "model.name=mlp", "run.workers=0"]
SEEN: list[tuple[float, int, Objective, float, float]] = []  # time sent, version, objective, factor, learning rate


def falling(position: float) -> float:
    return 1 / (1 + position)


def negative(position: float) -> float:
    return 1.0 if position < 3 else -1.0


class Watching(FedAsync):
    """Sets a scale of its own and notes what it hears."""

    def objective(self, server: Server, device: int) -> Objective:
        return Objective(lr_scale=0.5)

    def on_upload(self, server: Server, upload: Upload) -> None:
        job = upload.job
        sent = server.now - upload.duration  # type: ignore[attr-defined]
        SEEN.append((sent, job.version, job.objective, job.schedule, upload.learning_rate))
        super().on_upload(server, upload)


class PassingOn(Watching):
    """Sends the next job with the objective of the last one."""

    last = Objective(lr_scale=0.5)

    def objective(self, server: Server, device: int) -> Objective:
        return self.last

    def on_upload(self, server: Server, upload: Upload) -> None:
        self.last = upload.job.objective
        super().on_upload(server, upload)


@pytest.mark.parametrize(
    ("keys", "position", "factor"),
    [
        ({"schedule": "cosine", "schedule_floor": 0.2}, 0.0, 1.0),
        ({"schedule": "cosine", "schedule_floor": 0.2}, 50.0, 0.6),
        ({"schedule": "cosine", "schedule_floor": 0.2}, 100.0, 0.2),
        ({"schedule": "cosine", "schedule_floor": 0.2}, 170.0, 0.2),
        ({"schedule": "cosine", "schedule_length": 400.0}, 100.0, 0.01 + 0.99 * (1 + math.cos(math.pi / 4)) / 2),
        ({"schedule": "step", "schedule_length": 30.0}, 29.9, 1.0),
        ({"schedule": "step", "schedule_length": 30.0}, 30.0, 0.1),
        ({"schedule": "step", "schedule_length": 30.0, "schedule_factor": 0.5}, 95.0, 0.125),
        ({"schedule": "step", "schedule_length": 0.001}, 9000.0, 1e-30),
        ({"schedule": "tests.engine.test_schedule:falling"}, 3.0, 0.25),
    ],
)
def test_factors(keys: dict[str, object], position: float, factor: float) -> None:
    schedule = make_schedule(TrainingSection.model_validate(keys), 100.0)
    assert schedule is not None
    assert schedule.factor(position) == pytest.approx(factor)


def test_nothing_changes_by_default() -> None:
    assert make_schedule(TrainingSection(), 100.0) is None


@pytest.mark.parametrize("over", ["time", "versions"])
@pytest.mark.parametrize("method", ["Watching", "PassingOn"])
def test_jobs_carry_the_factor_and_methods_see_it(over: str, method: str) -> None:
    SEEN.clear()
    keys = [f"method.name=tests.engine.test_schedule:{method}", "training.schedule=step", "training.schedule_length=7"]
    keys += [f"training.schedule_over={over}", "training.schedule_factor=0.5", "training.learning_rate=0.2"]
    simulate(load_experiment(None, [*QUICK, *keys, "run.virtual_time=40"]))
    assert len({factor for _, _, _, factor, _ in SEEN}) > 2
    for sent, version, objective, factor, rate in SEEN:
        assert objective == Objective(lr_scale=0.5), "what the method said"
        assert factor == pytest.approx(0.5 ** ((sent if over == "time" else version) // 7))
        assert rate == pytest.approx(0.2 * 0.5 * factor)
        sent_out = told(Job(0, 0, 0, 0, np.zeros(1, np.float32), objective, schedule=factor))
        assert sent_out.lr_scale == pytest.approx(0.5 * factor)


def test_training_uses_the_factor() -> None:
    keys = [*QUICK, "method.name=fedavg", "run.virtual_time=60", "training.learning_rate=0.1"]
    plain = simulate(load_experiment(None, keys)).metrics["loss"].iloc[-1]
    step = ["training.schedule=step", "training.schedule_length=0.01", "training.schedule_over=versions"]
    stopped = simulate(load_experiment(None, [*keys, *step])).metrics["loss"]
    first = stopped[stopped.index[stopped != stopped[0]][0]]
    assert plain < 0.95 * stopped.iloc[-1]
    assert stopped.iloc[-1] == pytest.approx(first, rel=1e-3)  # learns in the first round only


def test_a_wrong_factor_ends_the_run_in_one_line() -> None:
    keys = ["training.schedule=tests.engine.test_schedule:negative", "run.virtual_time=40"]
    with pytest.raises(UserError, match=r"test_schedule:negative': -1.0 at \S+ s; accepted: a number above 0"):
        simulate(load_experiment(None, [*QUICK, *keys]))


def test_versions_have_no_end_of_their_own() -> None:
    keys = TrainingSection(schedule="cosine", schedule_over="versions")
    with pytest.raises(UserError, match=r"schedule_length: not set; training.schedule = cosine over versions needs it"):
        make_schedule(keys, 100.0)
    with pytest.raises(UserError, match="accepted: a number of seconds"):
        make_schedule(TrainingSection(schedule="cosine"), None)
