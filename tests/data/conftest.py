from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prelax.config import DataSettings
from prelax.data import ImageSet, load


@pytest.fixture
def photo() -> Callable[..., Path]:
    """Writes a small image of noise, different for every seed."""

    def write(path: Path, size: tuple[int, int] = (40, 40), mode: str = "RGB", seed: int = 0, **options: Any) -> Path:
        rng = np.random.default_rng([seed, *str(path).encode()])
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(path, **options)
        return path

    return write


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ImageSet]:
    """Loads a folder in this process with its own cache."""

    def run(root: Path, split: str = "train", **settings: Any) -> ImageSet:
        given = {"cache": tmp_path / "cache", "workers": 0, "test_fraction": 0.0} | settings
        return load(DataSettings(source="folder", root=root, **given), split)

    return run
