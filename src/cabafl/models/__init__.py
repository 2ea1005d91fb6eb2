"""The networks, found by name; any ``package.module:Class`` of the user's works too."""

from cabafl.models.catalogue import NETWORKS, Network
from cabafl.models.registry import build, default_feature_layer

__all__ = ["NETWORKS", "Network", "build", "default_feature_layer"]
