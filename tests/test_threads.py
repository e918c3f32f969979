"""Threads that wait for one another on a machine that others use too."""

import os
import subprocess
import sys

import pytest

SCRIPT = "import sys; from prelax.cli import main; main(['--version']); assert 'torch' not in sys.modules; import torch"


def said(**variables: str) -> str:
    """What OpenMP says of its settings when a command has begun and torch is imported."""
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    env |= {"OMP_DISPLAY_ENV": "verbose", **variables}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True).stderr


def test_a_command_has_waiting_threads_leave_their_core_soon() -> None:
    shown = said()
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("this torch has another OpenMP than GNU's")
    assert "GOMP_SPINCOUNT = '10000'" in shown


def test_what_the_user_has_set_stays() -> None:
    shown = said(GOMP_SPINCOUNT="77")
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("this torch has another OpenMP than GNU's")
    assert "GOMP_SPINCOUNT = '77'" in shown
    assert "GOMP_SPINCOUNT = '0'" in said(OMP_WAIT_POLICY="passive")
