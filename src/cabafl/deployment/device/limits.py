"""Limits on memory and priority of the device process."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cabafl.deployment.device.terms import Resources
from cabafl.errors import UserError

MEGABYTE = 1 << 20
_OWN = Path("/proc/self")
_OUT_OF_MEMORY = ("allocate memory", "bad_alloc")  # in RuntimeErrors of torch


def apply_limits(limits: Resources) -> None:
    """Limits this process from now on.

    The memory limit is one on private writable memory (RLIMIT_DATA): an allocation beyond it fails and with it the job,
    and the process lives on. RLIMIT_AS would also count what torch maps without using it.
    """
    if limits.nice is not None:
        _renice(limits.nice)
    if limits.memory_mb is not None:
        _limit_memory(limits.memory_mb)


@contextmanager
def memory_failures(limits: Resources) -> Iterator[None]:
    """Turns every way in which torch and NumPy run out of memory into a MemoryError that names the limit."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not any(sign in text for sign in _OUT_OF_MEMORY):
            raise
        limit = "no limit" if limits.memory_mb is None else f"limits.memory_mb = {limits.memory_mb}"
    else:
        return
    raise MemoryError(f"out of memory ({limit})")  # outside of the handler: the old error holds the job's tensors


def _limit_memory(megabytes: int) -> None:
    used = _used_memory()
    if used >= megabytes:
        raise UserError(
            f"limits.memory_mb = {megabytes}: too little, the process uses {used} before it has loaded samples and "
            f"model; accepted: more"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _used_memory() -> int:
    """Megabytes that count against RLIMIT_DATA."""
    try:
        lines = (_OWN / "status").read_text(encoding="ascii").splitlines()
    except OSError:
        raise UserError("limits.memory_mb: works on Linux only") from None
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(kilobytes) // 1024


def _renice(nice: int) -> None:
    """On Linux each thread has its own priority. One that is nicer already stays so."""
    threads = [int(path.name) for path in (_OWN / "task").iterdir()] if (_OWN / "task").is_dir() else [0]
    for thread in threads:
        if os.getpriority(os.PRIO_PROCESS, thread) < nice:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
