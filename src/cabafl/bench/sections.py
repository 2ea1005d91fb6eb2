"""Runs one section of `cabafl bench`, in full or with small sizes."""

from cabafl.bench.report import BenchSection


def measure(name: str, quick: bool = False, repetitions: int | None = None) -> BenchSection:
    """Runs a section by name; ``quick`` takes a few seconds to a minute and is less precise."""
    if name == "simulator":
        from cabafl.bench import simulator

        size = simulator.Size(jobs=10) if quick else simulator.Size()
        return simulator.measure(size, repetitions or (2 if quick else 5), launches=1 if quick else 3)
    if name == "engine":
        from cabafl.bench import engine

        return engine.measure(20_000 if quick else 100_000, repetitions or (2 if quick else 5))
    if name == "selection":
        from cabafl.bench import selection

        means = [(d, k) for d, k in selection.AGGREGATIONS if not quick or d * k < 200_000_000]
        return selection.section(None, means, repetitions or (10 if quick else 50))
    if name == "memory":
        from cabafl.bench import memory

        return memory.measure(memory.POINTS[:4] if quick else None)
    if name == "deploy":
        from cabafl.bench import deploy

        return deploy.measure(quick, repetitions or (3 if quick else 8))
    from cabafl.bench import flute, toolkits

    return toolkits.measure(flute.Flute(rounds=10 if quick else 100), repetitions or (1 if quick else 3))
