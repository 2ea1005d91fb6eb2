"""Measurements of other toolkits, for `cabafl bench toolkits`.

A regular package, because opacus installs one of the same name, which would win otherwise.
"""
