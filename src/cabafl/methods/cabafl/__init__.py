"""CaBaFL: the method, its two-level cache, its device selector and its aggregation."""

from cabafl.methods.cabafl.method import CaBaFL, CaBaFLParameters

__all__ = ["CaBaFL", "CaBaFLParameters"]
