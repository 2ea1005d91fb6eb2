"""FADAS: the worked numbers with all options, and when the step shrinks."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.fadas import FADAS, FADASParameters
from tests.methods.staged import staged
from tests.scripted import World, timetable, vector

UPDATES = {0: (-0.1, 0.1), 1: (0.4, 0.3), 2: (0.2, -0.1), 5: (0.1, 0.3)}  # by job


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0.011671, 0.012410)),
        ({"bias_correction": False}, (0.012250, 0.013246)),
        ({"bias_correction": False, "delay_rule": "cap"}, (0.019000, 0.022982)),
    ],
)
def test_two_steps(options: dict[str, Any], expected: tuple[float, float]) -> None:
    """Staleness 1 and 0 in the first buffer, 4 and 0 in the second: job 0 is sent at version 0 and waits until the
    first step has made version 4."""
    sends = [(vector(0, 0), 0), (vector(0, 0), 2), (vector(0, 0), 3)]
    method = staged(FADAS, FADASParameters(buffer=2, server_lr=0.01, **options), sends)
    made = World(
        method,
        timetable({0: [3.0, 1.0], 1: [1.0, 100.0], 2: [2.0], 3: [100.0], 4: [100.0]}),
        lambda job: job.weights + vector(*UPDATES[job.number]),
        initial=vector(0, 0),
        slots=3,
        limits=Limits(seconds=4.5),
        picks=[0, 1, 2, 3, 4, 0, 1],
    )
    made.engine.start()
    while made.engine.version < 4:
        assert made.engine.step()
    if not options:
        np.testing.assert_allclose(made.published[-1], (0.01, 0.01), rtol=1e-5)
    while made.engine.version < 5:
        assert made.engine.step()
    assert made.engine.now == 4.0
    np.testing.assert_allclose(made.published[-1], expected, atol=1e-6)
    np.testing.assert_allclose(method.largest, (0.0009, 0.000499), atol=1e-7)
    rates = [event.facts["rate"] for event in made.publications() if "rate" in event.facts]
    assert rates == pytest.approx([0.01, 0.01 if "delay_rule" in options else 0.0025])


@pytest.mark.parametrize(
    ("threshold", "rule", "rates"),
    [
        (1, "divide", [0.5, 0.5, 0.25, 0.5 / 3]),
        (None, "divide", [0.5, 0.5, 0.5, 0.5]),
        (0, "divide", [0.5, 0.5, 0.25, 0.5 / 3]),
        (2, "cap", [0.5, 0.5, 0.5, 1 / 3]),
    ],
)
def test_the_rate_by_the_largest_staleness(threshold: int | None, rule: Any, rates: list[float]) -> None:
    method = FADAS(FADASParameters(server_lr=0.5, delay_threshold=threshold, delay_rule=rule))
    assert [method.rate(staleness) for staleness in range(4)] == pytest.approx(rates)
