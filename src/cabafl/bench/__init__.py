"""Measurements: ratios and times taken side by side in one run."""
