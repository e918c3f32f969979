"""What a backbone is shown of an image: its centre, at the trained size, normalised; pictures, and what is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from prelax.data.decode import Plan, Unreadable, decode, decode_picture
from prelax.errors import PrelaxError


@dataclass(frozen=True)
class Preprocess:
    """What turns uint8 images of any size into what the backbone was trained on, without randomness.

    Images of the trained size are only normalised. Of larger ones the central 7/8 is kept, as in the usual resize to
    8/7 and centre crop; smaller ones are enlarged whole. With ``centre`` the central 7/8 of any image is kept.

    >>> Preprocess(32, (0.5,), (0.5,))(torch.zeros(2, 1, 40, 48, dtype=torch.uint8)).shape
    torch.Size([2, 1, 32, 32])
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    centre: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        check_images(images, len(self.mean) if len(self.mean) > 1 else None)
        height, width = images.shape[2:]
        x = images.to(torch.float32)
        if (height, width) != (self.size, self.size) or self.centre:
            side = min(height, width)
            inner = round(side * 7 / 8)
            side = max(self.size, inner) if side > self.size else inner if self.centre else side
            top, left = (height - side) // 2, (width - side) // 2
            x = x[:, :, top : top + side, left : left + side]
            if side != self.size:
                x = F.interpolate(x, (self.size, self.size), mode=self.interpolation, antialias=True).clamp_(0, 255)
        mean, std = (torch.tensor(v, device=x.device)[:, None, None] * 255.0 for v in (self.mean, self.std))
        return (x - mean) / std  # B x C x size x size


def as_stored(images: Tensor, side: int) -> Tensor:
    """The central squares of images at the size that files are decoded to.

    >>> as_stored(torch.zeros(2, 3, 90, 120, dtype=torch.uint8), 48).shape
    torch.Size([2, 3, 48, 48])
    """
    height, width = images.shape[2:]
    if (height, width) == (side, side):
        return images
    least = min(height, width)
    top, left = (height - least) // 2, (width - least) // 2
    square = images[:, :, top : top + least, left : left + least].to(torch.float32)
    return F.interpolate(square, (side, side), mode="bilinear", antialias=True).round_().clamp_(0, 255).to(torch.uint8)


def read_picture(picture: Path | str | Image.Image, plan: Plan) -> Tensor:
    """A file, or a picture that Pillow has opened, as the images of a set are read: uint8, C x side x side."""
    try:
        if isinstance(picture, Image.Image):
            return torch.from_numpy(decode_picture(picture, plan).copy())
        if not Path(picture).exists():
            raise PrelaxError(f"no picture {picture}")
        return torch.from_numpy(decode(str(picture), plan).copy())
    except Unreadable as error:
        what = "a Pillow image" if isinstance(picture, Image.Image) else picture
        raise PrelaxError(f"{what} is not a picture that can be read ({error})") from None


def check_images(images: object, channels: int | None) -> None:
    """Refuses what is no uint8 tensor B x C x H x W, and says how to make one; None for any number of channels.

    >>> check_images(torch.zeros(3, 8, 8, dtype=torch.uint8), 3)
    Traceback (most recent call last):
    prelax.errors.PrelaxError: images must be a uint8 tensor, B x 3 x H x W, not a torch.uint8 tensor of 3 x 8 x 8: \
try images[None]
    """
    wanted = f"images must be a uint8 tensor, B x {channels or 'C'} x H x W, not"
    if isinstance(images, list | tuple):
        raise PrelaxError(f"{wanted} a {type(images).__name__}: make a tensor C x H x W of each, then torch.stack them")
    if not isinstance(images, Tensor):
        kind = type(images)
        if kind.__module__.startswith("PIL."):
            grey, colour = "convert('L')))[None, None]", "convert('RGB'))).permute(2, 0, 1)[None]"
            how = f"torch.from_numpy(numpy.array(image.{grey if channels == 1 else colour}"
            raise PrelaxError(f"{wanted} a PIL image: try {how}")
        if kind.__module__ != "numpy" or not hasattr(images, "shape"):
            raise PrelaxError(f"{wanted} a {kind.__name__}")
    array: Any = images
    what = f"{array.dtype} {'tensor' if isinstance(images, Tensor) else 'NumPy array'}"
    moved = rearranged(tuple(array.shape), channels)
    if moved is None:
        raise PrelaxError(f"{wanted} a {what} of {' x '.join(map(str, array.shape)) or 'no dimensions'}")
    how = ("images" if isinstance(images, Tensor) else "torch.from_numpy(images)") + moved
    if str(array.dtype).removeprefix("torch.") != "uint8":
        floats = "float" in str(array.dtype)
        how = f"({how} * 255).to(torch.uint8), for values from 0 to 1" if floats else f"{how}.to(torch.uint8)"
    if how != "images":
        raise PrelaxError(f"{wanted} a {what} of {' x '.join(map(str, array.shape))}: try {how}")
    if channels not in (None, array.shape[1]):
        hint = f"images.expand(-1, {channels}, -1, -1) makes grey ones so; " if array.shape[1] == 1 else ""
        raise PrelaxError(
            f"the images have {array.shape[1]} channel(s) and the backbone takes {channels}; "
            f"{hint}files are read so with data.channels={channels}"
        )


def rearranged(shape: tuple[int, ...], channels: int | None) -> str | None:
    """What brings images of a shape to B x C x H x W, as one writes it behind them; None if nothing does.

    >>> rearranged((4, 32, 32, 3), 3), rearranged((32, 32, 3), 3), rearranged((4, 3, 32, 32), 3)
    ('.permute(0, 3, 1, 2)', '.permute(2, 0, 1)[None]', '')
    """
    colours = {channels, 1, 3}
    if len(shape) == 4:
        return ".permute(0, 3, 1, 2)" if shape[1] not in colours and shape[3] in colours else ""
    if len(shape) == 3:
        if shape[0] not in colours and shape[2] in colours:
            return ".permute(2, 0, 1)[None]"
        return "[:, None]" if channels == 1 and shape[0] != 1 else "[None]"
    return "[None, None]" if len(shape) == 2 else None
