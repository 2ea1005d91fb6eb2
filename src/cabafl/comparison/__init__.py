"""Comparisons of methods on the same experiment, and the paper's observations about features."""
