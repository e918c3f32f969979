"""A timm backbone pre-trained by the engine, and loaded by timm again; needs `pip install 'prelax[timm]'`."""

import tempfile
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

from prelax.config import resolve
from prelax.train import pretrain


def main(epochs: int = 1) -> tuple[torch.Size, list[str]]:
    settings = resolve(
        "digits/prelax-rot",
        ["model.backbone=timm:resnet10t", "data.image_size=32", "data.limit=256", f"train.epochs={epochs}"],
    )
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(settings, Path(folder) / "run", progress=False)
        weights = load_file(run.path / "backbone.safetensors")
    plain = timm.create_model("resnet10t", num_classes=0, in_chans=1)
    missing = plain.load_state_dict(weights).missing_keys
    features = plain.eval()(torch.zeros(2, 1, 32, 32))
    print(f"{len(weights)} tensors loaded by timm, features {tuple(features.shape)}")
    return features.shape, list(missing)


if __name__ == "__main__":
    main()
