"""How much memory there is, and how many cores."""

from __future__ import annotations

import math
import os
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup")  # what a container may use, where this process is in one


def available_memory() -> int:
    """Bytes of host memory this process may still use: what the system has free, or what its container is allowed."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    free = pages * os.sysconf("SC_PAGE_SIZE") if pages else 1 << 33
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = (CONTAINER / "memory.max").read_text().strip()
        if limit != "max":
            # Pages of files count as used, and are given up when memory is asked for: those not in use of late.
            stat = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
            used = int((CONTAINER / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
            free = min(free, int(limit) - used)
    except (OSError, ValueError):
        pass  # not Linux, or no cgroup: what was found so far stands
    return max(free, 0)


def core_count() -> int:
    """Cores this process may use: those it may run on, or as many as its container has the time of."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (CONTAINER / "cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # none, or "max"
        return cores


def gigabytes(count: int) -> str:
    """A number of bytes for people.

    >>> gigabytes(3_072_000_000), gigabytes(150_000_000)
    ('3.1 GB', '150 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
