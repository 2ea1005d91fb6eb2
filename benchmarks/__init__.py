"""Measurements of other toolkits, for `cabafl bench toolkits`. A package of its own: opacus installs one of this name."""
