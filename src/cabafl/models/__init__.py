"""The networks, found by name; any ``package.module:Class`` of the user's works too."""

from cabafl.models.catalogue import NETWORKS, NetworkInfo
from cabafl.models.registry import build, default_feature_layer

__all__ = ["NETWORKS", "NetworkInfo", "build", "default_feature_layer"]
