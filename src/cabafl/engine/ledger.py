"""The costs of a run so far."""

from collections import defaultdict
from dataclasses import dataclass, field

from cabafl.state import State


@dataclass
class Ledger(State):
    """Counts every transfer, including the first dispatches and the first feature collection."""

    dispatches: int = 0
    downloads: int = 0
    uploads: int = 0
    feature_downloads: int = 0
    feature_uploads: int = 0
    bytes: int = 0
    joules: float = 0.0  # of jobs and feature collections that have ended
    idle_joules: float = 0.0  # of waiting devices, at the last evaluation
    slowed: int = 0  # jobs during which the device slowed down
    losses: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by reason
    staleness: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # uploads by staleness

    def __post_init__(self) -> None:
        self.losses = defaultdict(int, self.losses)
        self.staleness = defaultdict(int, self.staleness)

    @property
    def mean_staleness(self) -> float | None:
        """Mean over all accepted uploads; None if there are none."""
        uploads = sum(self.staleness.values())
        return sum(s * n for s, n in self.staleness.items()) / uploads if uploads else None

    @property
    def transfers(self) -> int:
        """Number of models sent in either direction; feature vectors are not counted."""
        return self.downloads + self.uploads + self.feature_downloads
