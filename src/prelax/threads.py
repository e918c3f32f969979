"""How the threads of a process that computes on the CPU wait for one another."""

from __future__ import annotations

import os

SPINS = "10000"  # turns of a waiting thread before it sleeps; GNU's OpenMP has 300,000 of its own accord


def wait_briefly() -> None:
    """Waiting threads soon leave their core to others. To be asked for before torch is imported.

    A thread that waits by spinning holds the core that the one it waits for may need: two trainings at once on two
    cores were 4 to 14 times slower for it. So many turns cost nothing on an idle machine; fewer would help more on a
    busy one, and cost small networks a tenth and more of their speed on an idle one (`benchmarks/busy.py`). What the
    user has set stays.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPINS
