"""Runs a program that gets SIGTERM when its parent ends: ``python -m cabafl.processes.tethered PARENT PROGRAM``.

PDEATHSIG must be set by the child itself; it survives exec.
"""

import os
import signal
import sys

from cabafl.processes.lifeline import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    os.execvp(sys.argv[2], sys.argv[2:])
