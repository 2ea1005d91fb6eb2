"""The workload of `flute` on cabafl.

`cabafl bench toolkits` runs it as ``python -m cabafl.bench.flute_cabafl ROUNDS CLIENTS WORKERS``.
"""

import sys

from cabafl.bench import NEVER
from cabafl.bench.flute import Clock, Flute, Measured, report
from cabafl.bench.workload import even_parts, vectors
from cabafl.execution.choice import open_executor
from cabafl.lifecycle.simulate import make_engine


def settings(flute: Flute, workers: int) -> list[str]:
    """The experiment, with one extra round as a warm-up."""
    return [
        "model.name=cabafl.bench.flute:LogisticRegression",
        "training.epochs=1",
        f"training.batch_size={flute.batch}",
        f"training.learning_rate={flute.learning_rate}",
        "training.momentum=0.0",
        f"fleet.slots={flute.per_round}",
        "method.name=fedavg",
        "run.virtual_time=none",
        f"run.max_dispatches={(flute.rounds + 1) * flute.per_round}",
        f"run.evaluate_versions={NEVER}",
        f"run.workers={workers}",
    ]


def measure(flute: Flute, workers: int) -> Measured:
    """Runs FedAvg in the engine; nothing is recorded or evaluated."""
    parts = even_parts(vectors(flute.clients * flute.samples), flute.clients, settings(flute, workers))
    with open_executor(parts.experiment) as opened:
        engine = make_engine(parts, opened.for_task(parts.task), lambda event: None)
        engine.start()
        while engine.version < 1:
            engine.step()
        before = engine.ledger.uploads
        clock = Clock()
        while engine.step():
            pass
        uploads = engine.ledger.uploads - before
        return clock.stop(uploads * flute.steps // (flute.rounds * flute.per_round))


if __name__ == "__main__":
    report(lambda flute: measure(flute, int(sys.argv[3])))
