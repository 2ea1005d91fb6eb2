"""A model that is not one ends the run with a line, not with a record of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.engine.core import Limits
from cabafl.engine.defence import LARGEST_MODEL
from cabafl.engine.handed import UnusableModel
from cabafl.errors import UserError
from cabafl.methods.base import Job, LossReason, Method, Server, Upload, Weights
from cabafl.recording.events import Published
from tests.cli.program import QUICK, cabafl
from tests.scripted import World, fleet, vector

BROKEN = '''
from cabafl import Method


class Broken(Method):
    """Publishes a number that is not one."""

    name, kind, paper = "broken", "asynchronous", "none"

    def start(self, server):
        server.dispatch(server.idle.draw(server.random("x")), server.initial)

    def on_upload(self, server, upload):
        server.publish(upload.weights * float("inf"))

    def on_loss(self, server, job, reason):
        pass
'''


class Once(Method):
    """Publishes the given vectors, one per upload."""

    name = "once"
    kind = "asynchronous"
    paper = "none"

    def __init__(self, models: list[Weights]) -> None:
        self.models = models

    def start(self, server: Server) -> None:
        server.dispatch(0, server.initial)

    def on_upload(self, server: Server, upload: Upload) -> None:
        server.publish(self.models.pop(0))
        server.dispatch(0, upload.weights)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        server.dispatch(0, server.initial)


def world(*models: Weights) -> World:
    limits = Limits(seconds=5.0)
    return World(Once([*models]), fleet([1.0]), lambda job: job.weights, initial=vector(1, 2), slots=1, limits=limits)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (vector(1, np.nan), r"method.name = 'once': publishes at 2 s, as version 2, a model with numbers that are not"),
        (vector(-np.inf, 1), "what helps: a smaller training.learning_rate"),
        (vector(1, 2, 3), r"an array of shape \(3,\); accepted: an array of shape \(2,\)"),
        ([1.0, 2.0], r"as version 2, a list; accepted: an array of shape \(2,\)"),
        (torch.ones(2), r"as version 2, a Tensor; accepted: an array of shape \(2,\)"),
        (np.ones((2, 1), dtype=np.float32), r"an array of shape \(2, 1\); accepted"),
    ],
)
def test_a_model_that_is_not_finite_or_of_another_shape_is_refused(model: Any, line: str) -> None:
    made = world(vector(3, 4), model)
    with pytest.raises(UnusableModel, match=line) as caught:
        made.run()
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(made.engine.model, vector(3, 4))
    assert sum(isinstance(event, Published) for event in made.events) == 1


class Sends(Once):
    """Publishes nothing, and sends the given things instead."""

    def on_upload(self, server: Server, upload: Upload) -> None:
        server.dispatch(0, self.models.pop(0))


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (vector(1, 2, 3), r"an array of shape \(3,\)"),
        (torch.ones(2), "a Tensor"),
        ([1.0, 2.0], "a list"),
        (None, "a NoneType"),
    ],
)
def test_what_is_no_model_is_not_sent_to_a_device(sent: Any, found: str) -> None:
    method = Sends([vector(3, 4), sent])
    made = World(
        method, fleet([1.0]), lambda job: job.weights, initial=vector(1, 2), slots=1, limits=Limits(seconds=5.0)
    )
    line = rf"^method.name = 'once': dispatches at 2 s {found}; accepted: an array of shape \(2,\)$"
    with pytest.raises(UnusableModel, match=line):
        made.run()
    assert made.engine.ledger.downloads == 2  # the third has never left


def test_uploads_are_rejected_while_the_model_is_absurdly_long() -> None:
    made = world(vector(LARGEST_MODEL * 2, 0)).run()
    assert made.engine.ledger.losses == {"rejected": 4}
    assert made.engine.defence.counts == {0: {"rejected": 4}}


@pytest.mark.parametrize("number", [1e16, 1e38, np.nan, -np.inf])
@pytest.mark.filterwarnings("ignore:overflow")
def test_absurdly_long_uploads_are_rejected(number: float) -> None:
    limits = Limits(seconds=3.0)
    upload = vector(1, number)
    made = World(Once([]), fleet([1.0]), lambda job: upload, initial=vector(1, 2), slots=1, limits=limits).run()
    assert made.engine.ledger.losses == {"rejected": 3}


def test_the_command_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    done = cabafl("run", *QUICK, "method.name=broken:Broken", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: method.name = 'broken': publishes at ")
