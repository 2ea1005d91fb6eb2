"""PORT: the worked numbers, and jobs that have to finish."""

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.fleet import Absence, Faults
from cabafl.methods.port import PORT, PORTParameters, Waiting
from cabafl.methods.vectors import update
from tests.methods.staged import staged
from tests.scripted import World, fleet, timetable, vector

UPDATES = {0: (0.1, -0.3), 1: (0.1, 0.1), 2: (0.2, 0.0)}  # by job


def test_weights_by_samples_freshness_and_agreement() -> None:
    """Staleness 6, 2 and 0."""
    sends = [(vector(1, 0.5), 0), (vector(0.5, 1), 4), (vector(1, 1), 6)]
    made = World(
        staged(PORT, PORTParameters(buffer=3), sends),
        fleet([3.0, 2.0, 1.0, 100.0, 100.0], [20, 60, 20, 5, 5]),
        lambda job: job.weights + vector(*UPDATES[job.number]),
        initial=vector(1, 0.5),
        slots=3,
        limits=Limits(seconds=3.5),
        picks=[0, 1, 2, 3, 4, 0],
    ).run()
    last = made.publications()[-1]
    assert (last.time, last.facts["devices"]) == (3.0, [2, 1, 0])
    assert last.facts["weights"] == pytest.approx([0.250606, 0.630315, 0.119079], abs=1e-6)
    np.testing.assert_allclose(made.published[-1], (1.125061, 1.027308), atol=1e-6)


def late(faults: Faults | None = None, slow: float = 20.0) -> World:
    """Device 0 delivers every second, device 1 needs 20 s for 10 epochs. With a bound of 2 and a buffer of 1, the 4th
    step waits for device 1, which is in its second epoch."""
    return World(
        PORT(PORTParameters(buffer=1, bound=2)),
        fleet([1.0, slow]),
        lambda job: job.weights + 1,
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=6.5),
        epochs=10,
        picks=[0, 1],
        faults=faults,
    ).run()


def test_a_device_beyond_the_bound_finishes_its_epoch_and_is_waited_for() -> None:
    made = late()
    assert [note["job"] for note in made.notes("finish")] == [1]
    assert [event.time for event in made.publications()][:4] == [1.0, 2.0, 3.0, 4.0]
    assert made.publications()[3].facts["devices"] == [0, 1], "it ends its second epoch at 4 s"
    assert next(job for job in made.executor.trained if job.number == 1).objective.epochs == 2
    assert len([time for time, _, _ in made.dispatches if time == 4.0]) == 2


def test_uploads_that_come_while_the_server_waits_join_the_step() -> None:
    """Its second epoch ends at 5.8 s: meanwhile device 0 delivers at 4 and 5 s."""
    made = late(slow=29.0)
    assert [event.time for event in made.publications()] == pytest.approx([1.0, 2.0, 3.0, 5.8, 6.0])
    assert made.publications()[3].facts["devices"] == [0, 0, 1]


def test_a_lost_job_is_not_waited_for() -> None:
    made = late(Faults(trace={1: [Absence(4.5, 100.0)]}), slow=30.0)
    assert made.losses == [(4.5, 1, "left")]
    assert [event.time for event in made.publications()][:5] == [1.0, 2.0, 3.0, 4.5, 5.0]


def test_without_weights_samples_alone_decide() -> None:
    made = World(
        PORT(PORTParameters(buffer=2, staleness_weight=0, similarity_weight=0)),
        timetable({0: [1.0] * 3, 1: [1.0] * 3}, [10, 30]),
        lambda job: job.weights + 1 + job.device,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=1.5),
    ).run()
    assert sorted(made.publications()[0].facts["weights"]) == pytest.approx([0.25, 0.75])
    assert made.published[0] == pytest.approx(0.25 * 1 + 0.75 * 2)


def test_agreement_with_recent_movement() -> None:
    """The two last steps went along the first axis; a stale update against it weighs less, a fresh one in full."""
    method = PORT(PORTParameters(movement="recent", staleness_weight=0))
    method.model, method.past = vector(2, 0), [vector(0, 0), vector(1, 0)]
    entry = Waiting(0, 10, 0, vector(2, 5), vector(1, 5))
    against = update(entry.sent, entry.trained, 2)
    assert method._agreement(entry, against, 2) == -1.0
    assert method._agreement(entry, against, 1) == 1.0
    assert PORT(PORTParameters()).parameters.movement == "start"


def test_recent_movement_is_that_of_two_steps() -> None:
    made = World(
        PORT(PORTParameters(buffer=1, movement="recent")),
        fleet([1.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=3.5),
    ).run()
    method = made.engine.method
    assert isinstance(method, PORT)
    assert [float(model[0]) for model in [*method.past, method.model]] == [1.0, 2.0, 3.0]
