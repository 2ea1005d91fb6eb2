"""What a run has cost so far."""

from collections import defaultdict
from dataclasses import dataclass, field

from cabafl.state import State


@dataclass
class Ledger(State):
    """Everything that travels is counted, the first dispatches and the first collection too."""

    dispatches: int = 0
    downloads: int = 0
    uploads: int = 0
    feature_downloads: int = 0
    feature_uploads: int = 0
    bytes: int = 0
    joules: float = 0.0
    slowed: int = 0  # jobs that a device slowed down in the middle
    losses: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by reason
    staleness: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # uploads by staleness

    def __post_init__(self) -> None:
        self.losses = defaultdict(int, self.losses)
        self.staleness = defaultdict(int, self.staleness)

    @property
    def mean_staleness(self) -> float | None:
        """Of all uploads; None before the first."""
        uploads = sum(self.staleness.values())
        return sum(s * n for s, n in self.staleness.items()) / uploads if uploads else None

    @property
    def transfers(self) -> int:
        """Models that travelled one way; the small feature vectors do not count."""
        return self.downloads + self.uploads + self.feature_downloads
