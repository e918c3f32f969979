"""When something is written, by which state of the code, and where it was computed."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import torch


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the checkout prelax runs from, if it runs from one."""

    def git(*words: str) -> str | None:
        try:
            asked = subprocess.run(
                ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return asked.stdout.strip() if asked.returncode == 0 else None

    # Installed inside someone's own repository, the commit would be theirs.
    return git("rev-parse", "HEAD") if git("ls-files", Path(__file__).name) else None


def device_name(device: torch.device) -> str:
    """The name of a device, for a table."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
