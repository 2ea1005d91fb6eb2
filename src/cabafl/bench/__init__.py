"""Benchmarks: everything that is compared is measured in turns in the same run."""

SECTIONS = ("simulator", "engine", "selection", "memory", "toolkits")
