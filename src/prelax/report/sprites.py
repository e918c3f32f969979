"""Images as data URIs: one alone, or many packed in one picture so that thousands stay small."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, features
from torch import Tensor

from prelax.report.content import Sprite

SMALL = 400_000  # pixels up to which a picture is kept without loss


def rgb(images: Tensor) -> NDArray:
    """uint8 N x C x H x W of any number of channels as N x H x W x 3, for looking at.

    One channel is shown grey, two have an empty third, of more than three the first three are shown.
    """
    images = images.cpu()
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    elif images.shape[1] == 2:
        images = F.pad(images, (0, 0, 0, 0, 0, 1))
    return images[:, :3].permute(0, 2, 3, 1).contiguous().numpy()  # N x H x W x 3


def shrink(images: Tensor, side: int) -> Tensor:
    """uint8 images no larger than ``side``, square."""
    side = min(side, max(images.shape[-2:]))
    if tuple(images.shape[-2:]) == (side, side):
        return images
    parts = [
        F.interpolate(part.float(), (side, side), mode="bilinear", antialias=True).round().clamp(0, 255).byte().cpu()
        for part in images.split(512)
    ]
    return torch.cat(parts)


def uri(array: NDArray) -> str:
    """H x W x 3 uint8 as a data URI: WebP where Pillow has it (without loss when small), else PNG."""
    picture, buffer = Image.fromarray(array), io.BytesIO()
    if features.check("webp") and max(array.shape[:2]) < 16383:  # the format's own limit
        lossless = array.shape[0] * array.shape[1] <= SMALL
        picture.save(buffer, "WEBP", lossless=lossless, quality=80, method=4)
        kind = "webp"
    else:
        picture.save(buffer, "PNG", optimize=True)
        kind = "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def sprite(images: Tensor, side: int = 40) -> Sprite:
    """Thumbnails of uint8 images, row by row in one picture."""
    small = rgb(shrink(images, side))  # N x S x S x 3
    count, side = small.shape[0], small.shape[1]
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    sheet = np.zeros((rows * columns, side, side, 3), np.uint8)
    sheet[:count] = small
    packed = sheet.reshape(rows, columns, side, side, 3).swapaxes(1, 2).reshape(rows * side, columns * side, 3)
    return Sprite(uri(packed), side, columns, count)
