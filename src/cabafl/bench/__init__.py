"""Measurements: ratios and times taken side by side in one run."""

SECTIONS = ("simulator", "engine", "selection", "memory", "toolkits")
