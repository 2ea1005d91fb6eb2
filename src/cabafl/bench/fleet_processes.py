"""The processes of a measured fleet on loopback: broker and light devices; their processor time and memory."""

import os
import sys
from pathlib import Path

from cabafl.deployment.folder.layout import FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.processes.children import LOOPBACK, Child, Children, free_ports

DEVICES_PER_PROCESS = 250  # a thread each
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def make_local_fleet(path: Path, devices: int) -> FleetFolder:
    """A fleet folder on a free port of this machine."""
    [port] = free_ports(1)
    return make_fleet(path, FleetSettings(ip=(LOOPBACK,), port=port, listen=LOOPBACK), devices)


def start_light(
    children: Children, fleet: FleetFolder, devices: range, seconds: float = 0.5, width: int = 1
) -> list[Child]:
    """Starts light devices, `DEVICES_PER_PROCESS` in each process."""
    started = []
    for first in range(devices.start, devices.stop, DEVICES_PER_PROCESS):
        count = min(DEVICES_PER_PROCESS, devices.stop - first)
        words = [str(fleet.path), str(first), str(count), str(seconds), str(width)]
        command = [sys.executable, "-P", "-m", "cabafl.bench.light_fleet", *words]
        started.append(children.start(f"light-{first}", command, dict(os.environ), fleet.path))
    return started


def processor_seconds(pid: int) -> float:
    """Processor time of a process and its ended children so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICKS


def memory_bytes(pid: int) -> int:
    """Resident memory of a process (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def disk_bytes(path: Path) -> int:
    """Size of all files below a folder; files that vanish meanwhile are skipped."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size  # noqa: PTH118, PTH116
            except OSError:
                continue
    return total
