"""TIFF files with more bands or deeper colour than Pillow reads: satellite scenes, microscopes with many channels.

Classic and big TIFF, strips and tiles, 8 to 64 bits, integer or real, uncompressed, Deflate or LZW.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Codes of the tags read here (TIFF 6.0).
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, STRIPS, SAMPLES, ROWS_PER_STRIP = 256, 257, 258, 259, 262, 273, 277, 278
STRIP_SIZES, PLANAR, PREDICTOR, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_SIZES = 279, 284, 317, 322, 323, 324, 325
EXTRA, FORMAT = 338, 339
_TYPES = {1: "B", 2: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 11: "f", 12: "d", 13: "I", 16: "Q", 17: "q"}
MAX_PAGES = 64


@dataclass
class Page:
    """One image of a file: its tags, read, its pixels not yet."""

    tags: dict[int, tuple[Any, ...]]
    order: str  # "<" or ">"

    def one(self, tag: int, default: int = 0) -> int:
        return int(self.tags.get(tag, (default,))[0])

    @property
    def bands(self) -> int:
        return self.one(SAMPLES, 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        kind = {1: "u", 2: "i", 3: "f"}.get(self.one(FORMAT, 1))
        bits = set(self.tags.get(BITS, (1,)))
        if (
            kind is None
            or len(bits) != 1
            or (kind, *bits) not in {("f", 16), ("f", 32), ("f", 64)} | {(k, b) for k in "ui" for b in (8, 16, 32)}
        ):
            raise ValueError(f"TIFF samples of {sorted(bits)} bits")
        return np.dtype(f"{self.order}{kind}{bits.pop() // 8}")

    @property
    def alpha(self) -> bool:
        """Whether the last band is said to be the transparency of grey or colour before it."""
        extra = self.tags.get(EXTRA, ())
        return len(extra) == 1 and extra[0] in (1, 2) and {1: 2, 2: 4}.get(self.one(PHOTOMETRIC)) == self.bands

    @property
    def special(self) -> bool:
        """Whether Pillow would refuse these pixels, or drop some of them."""
        if self.bands == 1:
            return False
        deep = any(bits > 8 for bits in self.tags.get(BITS, (1,)))
        return deep or not (self.bands == 3 or self.alpha or (self.bands == 4 and self.one(PHOTOMETRIC) == 5))


def is_tiff(data: bytes) -> bool:
    """Whether a file begins as a TIFF does, whatever its name."""
    return data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def read_pages(data: bytes | mmap.mmap) -> list[Page]:
    """The pages of a file; ValueError when its structure is broken."""
    order = "<" if bytes(data[:2]) == b"II" else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    offset = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    count_code, entry_size, value_size = ("Q", 20, 8) if big else ("H", 12, 4)
    pages: list[Page] = []
    seen: set[int] = set()
    try:
        while offset and offset not in seen and len(pages) < MAX_PAGES:
            seen.add(offset)
            (entries,) = struct.unpack_from(order + count_code, data, offset)
            at = offset + struct.calcsize(order + count_code)
            if entries > 4096:
                raise ValueError("TIFF with too many tags")
            tags: dict[int, tuple[Any, ...]] = {}
            for entry in range(at, at + entries * entry_size, entry_size):
                tag, kind = struct.unpack_from(order + "HH", data, entry)
                (count,) = struct.unpack_from(order + ("Q" if big else "I"), data, entry + 4)
                if kind not in _TYPES or count == 0:
                    continue
                code = f"{order}{count}{_TYPES[kind]}"
                place = entry + entry_size - value_size
                if struct.calcsize(code) > value_size:
                    (place,) = struct.unpack_from(order + ("Q" if big else "I"), data, place)
                if place + struct.calcsize(code) > len(data):
                    raise ValueError("truncated TIFF")
                tags[tag] = struct.unpack_from(code, data, place)
            pages.append(Page(tags, order))
            (offset,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + entries * entry_size)
    except (struct.error, OverflowError, MemoryError):
        raise ValueError("truncated TIFF") from None
    return pages


def _lzw(data: bytes, limit: int) -> bytes:
    """TIFF's LZW: codes of 9 to 12 bits, most significant bit first, widths changing one code early."""
    out = bytearray()
    table: list[bytes] = []
    width, buffer, bits, last = 9, 0, 0, b""
    for byte in data:
        buffer, bits = (buffer << 8) | byte, bits + 8
        if bits < width:
            continue
        bits -= width
        code = buffer >> bits
        buffer &= (1 << bits) - 1
        if code == 257 or len(out) >= limit:
            break
        if code == 256:
            table, width, last = [bytes([i]) for i in range(256)] + [b"", b""], 9, b""
            continue
        if code < len(table):
            piece = table[code]
        elif last and code == len(table):
            piece = last + last[:1]
        else:
            raise ValueError("damaged LZW data")
        out += piece
        if last:
            table.append(last + piece[:1])
        last = piece
        width = 9 if len(table) < 511 else 10 if len(table) < 1023 else 11 if len(table) < 2047 else 12
    return bytes(out)


_DECODERS: dict[int, Callable[[bytes, int], bytes]] = {
    1: lambda data, limit: data[:limit],
    5: _lzw,
    8: lambda data, limit: zlib.decompressobj().decompress(data, limit),  # the limit disarms a bomb
    32946: lambda data, limit: zlib.decompressobj().decompress(data, limit),
}


def on_paper(pixels: np.ndarray, page: Page) -> np.ndarray:
    """Pixels whose last band is transparency, laid on white.  H x W x C -> H x W x (C - 1)"""
    white = 1.0 if pixels.dtype.kind == "f" else float(np.iinfo(pixels.dtype).max)
    colour, cover = pixels[:, :, :-1].astype(np.float32), pixels[:, :, -1:].astype(np.float32) / white
    if page.one(EXTRA) == 2:  # else the colour has been multiplied by it already
        colour = colour * cover
    laid = colour + white * (1.0 - cover)
    return (laid if pixels.dtype.kind == "f" else np.rint(laid)).clip(0.0, white).astype(pixels.dtype)


def read_pixels(data: bytes | mmap.mmap, page: Page) -> np.ndarray:
    """The pixels of a page, H x W x C, in the file's own depth."""
    height, width, bands, dtype = page.one(HEIGHT), page.one(WIDTH), page.bands, page.dtype
    decoder = _DECODERS.get(page.one(COMPRESSION, 1))
    if decoder is None:
        raise ValueError(
            f"TIFF compression {page.one(COMPRESSION)} with {bands} bands; save it uncompressed or Deflate"
        )
    if page.one(PREDICTOR, 1) not in (1, 2):
        raise ValueError(f"TIFF predictor {page.one(PREDICTOR)}")
    tiled = TILES in page.tags
    rows = page.one(TILE_HEIGHT) if tiled else min(page.one(ROWS_PER_STRIP, height), height)
    columns = page.one(TILE_WIDTH) if tiled else width
    if rows < 1 or columns < 1 or rows * columns > 4 * (height * width + 1024 * 1024):
        raise ValueError("TIFF with a damaged layout")
    planar = page.one(PLANAR, 1) == 2
    depth = 1 if planar else bands  # bands in one strip or tile
    offsets = page.tags.get(TILES if tiled else STRIPS, ())
    sizes = page.tags.get(TILE_SIZES if tiled else STRIP_SIZES, ())
    down, across = -(-height // rows), -(-width // columns)
    if not len(offsets) == len(sizes) == down * across * (bands if planar else 1):
        raise ValueError("TIFF with a damaged layout")
    pixels = np.empty((height, width, bands), dtype.newbyteorder("="))
    for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        plane, place = divmod(number, down * across)
        top, left = place // across * rows, place % across * columns
        tall = rows if tiled else min(rows, height - top)  # the last strip is short, an edge tile is padded
        limit = tall * columns * depth * dtype.itemsize
        raw = decoder(bytes(data[offset : offset + size]), limit)
        if len(raw) < limit:
            raise ValueError("truncated TIFF")
        block = np.frombuffer(raw, dtype, tall * columns * depth).reshape(tall, columns, depth).astype(pixels.dtype)
        if page.one(PREDICTOR, 1) == 2 and page.one(COMPRESSION, 1) != 1:  # libtiff ignores it without compression
            block = np.cumsum(block, axis=1, dtype=pixels.dtype)  # differences along a row, wrapping
        view = pixels[top : top + tall, left : left + columns, plane : plane + depth]
        view[:] = block[: view.shape[0], : view.shape[1]]
    return pixels  # H x W x C
