"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes of host memory this process may still use: what the system has free, or what its container is allowed."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    free = pages * os.sysconf("SC_PAGE_SIZE") if pages else 1 << 33
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # not Linux, or no cgroup: what was found so far stands
    return max(free, 0)


def gigabytes(count: int) -> str:
    """A number of bytes for people.

    >>> gigabytes(3_072_000_000), gigabytes(150_000_000)
    ('3.1 GB', '150 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
