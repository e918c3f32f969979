"""An augmentation of your own as the relaxed third view: the residual learns to say what it did.

On the command line it is `prelax pretrain digits/prelax-rot method.relax=own_augmentation:Shear`, run beside this file.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from prelax.config import resolve
from prelax.draws import Draws
from prelax.record import Target
from prelax.train import pretrain


class Shear:
    """Rows pushed sideways, each by its distance from the middle times a factor drawn per image."""

    name = "shear"
    targets = (Target("shear.factor", "continuous", mean=0.0, std=0.577),)  # uniform in [-1, 1]

    def make_params(self, shape: tuple[int, int, int, int], draws: Draws) -> dict[str, Tensor]:
        return {"factor": draws.uniform("factor", -1.0, 1.0)}

    def transform(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        height, width = images.shape[-2:]
        rows = torch.arange(height, device=images.device) - (height - 1) / 2
        shift = (params["factor"][:, None] * rows).round().long()  # B x H
        columns = (torch.arange(width, device=images.device) - shift[..., None]) % width  # B x H x W
        return images.gather(3, columns[:, None].expand_as(images))


def main(epochs: int = 5) -> float:
    sys.path.insert(0, str(Path(__file__).parent))
    changes = ["method.relax=own_augmentation:Shear", f"train.epochs={epochs}"]
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(resolve("digits/prelax-rot", changes), Path(folder) / "run", progress=False)
        errors = [line["loss/rotpl"] for line in run.metrics()]
    print("squared error of the shear read off the residual, mean of an epoch (guessing the mean shear: 1.00):")
    print(f"  first epoch {errors[0]:.2f}, epoch {epochs} {errors[-1]:.2f}")
    return float(errors[-1])


if __name__ == "__main__":
    main()
