"""Networks by name, or the user's own as ``package.module:Class``."""

from cabafl.models.catalogue import NETWORKS, NetworkInfo
from cabafl.models.registry import build, default_feature_layer

__all__ = ["NETWORKS", "NetworkInfo", "build", "default_feature_layer"]
