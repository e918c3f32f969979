from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prelax.config import resolve
from prelax.run import Run
from prelax.train.pretrain import pretrain

torch.set_num_threads(1)


class Tiny(nn.Module):
    """A small conv net with BatchNorm and what a backbone promises: ``features`` and B x features."""

    def __init__(self, channels: int = 3, features: int = 16) -> None:
        super().__init__()
        self.features = features
        self.conv1 = nn.Conv2d(channels, 8, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, features, 3, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(features)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(x))).mean((2, 3))


def preprocess(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1.0


@pytest.fixture
def tiny() -> Tiny:
    torch.manual_seed(0)
    net = Tiny()
    net.train()
    with torch.no_grad():  # running statistics that are not the start values
        for _ in range(3):
            net(torch.randn(32, 3, 16, 16) * 2 + 0.5)
    return net


@pytest.fixture
def pixels() -> Tensor:
    return torch.randint(0, 256, (37, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(name="preprocess")
def _preprocess() -> object:
    return preprocess


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real run of two epochs on the digits."""
    settings = resolve(
        "digits/prelax-rot",
        [
            "train.epochs=2",
            "model.projector_hidden=32",
            "model.projector_dim=32",
            "model.predictor_hidden=16",
            "model.head_hidden=16",
        ],
    )
    return pretrain(settings, tmp_path_factory.mktemp("runs") / "digits", progress=False)


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    """A copy of the trained run that a test may change."""
    shutil.copytree(trained.path, tmp_path / "run")
    return Run.open(tmp_path / "run")
