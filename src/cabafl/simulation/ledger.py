"""What a run has cost so far."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Everything that travels is counted, the first dispatches and the first collection too."""

    dispatches: int = 0
    downloads: int = 0
    uploads: int = 0
    feature_downloads: int = 0
    feature_uploads: int = 0
    bytes: int = 0
    joules: float = 0.0
    losses: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)

    @property
    def transfers(self) -> int:
        """Models that travelled one way; the small feature vectors do not count."""
        return self.downloads + self.uploads + self.feature_downloads
