"""One image file to square uint8 pixels, and a look at a file without decoding it.

Runs in worker processes, so it needs NumPy and Pillow alone (and torchvision for 16-bit pictures in colour).
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from prelax.data import tiff
from prelax.data.deep import deep_pixels, is_deep, tile

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".jp2", ".tga"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".npy"}
)
MAX_PIXELS = 100_000_000  # a larger image is skipped: 10,000 x 10,000 in colour is 300 MB in each decoding process
MAX_CHANNELS = 64
HEIC = {b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1"}  # how phones' pictures begin, after a length

Source = str | bytes  # a path, or the contents of a file


class Unreadable(Exception):
    """Why a file gives no image."""


@dataclass(frozen=True)
class Plan:
    """How every image of a set is brought to the same shape.

    Args:
        side: of the square, in pixels.
        channels: 1, 3, or the number of bands of a multi-band set.
        whole: (low, high) of integer pixels wider than 8 bits, mapped to 0 and 255.
        real: the same for floating-point pixels.
    """

    side: int
    channels: int
    whole: tuple[float, float] = (0.0, 65535.0)
    real: tuple[float, float] = (0.0, 1.0)


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[Image.Image]:
    """A Pillow image, its header read; the size is checked before any pixel is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bombs are refused below; EXIF and palette complaints help nobody here
        try:
            found = Image.open(source if isinstance(source, str) else io.BytesIO(source))
        except Image.UnidentifiedImageError:
            if _head(source)[4:12] in HEIC:
                raise Unreadable("a HEIC picture, whatever its name says: convert it to jpg first") from None
            raise
        with found as image:
            check_size(*image.size)
            yield image


def _head(source: Source) -> bytes:
    """The first bytes of a file, by which its kind is told."""
    if isinstance(source, bytes):
        return source[:12]
    with open(source, "rb") as file:
        return file.read(12)


def check_size(width: int, height: int, channels: int = 3) -> None:
    """Refuses an image whose pixels would fill the memory."""
    if channels > MAX_CHANNELS:
        raise Unreadable(f"{channels} channels, more than {MAX_CHANNELS}")
    if width * height * max(channels, 3) > 3 * MAX_PIXELS:
        raise Unreadable(f"too large: {width} x {height} pixels, more than {3 * MAX_PIXELS // max(channels, 3):,}")
    if width * height == 0:
        raise Unreadable("no pixels")


def _check_file(source: Source) -> None:
    """Refuses what must not be opened: a pipe would block for ever."""
    if isinstance(source, bytes):
        if not source:
            raise Unreadable("empty file")
        return
    status = os.stat(source)
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("not a regular file")
    if status.st_size == 0:
        raise Unreadable("empty file")


def _bands(image: Image.Image) -> int:
    """Channels an image stands for: a palette, CMYK or transparency is a way of writing colour."""
    if image.mode in ("P", "PA"):
        palette = image.getpalette() or []
        return 1 if all(palette[i] == palette[i + 1] == palette[i + 2] for i in range(0, len(palette) - 2, 3)) else 3
    if image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I") or tile(image) == "LA;16B":
        return 1
    return 3


def _to_array(image: Image.Image) -> np.ndarray:
    """Pixels H x W x C in the file's own depth, of a Pillow image of any mode."""
    mode = image.mode
    if mode in ("1", "L", "RGB", "F"):
        array = np.asarray(image.convert("L") if mode == "1" else image)
    elif mode.startswith("I"):  # I;16, I;16B and I: 16 bits in 16 or in 32
        array = np.asarray(image)
    elif mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        # What lies beneath a transparent pixel is arbitrary, so it is laid on white paper rather than uncovered.
        over = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (255, 255, 255, 255))
        array = np.asarray(Image.alpha_composite(paper, over).convert("L" if _bands(image) == 1 else "RGB"))
    elif mode == "P":
        array = np.asarray(image.convert("L" if _bands(image) == 1 else "RGB"))
    else:  # CMYK, YCbCr, LAB, HSV
        array = np.asarray(image.convert("RGB"))
    return array if array.ndim == 3 else array[:, :, None]  # H x W x C


def _is_npy(source: Source) -> bool:
    return source.lower().endswith(".npy") if isinstance(source, str) else source.startswith(b"\x93NUMPY")


def _first_is_channels(shape: tuple[int, ...]) -> bool:
    """Whether of three axes the first is that of the channels and not the last: the one that can be.

    >>> _first_is_channels((3, 40, 30)), _first_is_channels((16, 16, 32)), _first_is_channels((5, 90, 90))
    (True, False, True)
    """
    first, middle, last = shape
    for most in (4, MAX_CHANNELS):  # colours, then bands
        if (first <= most) != (last <= most):
            return first <= most
    if first == last or first > MAX_CHANNELS or first <= 4:
        return first < last
    if middle in (first, last):  # of a square
        return middle == last
    if min(first, last) <= min(middle, max(first, last)) / 2:
        return first < last
    raise Unreadable(f"array of shape {shape}; data.channels={first} or {last} says which axis is that of the channels")


def _npy(source: Source, channels: int | None) -> np.ndarray:
    """A NumPy file, H x W, H x W x C or C x H x W, as H x W x C (memory-mapped: only its header is read)."""
    if isinstance(source, str):
        array = np.load(source, mmap_mode="r", allow_pickle=False)
    else:
        array = np.load(io.BytesIO(source), allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif":
        raise Unreadable(f"not an array of numbers: {getattr(array, 'dtype', type(array).__name__)}")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise Unreadable(f"{array.ndim}-dimensional array; an image is H x W, H x W x C or C x H x W")
    first, last = array.shape[0], array.shape[2]
    if last != channels and (first == channels or _first_is_channels(array.shape)):
        array = np.moveaxis(array, 0, 2)
    if array.shape[2] > MAX_CHANNELS:
        raise Unreadable(f"array of shape {array.shape}; neither the first nor the last axis looks like channels")
    check_size(array.shape[1], array.shape[0], array.shape[2])
    return array  # H x W x C


def _tiff(source: Source, channels: int | None) -> tuple[bytes | mmap.mmap, list[tiff.Page]] | None:
    """The bytes and pages of a TIFF that Pillow cannot read; None for every other file.

    A file is mapped, not read: a slide of gigabytes is refused by its header.

    One page holds an image, unless the set was said to have as many channels as the file has pages.
    """
    if isinstance(source, str):
        with open(source, "rb") as handle:
            if not tiff.is_tiff(handle.read(4)):
                return None
            data: bytes | mmap.mmap = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    elif tiff.is_tiff(source):
        data = source
    else:
        return None
    pages = tiff.read_pages(data)
    if not pages:
        raise Unreadable("TIFF without an image")
    check_size(pages[0].one(tiff.WIDTH), pages[0].one(tiff.HEIGHT), pages[0].bands)
    stacked = channels is not None and channels > 1 and len(pages) == channels and pages[0].bands == 1
    if not (stacked or pages[0].special):
        return None
    return data, pages if stacked else pages[:1]


def _bands_of(pages: list[tiff.Page], channels: int | None) -> int:
    """Channels that pages stand for: transparency is none, unless the set was said to have as many bands."""
    bands = sum(page.bands for page in pages)
    return bands - 1 if len(pages) == 1 and pages[0].alpha and bands != channels else bands


def _pixels(source: Source, channels: int | None, side: int | None = None) -> np.ndarray:
    """The pixels of any file, H x W x C in its own depth; a JPEG possibly reduced to no less than twice ``side``."""
    if _is_npy(source):
        return np.asarray(_npy(source, channels))
    found = _tiff(source, channels)
    if found:
        data, pages = found
        pixels = np.concatenate([tiff.read_pixels(data, page) for page in pages], axis=2)
        return pixels if _bands_of(pages, channels) == pixels.shape[2] else tiff.on_paper(pixels, pages[0])
    with _opened(source) as image:
        if is_deep(image):
            return deep_pixels(source, image)
        negative = image.mode.startswith("I;16") and getattr(image, "tag_v2", {}).get(tiff.PHOTOMETRIC) == 0
        if side:  # a JPEG can be decoded at 1/2, 1/4 or 1/8; twice the side is kept for the antialiasing
            image.draft(None, (2 * side, 2 * side))
        array = _to_array(ImageOps.exif_transpose(image))
        return 65535 - array if negative else array  # white is zero in it: Pillow sees to that with 8 bits alone


def to_uint8(array: np.ndarray, plan: Plan) -> np.ndarray:
    """Pixels of any depth as uint8; 8-bit ones stay as they are.

    >>> to_uint8(np.array([0, 257, 65535], dtype=np.uint16), Plan(8, 1)).tolist()
    [0, 1, 255]
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    low, high = plan.real if array.dtype.kind == "f" else plan.whole
    found = np.clip(np.nan_to_num(array.astype(np.float32), nan=low, posinf=high, neginf=low), low, high)
    return np.rint((found - low) * (255.0 / max(high - low, 1e-12))).astype(np.uint8)


def _match(array: np.ndarray, channels: int) -> np.ndarray:
    """H x W x C with the set's channel count: grey to colour and back; other counts have no honest conversion."""
    have = array.shape[2]
    if have == channels:
        return array
    if have == 1 and channels == 3:
        return np.repeat(array, 3, axis=2)
    if have == 3 and channels == 1:
        return np.asarray(Image.fromarray(array).convert("L"))[:, :, None]
    raise Unreadable(f"{have} channels where the set has {channels}")


def _square(array: np.ndarray, side: int) -> np.ndarray:
    """The central square of H x W x C at side x side, antialiased bilinear, as C x side x side."""
    height, width, _ = array.shape
    short = min(height, width)
    left, top = (width - short) / 2, (height - short) / 2
    if (height, width) == (side, side):
        return np.ascontiguousarray(array.transpose(2, 0, 1))
    box = (left, top, left + short, top + short)
    if array.shape[2] == 3:
        sized = Image.fromarray(array).resize((side, side), Image.Resampling.BILINEAR, box=box)
        return np.ascontiguousarray(np.asarray(sized).transpose(2, 0, 1))
    planes = [np.ascontiguousarray(array[:, :, c]) for c in range(array.shape[2])]
    sized_planes = [Image.fromarray(p).resize((side, side), Image.Resampling.BILINEAR, box=box) for p in planes]
    return np.stack([np.asarray(plane) for plane in sized_planes])


def decode(source: Source, plan: Plan) -> np.ndarray:
    """The pixels of one file (its path or its contents), uint8, C x side x side.

    Its central square, resized; EXIF orientation applied.
    Raises `Unreadable` with the reason when the file gives no image.
    """
    try:
        _check_file(source)
        array = _pixels(source, plan.channels, plan.side)
        if array.dtype.kind == "f" and not np.isfinite(array).any():
            raise Unreadable("no finite pixel")
        return _square(_match(to_uint8(array, plan), plan.channels), plan.side)
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable("not enough memory to decode it") from None
    except Exception as error:  # decoders fail in every way there is; one file must never stop the run
        raise Unreadable(reason(error)) from None


def decode_picture(image: Image.Image, plan: Plan) -> np.ndarray:
    """A picture that Pillow has opened, as ``decode`` reads its file (a large JPEG's resizing is rounded otherwise)."""
    check_size(*image.size)
    array = _to_array(ImageOps.exif_transpose(image))
    return _square(_match(to_uint8(array, plan), plan.channels), plan.side)


def decode_many(paths: Sequence[Source], plan: Plan) -> tuple[np.ndarray, list[str | None]]:
    """The pixels of the files that can be read, and for each file None or why it cannot."""
    block = np.empty((len(paths), plan.channels, plan.side, plan.side), dtype=np.uint8)
    kept = 0
    reasons: list[str | None] = []
    for path in paths:
        try:
            block[kept] = decode(path, plan)
            kept += 1
            reasons.append(None)
        except Unreadable as error:
            reasons.append(str(error))
    return block[:kept], reasons


@dataclass(frozen=True)
class Look:
    """What a file's header says: sides, channels, and whether its pixels need a range ("" for 8-bit, "i", "f")."""

    height: int
    width: int
    channels: int
    kind: str = ""


def look(source: Source, channels: int | None = None) -> Look | None:
    """A look at one file's header; None when it is not an image."""
    try:
        _check_file(source)
        if _is_npy(source):
            array = _npy(source, channels)
            return Look(array.shape[0], array.shape[1], array.shape[2], _kind(array.dtype))
        found = _tiff(source, channels)
        if found:
            page = found[1][0]
            return Look(page.one(tiff.HEIGHT), page.one(tiff.WIDTH), _bands_of(found[1], channels), _kind(page.dtype))
        with _opened(source) as image:
            kind = "f" if image.mode == "F" else "i" if image.mode.startswith("I") or is_deep(image) else ""
            return Look(image.height, image.width, _bands(image), kind)
    except Exception:
        return None


def _kind(dtype: np.dtype[Any]) -> str:
    return "" if dtype in (np.uint8, np.bool_) else "f" if dtype.kind == "f" else "i"


def extent(source: Source, channels: int | None = None) -> tuple[float, float] | None:
    """The smallest and largest pixel of a file."""
    try:
        array = _pixels(source, channels)
        array = array[np.isfinite(array)]
        return (float(array.min()), float(array.max())) if array.size else None
    except Exception:
        return None


def reason(error: BaseException) -> str:
    """One short line for a log: what a decoder or the system said, without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: more than {MAX_PIXELS:,} pixels"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:117] + "..."
