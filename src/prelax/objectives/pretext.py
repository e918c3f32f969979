"""The predictive loss: what a pretext head says of an augmentation, against its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from prelax.record import Target


class PretextLoss:
    """PL (Eq. 5): cross entropy of the discrete targets and squared error of the continuous ones.

    >>> loss = PretextLoss([Target("rotation.turns", "categorical", classes=4), Target("crop.area", "continuous")])
    >>> loss.width
    5
    >>> turns, area = torch.tensor([0, 3]), torch.tensor([0.1, -0.2])
    >>> loss(torch.zeros(2, 5), {"rotation.turns": turns, "crop.area": area}).shape
    torch.Size([])

    Args:
        specs: the targets, in the order of the head's outputs.
        reduction: ``sum`` over the targets, or ``mean``.
    """

    def __init__(self, specs: Sequence[Target], reduction: str = "mean") -> None:
        self.specs = tuple(specs)
        self.reduction = reduction
        self.width = sum(spec.width for spec in self.specs)

    def each(self, outputs: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss of every target by name. ``outputs``: B x width."""
        parts = outputs.float().split([spec.width for spec in self.specs], dim=-1)
        return {spec.name: _loss(spec, part, targets[spec.name]) for spec, part in zip(self.specs, parts, strict=True)}

    def __call__(self, outputs: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        losses = torch.stack(list(self.each(outputs, targets).values()))
        return losses.sum() if self.reduction == "sum" else losses.mean()


def _loss(spec: Target, output: Tensor, target: Tensor) -> Tensor:
    if spec.kind == "categorical":
        return F.cross_entropy(output, target)
    if spec.kind == "binary":
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), target)
    return F.mse_loss(output.squeeze(-1), target)
