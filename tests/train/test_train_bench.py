"""The training benchmark: its rows, and that no path of ours is slower than a plain loop by design."""

import pytest

from prelax.config import resolve
from prelax.train.bench import bench
from prelax.train.peers import bench_peer, installed

SMALL = [
    "model.backbone=resnet8",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "train.batch_size=16",
    "train.device=cpu",
]


def test_rows_tell_speed_and_the_share_of_augmentation() -> None:
    rows = bench(resolve("cifar10/prelax-rot", SMALL), seconds=0.05)
    assert [row["mode"] for row in rows] == ["plain", "together"]
    for row in rows:
        assert row["views"] == 3
        assert row["views_per_s"] == pytest.approx(3 * 16 / row["ms_per_step"] * 1e3, rel=0.05)
        assert 0 < row["augment_share"] < 1


@pytest.mark.parametrize("name", installed())
def test_a_peer_trains_the_same_job(name: str) -> None:
    row = bench_peer(name, resolve("cifar10/simsiam", SMALL), seconds=0.05, workers=0)
    assert row["mode"] == name
    assert row["views_per_s"] > 0
