"""Networks by name, or the user's own as ``package.module:Class``."""

from typing import TYPE_CHECKING, Any

from cabafl.models.catalogue import NETWORKS, NetworkInfo

if TYPE_CHECKING:
    from cabafl.models.registry import build, default_feature_layer

__all__ = ["NETWORKS", "NetworkInfo", "build", "default_feature_layer"]


def __getattr__(name: str) -> Any:
    """Imports the registry at its first use: it loads torch, which `cabafl models` does not need."""
    if name not in ("build", "default_feature_layer"):
        raise AttributeError(f"module 'cabafl.models' has no attribute {name!r}")
    from cabafl.models import registry

    return getattr(registry, name)
