"""All jobs of a run, one row per job in the order they were sent."""

import numpy as np

from cabafl.watch.columns import Array, GrowingTable
from cabafl.watch.quick import LATEST

OUTCOMES = ("under way", "upload", "crash", "left", "timeout", "rejected", "stale", "cancelled", "other")
UNDER_WAY, UPLOADED, LEFT, REJECTED, STALE, OTHER = 0, 1, 3, 5, 6, len(OUTCOMES) - 1
MOST = 1 << 30  # versions are smaller numbers
LARGEST_GAP = 1 << 20  # jobs that may be missing in a damaged record, all together
MOST_DEVICES = 5_000_000
MOST_SLOTS = 200_000
MOST_JOULES = 1e30
_NAN = float("nan")


class JobTable:
    """``start`` never decreases, so that the jobs sent up to a time are the first rows. A job whose dispatch cannot be
    read has device -1."""

    def __init__(self) -> None:
        self.rows = GrowingTable(
            {
                "device": ("i4", -1),
                "slot": ("i4", -1),
                "version": ("i4", -1),
                "staleness": ("i4", -1),
                "order": ("i4", -1),  # of its upload among all uploads
                "start": ("f8", _NAN),
                "due": ("f8", _NAN),
                "end": ("f8", _NAN),
                "outcome": ("u1", UNDER_WAY),
            }
        )
        self.devices = 0  # one more than the highest number seen
        self.slots = 0
        self.sent = 0  # dispatches that could be read
        self.uploads = 0

    def __len__(self) -> int:
        return self.rows.length

    def __getitem__(self, name: str) -> Array:
        return self.rows[name]

    def send(self, job: Array, values: dict[str, Array]) -> int:
        """Adds jobs: ``device``, ``slot``, ``version``, ``start``, ``due``. Returns how many could not be used."""
        device, slot = values["device"], values["slot"]
        usable = (job >= 0) & (job < self.sent + len(job) + LARGEST_GAP) & (device >= 0) & (device < MOST_DEVICES)
        usable &= (slot >= -1) & (slot < MOST_SLOTS) & (np.abs(values["version"]) < MOST) & np.isfinite(values["start"])
        values["due"] = _within(values["due"], LATEST)
        if not usable.all():
            job, values = job[usable], {name: value[usable] for name, value in values.items()}
        if len(job):
            self._place(job, values)
            self.sent += len(job)
            self.devices = max(self.devices, int(values["device"].max()) + 1)
            self.slots = max(self.slots, int(values["slot"].max()) + 1)
        return int((~usable).sum())

    def _place(self, job: Array, values: dict[str, Array]) -> None:
        length = self.rows.length
        if int(job[0]) == length and bool((np.diff(job) == 1).all()):
            self.rows.append(len(job), values)
        else:
            self.rows.grow(int(job.max()) + 1)
            for name, value in values.items():
                self.rows[name][job] = value
        start = self.rows["start"][max(0, length - 1) :]
        if not bool((np.diff(start) >= 0).all()):  # also if one is missing
            start[:] = np.maximum.accumulate(np.where(np.isnan(start), -np.inf, start))
            np.maximum(start, 0.0, out=start)

    def upload(self, job: Array, time: Array, staleness: Array) -> int:
        """Ends jobs with their uploads, in their order; returns how many there are not."""
        known = (job >= 0) & (job < self.rows.length)
        self.rows["order"][job[known]] = self.uploads + known.nonzero()[0]
        self.rows["staleness"][job[known]] = np.clip(staleness[known], -1, MOST)
        self.uploads += len(job)
        return self.end(job, time, np.full(len(job), UPLOADED))

    def end(self, job: Array, time: Array, outcome: Array) -> int:
        """Ends jobs; returns how many there are not."""
        known = (job >= 0) & (job < self.rows.length)
        if not known.all():
            job, time, outcome = job[known], time[known], outcome[known]
        self.rows["end"][job] = time
        self.rows["outcome"][job] = outcome
        return int((~known).sum())

    def report(self, job: Array, joules: Array) -> None:
        """What real devices say that their jobs took."""
        if "joules" not in self.rows:
            self.rows.add("joules", "f4", _NAN)
        known = (job >= 0) & (job < self.rows.length)
        self.rows["joules"][job[known]] = _within(joules[known], MOST_JOULES)

    @property
    def in_flight(self) -> int:
        """Jobs under way."""
        return int(((self.rows["outcome"] == UNDER_WAY) & (self.rows["device"] >= 0)).sum())


def _within(values: Array, bound: float) -> Array:
    """The values; NaN for absurd ones."""
    return np.where(np.abs(values) < bound, values, _NAN)
