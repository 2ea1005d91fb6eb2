"""When a server of real devices gives up a job, if the experiment leaves that to it (``run.slot_timeout = "auto"``)."""

from enum import IntEnum

from cabafl.engine.median import VotedMedian

FACTOR = 5.0  # of the median job time
FLOOR = 30.0  # seconds; below it the network and a busy device make more difference than the job
UPLOADS = 3  # answers before the median counts; with few slots half of them, so that the first round cannot stall


class Alarm(IntEnum):
    """What happens at a scheduled time of the wall clock."""

    TIMER = 1  # set by the method
    EVALUATE = 2
    REST = 3  # a device has rested


def automatic_timeout(durations: VotedMedian, uploads: int, slots: int) -> float | None:
    """Seconds a job may take; None as long as too little is known."""
    median = durations.value()
    if median is None or uploads < min(UPLOADS, (slots + 1) // 2):
        return None
    return max(FLOOR, FACTOR * median)
