"""BatchNorm that keeps the views of a concatenated batch apart.

SimSiam sends its views through the network one at a time, so every view is normalised by its own statistics. Sending
them as one batch keeps the card busy but would mix the statistics; here they stay per view, and the running averages
become what the views would have made of them one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prelax.collectives import grouped, sum_over_processes, world_size


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
    """Mean and (biased) variance per view and channel in float32 or better, and over how many values.

    Several processes take both in one pass, which loses digits where the mean is hundreds of deviations. (Taken from
    the running averages it would lose none, but those change in place before backward reads them.)
    """
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    count = x.numel() // (x.shape[0] * x.shape[2])
    if grouped():
        count *= world_size()
        mean, square = sum_over_processes(torch.stack([wide.sum(dims), wide.square().sum(dims)])) / count
        return mean, (square - mean.square()).clamp_min(0.0), count
    if wide is not x:  # half precision carries fewer digits than the one-pass formula loses, and one pass is faster
        mean = wide.mean(dims)
        return mean, (wide.square().mean(dims) - mean.square()).clamp_min(0.0), count
    var, mean = torch.var_mean(x, dims, correction=0)
    return mean, var, count


@torch.no_grad()
def _track(norm: nn.modules.batchnorm._BatchNorm, mean: Tensor, var: Tensor, count: int) -> None:
    """Running averages as if the views had come one after another."""
    views, momentum = mean.shape[0], norm.momentum
    unbiased = var * (count / max(count - 1, 1))
    for running, batch in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        assert running is not None
        if momentum is None:  # the mean of all batches so far
            assert norm.num_batches_tracked is not None
            running.add_((batch - running).sum(0) / (norm.num_batches_tracked + views))
            continue
        running.mul_((1 - momentum) ** views)
        for view in range(views):
            running.add_(batch[view], alpha=momentum * (1 - momentum) ** (views - 1 - view))
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(views)


class _Normalised(torch.autograd.Function):
    """A batch of views by given statistics of itself, a sum and a ReLU, with a backward pass that reads little.

    A step spends a third of its time on moving what is normalised to and from memory. Where the ReLU cut is computed
    again from the input, which the backward pass reads anyway; autograd would read the output as well, and twice.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, add: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, relu: bool
    ) -> Tensor:
        y = x.to(mean.dtype) * _rows(weight * rstd, x) + _rows(bias - mean * weight * rstd, x)
        if add is not None:
            y = y + add
        y = y.relu() if relu else y
        if y.dtype != x.dtype:  # torch 2.11, compiling, gives no gradient to what `to` returns unchanged
            y = y.to(x.dtype)
        ctx.relu, ctx.adds = relu, add is not None
        ctx.save_for_backward(x, weight, bias, mean, rstd, y if relu and add is not None else None)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, bias, mean, rstd, y = ctx.saved_tensors
        wide, views = x.to(mean.dtype), mean.shape[0]
        g = dy.to(mean.dtype)
        if ctx.relu:
            passed = wide * _rows(weight * rstd, x) + _rows(bias - mean * weight * rstd, x) if y is None else y
            g = torch.where(passed > 0, g, 0.0)
        if ctx.adds:  # the block before reads it too: written once, it need not be made again from all that it sums up
            g = _written(g.to(dy.dtype)).to(mean.dtype)
        unit = (wide - _rows(mean, x)) * _rows(rstd, x)
        d_bias, d_weight = (part.unflatten(0, (views, -1)).sum((1, 3, 4)) for part in (g, g * unit))  # V x C
        # The statistics are over all processes, so their part of dx is too; each process's own weights are averaged
        # with the others' by whoever averages gradients.
        of_mean, of_var = sum_over_processes(torch.stack([d_bias, d_weight])) if grouped() else (d_bias, d_weight)
        count = world_size() * x.numel() // (views * x.shape[1])
        dx = (g - _rows(of_mean / count, x) - unit * _rows(of_var / count, x)) * _rows(weight * rstd, x)
        d_add = g.to(dy.dtype) if ctx.adds else None
        return dx.to(x.dtype), d_add, d_weight.sum(0), d_bias.sum(0), None, None, None


_write_out: Any = None


def prepare_to_compile() -> None:
    """Lets compiled backward passes say what is to be written out. Without it they are right too, and slower."""
    global _write_out
    from torch._inductor import inductor_prims

    _write_out = getattr(inductor_prims, "force_stride_order", None)


def _written(x: Tensor) -> Tensor:
    """The same; where this is compiled, a place at which it lies in memory."""
    return _write_out(x, x.stride()) if _write_out is not None and torch.compiler.is_compiling() else x


def _rows(per_view: Tensor, x: Tensor) -> Tensor:
    """V x C as the images of the views take it: (V B) x C x 1 x 1."""
    views, channels = per_view.shape
    return per_view[:, None].expand(views, x.shape[0] // views, channels).reshape(-1, channels, 1, 1)


class ViewNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` whose batch may hold several views one after another; its state dict is the same.

    What follows it in a ResNet may be said in the same call: ``norm(x, add=shortcut, relu=True)``.
    """

    views = 1

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        if not self.training or (self.views == 1 and not grouped()):
            y = super().forward(x)
        elif self.weight is None:
            y = normalise_views(x.unflatten(0, (self.views, -1)), self).flatten(0, 1)
        else:
            with torch.no_grad():
                mean, var, count = _moments(x.unflatten(0, (self.views, -1)), [1, 3, 4])
                if self.track_running_stats:
                    _track(self, mean, var, count)
            rstd = torch.rsqrt(var + self.eps)
            return _Normalised.apply(x, add, self.weight, self.bias, mean, rstd, relu)
        if add is not None:
            y = y.add_(add)
        return y.relu_() if relu else y


def with_plain_norms(net: nn.Module) -> nn.Module:
    """The network with torch's own BatchNorm, which is the same in eval mode; other kinds may do more and stay."""
    for part in net.modules():
        if type(part) is ViewNorm2d:
            part.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
    return net


def normalised(norm: nn.Module, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
    """A normalisation and what follows it in a ResNet: in one call where that is a ``ViewNorm2d``."""
    if isinstance(norm, ViewNorm2d):
        return norm(x, add, relu)
    y = norm(x)  # another was put in its place, for an export or a detector
    y = y if add is None else y + add
    return y.relu() if relu else y


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


@torch.no_grad()
def silent_channels(module: nn.Module) -> float | None:
    """The share of a network's BatchNorm channels whose running variance is under eps; None where there are none.

    Such a channel is dead, or so small that it is no longer normalised: what weight decay does to scales in time.

    >>> norm = nn.BatchNorm2d(4)
    >>> _ = norm.running_var[:1].fill_(1e-6)
    >>> silent_channels(norm)
    0.25
    """
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    found = [part.running_var < part.eps for part in norms if part.running_var is not None]
    return float(torch.cat(found).float().mean()) if found else None
