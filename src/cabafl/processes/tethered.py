"""Runs a program that is asked to end when its parent is gone: ``python -m cabafl.processes.tethered PARENT PROGRAM``.

A program of its own, since the wish has to be made by the process it is for; Linux keeps it when a program takes the
place of another.
"""

import os
import signal
import sys

from cabafl.processes.lifeline import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    os.execvp(sys.argv[2], sys.argv[2:])
