"""Benchmarks: everything that is compared is measured in turns in the same run."""

NEVER = 10**9  # versions between two evaluations: no evaluation during a benchmark
SECTIONS = ("simulator", "engine", "selection", "memory", "toolkits")
