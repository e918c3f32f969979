"""Pictures in colour, or with transparency, of more than 8 bits a channel, of which Pillow would keep 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

ORIENTATION = 0x0112  # in EXIF


def tile(image: Any) -> Any:
    """How Pillow is to unpack the pixels of a picture that it has opened."""
    return image.tile[0][3] if getattr(image, "tile", None) else ""


def is_deep(image: Any) -> bool:
    """Whether it is a picture in colour, or with transparency, of which Pillow would drop all but 8 bits a channel."""
    if image.mode not in ("RGB", "RGBA", "LA"):
        return False
    if image.format == "JPEG2000":
        return bits_of_jpeg2000(image) > 8
    said = tile(image)
    return said[-1] > 255 if image.format == "PPM" and isinstance(said, tuple) else str(said).endswith(";16B")


def bits_of_jpeg2000(image: Any) -> int:
    """Bits a channel, by its header: of the picture's box, or of a bare stream."""
    image.fp.seek(0)
    head = image.fp.read(256)
    at = head.find(b"ihdr") + 14 if b"ihdr" in head else 42
    return (head[at] & 0x7F) + 1 if len(head) > at else 8


def deep_pixels(source: str | bytes, image: Any) -> np.ndarray:
    """The pixels of such a picture, H x W x C, in 16 bits."""
    if image.format == "PPM":
        count, offset = 3 * image.width * image.height, image.tile[0][2]
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        return np.frombuffer(data, ">u2", count, offset).reshape(image.height, image.width, 3).astype(np.uint16)
    if image.format != "PNG":
        raise ValueError(f"a {image.format} picture of more than 8 bits a channel: save it as a PNG or TIFF")
    import torch
    from torchvision.io import ImageReadMode, decode_png

    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    found = decode_png(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.UNCHANGED)
    pixels = upright(found.permute(1, 2, 0).numpy(), image.getexif().get(ORIENTATION, 1))  # H x W x C
    if pixels.shape[2] in (1, 3):
        return pixels
    colour, cover = pixels[:, :, :-1].astype(np.float32), pixels[:, :, -1:].astype(np.float32) / 65535
    return np.rint(colour * cover + 65535 * (1 - cover)).astype(np.uint16)  # on white paper


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels H x W x C as EXIF says they are to be looked at."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    down, right = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}.get(orientation, (1, 1))
    return pixels[::down, ::right]
