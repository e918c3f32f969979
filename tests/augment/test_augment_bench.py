"""The bench measures every contestant that is installed, in one run."""

import importlib.util
import json

import pytest
import torch

from prelax.augment.bench import bench
from prelax.errors import PrelaxError


def test_the_bench_compares_with_torchvision_and_kornia_where_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.compile  # without the compiler's own time
    monkeypatch.setattr(torch, "compile", lambda f, **o: real(f, fullgraph=o["fullgraph"], backend="eager"))
    threads = torch.get_num_threads()
    rows = bench([(12, 8, 6)], seconds=0.05)
    names = [row["contestant"] for row in rows]
    expected = ["prelax compiled", "prelax eager", "torchvision PIL", "torchvision tensor"]
    assert names == expected + (["kornia"] if importlib.util.find_spec("kornia") else [])
    speed = {row["contestant"]: row["views_per_s"] for row in rows}
    assert min(speed.values()) > 0
    for row in rows[2:]:
        assert row["prelax_is_times"] == pytest.approx(speed["prelax compiled"] / speed[row["contestant"]], rel=0.1)
    assert rows[0]["batch"] == 6
    assert json.loads(json.dumps(rows)) == rows
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_a_missing_device_is_told_in_a_line() -> None:
    with pytest.raises(PrelaxError, match="no CUDA device"):
        bench(device="cuda")
