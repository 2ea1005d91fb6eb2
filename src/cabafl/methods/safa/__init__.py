"""SAFA: the rounds and the cache (`method`), and the two populations they can work on (`population`)."""

from cabafl.methods.safa.method import SAFA, SAFAParameters

__all__ = ["SAFA", "SAFAParameters"]
