"""What a method hands to an engine: numbers of other types become Python's, and what is none is one line."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.inputs import Joined, Started
from cabafl.engine.wall import WallEngine
from cabafl.errors import UserError
from cabafl.methods.base import Job, LossReason, Method, Objective, Server, Upload
from cabafl.recording.events import Dispatched
from cabafl.state import Encoder
from tests.scripted import ScriptedExecutor, World, fleet, vector

NUMPY = Objective(np.int64(2), np.float32(0.5), hold=np.True_)  # type: ignore[arg-type]
Act = Callable[[Server], Any]


class Does(Method):
    """Does one thing at the start."""

    name = "does"
    kind = "asynchronous"
    paper = "none"

    def __init__(self, act: Act) -> None:
        self._act = [act]
        self.heard: list[str] = []

    def start(self, server: Server) -> None:
        self._act.pop()(server)

    def on_upload(self, server: Server, upload: Upload) -> None:
        self.heard.append("upload")

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        self.heard.append(reason)

    def on_ready(self, server: Server, job: Job) -> None:
        self.heard.append("ready")

    def on_timer(self, server: Server, name: str) -> None:
        self.heard.append(name)
        server.dispatch(2, server.initial)


def world(act: Act) -> World:
    limits = Limits(seconds=9.0)
    return World(Does(act), fleet([1.0] * 3), lambda job: job.weights + 1, initial=vector(1, 2), slots=3, limits=limits)


def wall(act: Act) -> WallEngine:
    setup = EngineSetup(
        method=Does(act),
        executor=ScriptedExecutor(lambda job: job.weights),
        initial=vector(1, 2),
        emit=lambda event: json.loads(event.line()) and None,
        seed=1,
        slots=3,
        limits=Limits(),
        trainable=2,
    )
    engine = WallEngine(setup, 3)
    for device in range(3):
        engine.handle(Joined(0.0, device, 5))
    return engine


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.dispatch(np.int64(1), s.initial, np.int32(4)),
        lambda s: s.dispatch(True, s.initial, False),
        lambda s: s.dispatch(torch.tensor(1), s.initial, torch.tensor(2)),
        lambda s: s.dispatch(0, s.initial, objective=NUMPY),
        lambda s: s.finish(np.int64(s.dispatch(0, s.initial))),
        lambda s: s.cancel(np.int64(s.dispatch(0, s.initial))),
        lambda s: s.set_timer(np.float64(2), "later"),
        lambda s: s.set_timer(torch.tensor(2), "later"),
    ],
)
def test_numbers_of_other_types_reach_neither_the_record_nor_a_checkpoint(act: Act) -> None:
    made = world(act)
    made.engine.start()
    for _ in range(3):
        for event in made.events:
            assert isinstance(json.loads(event.line()), dict)
        Encoder().encode({key: value for key, value in made.engine.state().items() if key != "method"})
        made.engine.step()
    engine = wall(act)
    engine.handle(Started(0.0))
    Encoder().encode({key: value for key, value in engine.state().items() if key != "method"})


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (lambda s: s.dispatch(1.0, s.initial), "dispatches at 0 s with device = 1.0; accepted: a whole number"),
        (lambda s: s.dispatch(0, s.initial, None), "with slot = None; accepted: a whole number"),
        (lambda s: s.set_timer(-1, "x"), r"sets a timer at 0 s with delay = -1; accepted: a finite number, at least 0"),
        (lambda s: s.set_timer(float("nan"), "x"), "with delay = nan"),
        (lambda s: s.set_timer(float("inf"), "x"), "with delay = inf"),
        (lambda s: s.set_timer("3", "x"), "with delay = '3'"),
        (lambda s: s.collect_features(s.initial, "labels", -1), "collects features at 0 s with timeout = -1"),
        (lambda s: s.collect_features(vector(1), "labels"), r"collects features at 0 s of an array of shape \(1,\)"),
        (
            lambda s: s.dispatch(0, s.initial, 0, Objective(epochs=0)),
            "Objective.epochs = 0; accepted: .*at least 1",
        ),
        (lambda s: s.dispatch(0, s.initial, 0, Objective(epochs=1.5)), "Objective.epochs = 1.5"),  # type: ignore[arg-type]
        (lambda s: s.dispatch(0, s.initial, 0, Objective(lr_scale=float("nan"))), "Objective.lr_scale = nan"),
        (lambda s: s.dispatch(0, s.initial, 0, Objective(prox=-1.0)), "Objective.prox = -1.0"),
        (lambda s: s.dispatch(0, s.initial.astype(complex)), "an array of type complex64|128; accepted: numbers"),
        (lambda s: s.publish(s.initial.astype(object)), "an array of type object; accepted: numbers of type float32"),
        (lambda s: s.publish(np.array([1e300, 0])), "a model with numbers that are not finite"),
    ],
)
def test_what_is_no_number_is_one_line(act: Act, line: str) -> None:
    made = world(act)
    for start in (made.engine.start, lambda: wall(act).handle(Started(0.0))):
        with pytest.raises(UserError, match=line) as caught:
            start()
        assert str(caught.value).startswith("method.name = 'does': ")
        assert "\n" not in str(caught.value)
    assert made.engine.ledger.dispatches == 0
    assert len(made.engine.idle) == 3


@pytest.mark.parametrize("device", [-1, -3, 3, 99])
def test_a_device_that_does_not_exist_is_not_idle(device: int) -> None:
    made = world(lambda s: s.dispatch(device, s.initial))
    with pytest.raises(RuntimeError, match=f"device {device} is not idle"):
        made.engine.start()
    assert device not in made.engine.idle
    assert made.engine.ledger.dispatches == 0


def test_models_of_other_types_are_those_that_devices_get() -> None:
    def act(server: Server) -> None:
        server.publish(np.array([0.1, 3.0]))
        server.dispatch(0, np.average([server.initial, server.initial], axis=0, weights=[0.1, 0.3]))
        server.dispatch(1, np.array([1, 2]))

    made = world(act).run()
    assert {job.weights.dtype for job in made.executor.trained} == {np.dtype(np.float32)}
    assert made.engine.model.dtype == np.float32
    assert made.engine.ledger.bytes == 4 * 2 * 4  # two models down and up


def test_a_timer_does_not_turn_the_clock_into_a_number_of_another_type() -> None:
    made = world(lambda s: s.set_timer(np.float64(2), "later")).run()
    [sent] = [event for event in made.events if isinstance(event, Dispatched)]
    assert sent.line().endswith('"due":3.0}')
    assert made.engine.method.heard == ["later", "upload"]  # type: ignore[attr-defined]


def test_who_holds_results_must_hear_of_them() -> None:
    class Deaf(Does):
        on_ready = Method.on_ready

    made = world(lambda s: None)
    made.engine.method = Deaf(lambda s: s.dispatch(0, s.initial, 0, Objective(hold=True)))
    with pytest.raises(UserError, match=r"^method.name = 'does': .* with Objective.hold, but has no on_ready"):
        made.engine.start()
