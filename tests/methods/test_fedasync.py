"""FedAsync: the trace of its specification and the staleness functions."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.fedasync import FedAsync, FedAsyncParameters
from tests.scripted import World, fleet, vector


@pytest.mark.parametrize(
    ("parameters", "alphas", "models"),
    [
        ({"function": "constant"}, [0.6, 0.6, 0.6], [(0.6, 1.2), (-0.36, 2.88), (1.056, 1.152)]),
        (
            {"function": "polynomial", "a": 0.5},
            [0.424264069, 0.346410162, 0.346410162],
            [(0.4242640687, 0.8485281374), (-0.0691154774, 1.9402300143), (0.6476471493, 1.2681146217)],
        ),
        (
            {"function": "polynomial", "a": 0.5, "staleness_offset": 0},
            [0.6, 0.424264069, 0.424264069],
            [(0.6, 1.2), (-0.0788225099, 2.3879393924), (0.8031471863, 1.3748225099)],
        ),
        (
            {"function": "hinge", "a": 10.0, "b": 1.0},
            [0.6, 0.054545455, 0.054545455],
            [(0.6, 1.2), (0.5127272727, 1.3527272727), (0.5938512397, 1.2789421488)],
        ),
    ],
)
def test_trace(parameters: dict[str, Any], alphas: list[float], models: list[tuple[float, float]]) -> None:
    answers = {0: vector(1, 2), 1: vector(-1, 4), 2: vector(2, 0)}
    world = World(
        FedAsync(FedAsyncParameters(**parameters)),
        fleet([1.0, 3.0, 2.0]),
        lambda job: answers[job.device],
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=3.0),
        picks=[0, 1],
    ).run()
    assert world.dispatches[:4] == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 2, 0), (3.0, 0, 0)]
    trained = [vector(0, 0), vector(0, 0), *(vector(*models[i]) for i in (0, 1))]
    np.testing.assert_allclose([model for _, _, model in world.sent[:4]], trained, rtol=1e-6)
    offset = parameters.get("staleness_offset", 1)
    facts = [event.facts for event in world.publications()]
    assert [fact["staleness"] for fact in facts] == [offset, 1 + offset, 1 + offset]
    assert [fact["weights"][1] for fact in facts] == pytest.approx(alphas, rel=1e-6)
    np.testing.assert_allclose(world.published, models, rtol=1e-6)
    assert world.engine.ledger.downloads == 2 + 3
    assert world.engine.ledger.uploads == 3
    assert all(job.objective.prox == 0.01 for job in world.executor.trained)


@pytest.mark.parametrize(
    ("parameters", "staleness", "factor"),
    [({"function": "polynomial"}, d, f) for d, f in enumerate((1, 0.7071067812, 0.5773502692, 0.5, 0.4472135955))]
    + [({"function": "hinge", "a": 10.0, "b": 4.0}, d, f) for d, f in ((0, 1), (4, 1), (5, 1 / 11), (6, 1 / 21))]
    + [({"function": "hinge", "a": 10.0, "b": 4.0}, 10, 1 / 61)],
)
def test_staleness_functions(parameters: dict[str, Any], staleness: int, factor: float) -> None:
    """Device 0 publishes ``staleness`` versions while device 1 trains."""
    world = World(
        FedAsync(FedAsyncParameters(alpha=0.6, staleness_offset=0, **parameters)),
        fleet([1.0, staleness + 0.5]),
        lambda job: job.weights,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=staleness + 0.5),
        picks=[0, 1],
    ).run()
    last = world.publications()[-1].facts
    assert last["staleness"] == staleness
    assert last["weights"][1] == pytest.approx(0.6 * factor, rel=1e-6)


def test_alpha_out_of_range_is_rejected() -> None:
    for alpha in (0.0, 1.1):
        with pytest.raises(ValueError, match="alpha"):
            FedAsyncParameters(alpha=alpha)
