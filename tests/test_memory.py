"""Memory that is freed and asked for again, as every step does."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import sys
import torch
from prelax.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    return [torch.ones(1 << 24) for _ in range(4)]  # 64 MiB each: more than glibc keeps of itself

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kind: str) -> int:
    """Pages that the system had to give and clear in twenty steps."""
    return int(subprocess.run([sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_finds_the_memory_of_the_one_before() -> None:
    assert faults("kept") < 0.25 * faults("given back")  # the heap may still grow a little
