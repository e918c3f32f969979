"""BatchNorm that keeps the views of a concatenated batch apart.

SimSiam sends its views through the network one at a time, so every view is normalised by its own statistics. Sending
them as one batch keeps the card busy but would mix the statistics; here they stay per view, and the running averages
become what the views would have made of them one after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from prelax.collectives import sum_over_processes, world_size


def normalise_views(x: Tensor, norm: nn.modules.batchnorm._BatchNorm, borrow: Sequence[int] | None = None) -> Tensor:
    """Each view of ``x`` normalised by its own batch statistics, over all processes.

    Args:
        x: V x B x C or V x B x C x H x W.
        norm: where the weight, the bias and the running averages are.
        borrow: for each view, the view whose statistics it is normalised by; its own by default.
    """
    dims = [1, *range(3, x.ndim)]
    mean, var, count = _moments(x, dims)  # V x C
    if norm.track_running_stats:
        _track(norm, mean, var, count)
    if borrow is not None:
        mean, var = mean[list(borrow)], var[list(borrow)]
    scale = torch.rsqrt(var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    shape = (scale.shape[0], 1, scale.shape[1], *([1] * (x.ndim - 3)))
    return (x.to(scale.dtype) * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, int]:
    """Mean and (biased) variance per view and channel in float32 or better, and over how many values."""
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    count = x.numel() // (x.shape[0] * x.shape[2])
    if (world := world_size()) > 1:
        sums = sum_over_processes(torch.stack([wide.sum(dims), wide.square().sum(dims)]))
        mean, square = sums / (count * world)
        return mean, (square - mean.square()).clamp_min(0.0), count * world
    if wide is not x:  # half precision carries fewer digits than the one-pass formula loses, and one pass is faster
        mean = wide.mean(dims)
        return mean, (wide.square().mean(dims) - mean.square()).clamp_min(0.0), count
    var, mean = torch.var_mean(x, dims, correction=0)
    return mean, var, count


@torch.no_grad()
def _track(norm: nn.modules.batchnorm._BatchNorm, mean: Tensor, var: Tensor, count: int) -> None:
    """Running averages as if the views had come one after another."""
    views, momentum = mean.shape[0], norm.momentum or 0.1
    unbiased = var * (count / max(count - 1, 1))
    for running, batch in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        assert running is not None
        running.mul_((1 - momentum) ** views)
        for view in range(views):
            running.add_(batch[view], alpha=momentum * (1 - momentum) ** (views - 1 - view))
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(views)


class ViewNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` whose batch may hold several views one after another; its state dict is the same."""

    views = 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or (self.views == 1 and world_size() == 1):
            return super().forward(x)
        return normalise_views(x.unflatten(0, (self.views, -1)), self).flatten(0, 1)


def set_views(module: nn.Module, views: int) -> None:
    """Tells every ``ViewNorm2d`` of a network how many views a batch holds."""
    for layer in module.modules():
        if isinstance(layer, ViewNorm2d):
            layer.views = views


def keeps_views_apart(module: nn.Module) -> bool:
    """Whether every BatchNorm of a network can take several views in one batch."""
    return all(
        isinstance(layer, ViewNorm2d)
        for layer in module.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    )
