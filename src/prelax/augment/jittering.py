"""Colour jitter with a random order of its four steps for every image.

Brightness, saturation, contrast and identity are one operation, ``clamp(gain * x + share * grey(x) + rest)``. So every
image can have its own order of the steps in one static programme of slots around the single reduction that contrast
needs (the mean grey level).
"""

from __future__ import annotations

import torch
from torch import Tensor

from prelax.augment.operation import Params

Planes = tuple[Tensor, Tensor, Tensor]  # red, green, blue, each B x H x W
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # torchvision's numbering of the steps
FACTORS = ("brightness", "contrast", "saturation", "hue")


def grey_of(planes: Planes) -> Tensor:
    """The luma torchvision uses."""
    red, green, blue = planes
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _blend(planes: Planes, gain: Tensor, share: Tensor) -> Planes:
    grey = share * grey_of(planes)
    red, green, blue = ((gain * plane + grey).clamp(0.0, 1.0) for plane in planes)
    return red, green, blue


def _contrast(planes: Planes, factor: Tensor) -> Planes:
    rest = (1.0 - factor) * grey_of(planes).mean((-2, -1), keepdim=True)
    red, green, blue = ((factor * plane + rest).clamp(0.0, 1.0) for plane in planes)
    return red, green, blue


def _turn_hue(planes: Planes, shift: Tensor) -> Planes:
    """Hue turned by ``shift`` (a share of the circle), without branches; saturation and value as they were."""
    red, green, blue = planes
    low = torch.minimum(torch.minimum(red, green), blue)
    span = torch.maximum(torch.maximum(red, green), blue) - low
    hue = torch.copysign(1.0 + (green + blue - red - low) / span.clamp(min=1e-12), green - blue) + 6.0 * shift

    def channel(offset: float) -> Tensor:
        turn = hue + offset
        turn = turn - 6.0 * torch.round(turn * (1.0 / 6.0))
        return low + span * (turn.abs() - 1.0).clamp(0.0, 1.0)

    return channel(3.0), channel(1.0), channel(-1.0)


def jitter(images: Tensor, params: Params) -> Tensor:
    """Images with their four factors applied, each in its own order; those not ``applied`` to as they were."""
    if images.device.type == "cpu" and not torch.compiler.is_compiling():
        return _by_order(images, params)
    return _by_slots(images, params)


def _by_slots(images: Tensor, params: Params) -> Tensor:
    """All orders in one static programme: no sorting, no waiting, two fused passes when compiled.

    Around contrast C and hue H, brightness and saturation can stand in four regions, ``[0] H [1] C [2] H [3]``, where
    hue is used on one side only. A region has two slots; a slot nobody stands in is the identity.
    """
    # When each step is made: the inverse of the order. A sort would give it too, by a kernel of its own.
    b, c, s, h = ((params["order"] == step).to(torch.int64).argmax(1) for step in range(4))  # B each
    column = {name: params[name][:, None, None] for name in FACTORS}
    hue_first = h < c

    def region(step: Tensor) -> Tensor:
        after_hue = ((step < c) == hue_first) & (step > h)
        return 2 * (step > c).to(torch.int64) + after_hue.to(torch.int64)

    region_b, region_s = region(b), region(s)
    one, zero = torch.ones_like(column["hue"]), torch.zeros_like(column["hue"])

    def slots(planes: Planes, which: int) -> Planes:
        has_b, has_s, b_first = region_b == which, region_s == which, b < s
        both = has_b & has_s
        for is_b, is_s in ((has_b & ~(both & ~b_first), has_s & ~(both & b_first)), (both & ~b_first, both & b_first)):
            is_b, is_s = is_b[:, None, None], is_s[:, None, None]
            gain = torch.where(is_b, column["brightness"], torch.where(is_s, column["saturation"], one))
            planes = _blend(planes, gain, torch.where(is_s, 1.0 - column["saturation"], zero))
        return planes

    red, green, blue = images.unbind(1)
    planes: Planes = (red, green, blue)
    planes = slots(planes, 0)
    planes = _turn_hue(planes, torch.where(hue_first[:, None, None], column["hue"], zero))
    planes = slots(planes, 1)
    planes = _contrast(planes, column["contrast"])
    planes = slots(planes, 2)
    planes = _turn_hue(planes, torch.where(hue_first[:, None, None], zero, column["hue"]))
    planes = slots(planes, 3)
    applied = params["applied"][:, None, None]
    return torch.stack([torch.where(applied, new, old) for new, old in zip(planes, images.unbind(1), strict=True)], 1)


def _by_order(images: Tensor, params: Params) -> Tensor:
    """One order after the other, each on its images alone and in place: the least work where nothing fuses.

    It looks at the orders, which would make a host wait for a GPU; on the CPU that costs nothing.
    """
    out = images.clone()
    place = torch.tensor([64, 16, 4, 1])
    code = torch.where(params["applied"], (params["order"] * place).sum(1), -1)
    for number in code.unique().tolist():
        if number < 0:
            continue
        rows = (code == number).nonzero()[:, 0]
        part = images[rows]
        factors = {name: params[name][rows][:, None, None, None] for name in FACTORS}
        for step in (number // 64, number // 16 % 4, number // 4 % 4, number % 4):
            _step(part, step, factors[FACTORS[step]])
        out[rows] = part
    return out


def _step(images: Tensor, step: int, factor: Tensor) -> None:
    """One step of the jitter, in place."""
    red, green, blue = images.unbind(1)
    if step == HUE:
        for plane, turned in zip((red, green, blue), _turn_hue((red, green, blue), factor[:, 0]), strict=True):
            plane.copy_(turned)
        return
    rest = None
    if step != BRIGHTNESS:
        grey = (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)[:, None]
        rest = (grey.mean((-2, -1), keepdim=True) if step == CONTRAST else grey) * (1.0 - factor)
    images.mul_(factor)
    if rest is not None:
        images.add_(rest)
    images.clamp_(0.0, 1.0)
