"""Labels that come after training."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prelax.cli import main


def test_labels_may_come_after_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    rng, lines = np.random.default_rng(0), ["path,label"]
    for n in range(60):
        bright = 128 * (n % 2)
        pixels = rng.integers(bright, bright + 100, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{n}.png")
        lines.append(f"{n}.png,{'day' if n % 2 else 'night'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    pairs = [f"data.root={tmp_path / 'photos'}", f"data.cache={tmp_path / 'cache'}", "train.epochs=1"]
    out = tmp_path / "run"
    assert main(["pretrain", "folder", *pairs, "model.backbone=resnet8", "--out", str(out), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), "--protocol", "knn"]) == 2
    assert "--labels FILE.csv" in capsys.readouterr().err
    assert main(["evaluate", str(out), "--protocol", "knn", "--labels", str(tmp_path / "labels.csv"), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["classes"] == 2
    assert result["accuracy"] > 80
    assert result["pretraining_images_verified"]
    assert (out / "eval" / "knn.json").is_file()
    assert main(["evaluate", str(out), "--protocol", "knn", "--labels", str(tmp_path / "gone.csv")]) == 2
    assert "gone.csv" in capsys.readouterr().err
