"""CaBaFL: the method (`method`), its two-level cache, device selection by features, and aggregation weights."""

from cabafl.methods.cabafl.method import CaBaFL, CaBaFLParameters

__all__ = ["CaBaFL", "CaBaFLParameters"]
