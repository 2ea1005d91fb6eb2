"""A process that writes the journal is killed with SIGKILL at random moments."""

import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np

from cabafl.engine.inputs import Arrived, Input, Passed
from cabafl.engine.journal import Journal
from cabafl.rng import rng

KILLS = 25
SECONDS = 20.0  # the writer ends by itself after this


def input_number(number: int) -> Input:
    """Every third one is large, so that many kills hit the middle of a write."""
    if number % 3:
        return Passed(float(number))
    weights = rng(5, "weights", number).random(60_000).astype(np.float32)
    return Arrived(float(number), number, weights, 0.5, 3.0)


def write(run: Path, report: int) -> None:
    """Appends batches of every size, with checkpoints, and reports after each commit how many inputs there are."""
    journal = Journal(run)
    draw = random.Random(journal.length)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for _ in range(draw.randrange(1, 6)):
            journal.add(input_number(journal.length))
        if draw.random() < 0.2:
            journal.cut()
            journal.forget(journal.length - draw.randrange(30))
        journal.commit()
        os.write(report, journal.length.to_bytes(8, "little"))


def test_what_was_committed_is_there_in_order_after_any_kill(tmp_path: Path) -> None:
    draw = random.Random(1)
    committed = 0
    for _ in range(KILLS):
        ours, theirs = os.pipe()
        writer = multiprocessing.get_context("fork").Process(target=write, args=(tmp_path, theirs))
        writer.start()
        os.close(theirs)
        begun = os.read(ours, 8)
        time.sleep(draw.uniform(0.0, 0.06))
        writer.kill()
        writer.join()
        with os.fdopen(ours, "rb") as reports:
            last = (begun + reports.read())[-8:]
        committed = max(committed, int.from_bytes(last, "little"))
        journal = Journal(tmp_path)
        assert committed <= journal.length <= committed + 5
        first = int(min((tmp_path / "journal").glob("*.log")).stem)
        numbers = []
        for number, given in journal.inputs(first):
            numbers.append(number)
            assert repr(given) == repr(input_number(number))
            if isinstance(given, Arrived):
                expected = input_number(number)
                assert isinstance(expected, Arrived)
                np.testing.assert_array_equal(given.weights, expected.weights)
        assert numbers == [*range(first, journal.length)]
        committed = journal.length
        journal.close()
    assert committed > 5 * KILLS
