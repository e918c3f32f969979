"""BatchNorm of backbones that are not our own, made to take its statistics over all processes, on any device."""

from __future__ import annotations

import sys

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prelax.collectives import grouped
from prelax.nets.norm import ViewNorm2d, normalise_views


class _OverProcesses(_BatchNorm):
    """A BatchNorm whose batch is that of all processes; its state dict is the same."""

    def _normalised(self, x: Tensor) -> Tensor:
        if self.training and grouped():
            return normalise_views(x.unsqueeze(0), self).squeeze(0)
        return super().forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return self._normalised(x)


class Norm1d(_OverProcesses, nn.BatchNorm1d):
    pass


class Norm3d(_OverProcesses, nn.BatchNorm3d):
    pass


class NormAct2d(_OverProcesses, nn.BatchNorm2d):
    """timm's BatchNorm that ends with an activation."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(self._normalised(x)))  # type: ignore[no-any-return]


def synchronise(network: nn.Module) -> list[str]:
    """Makes the BatchNorm layers of a network take their statistics over all processes; the names of those it cannot.

    It is their class that changes, in place: weights, running averages and whoever holds the layers stay.
    """
    kinds: dict[type, type[_BatchNorm]] = {
        nn.BatchNorm1d: Norm1d,
        nn.BatchNorm2d: ViewNorm2d,
        nn.BatchNorm3d: Norm3d,
    }
    if "timm.layers" in sys.modules:
        kinds[sys.modules["timm.layers"].BatchNormAct2d] = NormAct2d
    left = []
    for name, layer in network.named_modules():
        if not isinstance(layer, _BatchNorm) or isinstance(layer, ViewNorm2d | _OverProcesses | nn.SyncBatchNorm):
            continue
        if type(layer) in kinds:
            layer.__class__ = kinds[type(layer)]
        else:
            left.append(name)
    return left
