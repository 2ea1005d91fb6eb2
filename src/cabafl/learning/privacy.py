"""Protects a feature vector on the device before it is sent."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cabafl.config import PrivacySection

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FeaturePrivacy:
    """Clips the vector to a norm, then adds Gaussian noise to every entry; does nothing by default."""

    clip: float | None = None
    noise: float = 0.0  # standard deviation as a multiple of ``clip``

    @classmethod
    def of(cls, section: PrivacySection) -> "FeaturePrivacy":
        """From the experiment's settings."""
        return cls(section.feature_clip, section.feature_noise)

    def applied(self, feature: Floats, random: np.random.Generator | None) -> Floats:
        """The protected vector; ``random`` is required if there is noise."""
        if self.clip is None:
            return feature
        norm = float(np.sqrt((feature * feature).sum()))
        if norm > self.clip:
            feature = feature * (self.clip / norm)
        if self.noise:
            assert random is not None
            feature = feature + random.normal(0.0, self.noise * self.clip, len(feature))
        return feature
