"""TIFF files Pillow does not read."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prelax.data.decode import Plan, Unreadable, decode, look
from prelax.data.tiff import read_pages, read_pixels


def tiff_bytes(
    pixels: np.ndarray, order: str = "<", deflate: bool = False, planar: bool = False, alpha: int | None = None
) -> bytes:
    """A one-strip TIFF of H x W x C pixels (one strip a band when planar), written from the specification."""
    height, width, bands = pixels.shape
    parts = [pixels[:, :, c] for c in range(bands)] if planar else [pixels]
    strips = [np.ascontiguousarray(part).astype(pixels.dtype.newbyteorder(order)).tobytes() for part in parts]
    strips = [zlib.compress(strip) for strip in strips] if deflate else strips
    body, offsets = b"", []
    for strip in strips:
        offsets.append(8 + len(body))
        body += strip
    fields: list[tuple[int, str, list[int]]] = [
        (256, "I", [width]),
        (257, "I", [height]),
        (258, "H", [pixels.dtype.itemsize * 8] * bands),
        (259, "H", [8 if deflate else 1]),
        (262, "H", [2 if alpha and bands == 4 else 1]),
        (273, "I", offsets),
        (277, "H", [bands]),
        (278, "I", [height]),
        (279, "I", [len(strip) for strip in strips]),
        (284, "H", [2 if planar else 1]),
        (338, "H", [alpha] if alpha else [0] * (bands - 1)),
        (339, "H", [{"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]] * bands),
    ]
    entries = b""
    for tag, code, values in fields:
        data = struct.pack(f"{order}{len(values)}{code}", *values)
        if len(data) > 4:
            body, data = body + data, struct.pack(order + "I", 8 + len(body))
        entries += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[code], len(values)) + data.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8 + len(body))
    return head + body + struct.pack(order + "H", len(fields)) + entries + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 5), ("uint16", 3), ("int16", 2), ("float32", 13)])
def test_bands_of_every_depth_are_read_as_written(tmp_path: Path, dtype, bands, planar, order):
    pixels = np.random.default_rng(0).integers(0, 200, (12, 17, bands)).astype(dtype)
    for deflate in (False, True):
        data = tiff_bytes(pixels, order, deflate, planar)
        assert np.array_equal(read_pixels(data, read_pages(data)[0]), pixels)
    path = tmp_path / "a.tif"
    path.write_bytes(data)
    assert look(str(path)).channels == bands


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("tags", [{}, {317: 2}, {278: 5}])
def test_strips_written_by_libtiff_are_read_as_pillow_reads_them(tmp_path: Path, compression, tags):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (120, 90, 3), dtype=np.uint8) // rng.integers(1, 120, (120, 1, 1), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.tif", compression=compression, tiffinfo=tags)
    data = (tmp_path / "a.tif").read_bytes()
    assert np.array_equal(read_pixels(data, read_pages(data)[0]), np.asarray(Image.open(tmp_path / "a.tif")))


def test_five_bands_are_decoded_to_five_channels(tmp_path: Path):
    pixels = np.random.default_rng(2).integers(0, 256, (16, 16, 5), dtype=np.uint8)
    (tmp_path / "a.tif").write_bytes(tiff_bytes(pixels))
    assert np.array_equal(decode(str(tmp_path / "a.tif"), Plan(16, 5)), pixels.transpose(2, 0, 1))
    with pytest.raises(Unreadable, match="5 channels where the set has 3"):
        decode(str(tmp_path / "a.tif"), Plan(16, 3))


def test_pages_are_channels_only_when_the_set_was_said_to_have_as_many(tmp_path: Path):
    pages = [Image.new("L", (16, 16), 40 * i) for i in range(5)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert decode(str(tmp_path / "a.tif"), Plan(8, 5))[:, 0, 0].tolist() == [0, 40, 80, 120, 160]
    assert look(str(tmp_path / "a.tif")).channels == 1


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=5), st.integers(0, 10**6))
def test_a_damaged_file_is_a_value_error_and_nothing_worse(changes, cut):
    pixels = np.arange(9 * 7 * 4, dtype=np.uint16).reshape(9, 7, 4)
    data = bytearray(tiff_bytes(pixels, deflate=True))
    for at, value in changes:
        data[-(at % 400) - 1] = value  # among the tags, where it hurts
    data = data[: max(8, len(data) - cut % 300)]
    try:
        for page in read_pages(data):
            if page.one(256) * page.one(257) * page.bands < 10**6:
                read_pixels(data, page)
    except (ValueError, zlib.error, struct.error):
        pass


@pytest.mark.parametrize(("bands", "kind"), [(2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_declared_transparency_is_laid_on_white_at_any_depth(dtype, bands: int, kind: int):
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (16, 16, bands), dtype, endpoint=True)
    pixels[:, :8, -1], pixels[:, 8:, -1] = np.iinfo(dtype).max, 0
    if kind == 1:  # multiplied already
        pixels[:, 8:, :-1] = 0
    data = tiff_bytes(pixels, alpha=kind)
    seen, asked = look(data), look(data, bands)
    assert (seen.channels, asked.channels) == (bands - 1, bands if dtype is np.uint16 else bands - 1)
    decoded = decode(data, Plan(16, bands - 1)).transpose(1, 2, 0)
    told = pixels[:, :8, :-1].astype(float) * (255 / np.iinfo(dtype).max)
    assert np.abs(decoded[:, :8] - told).max() <= 0.5 + 1e-3
    assert (decoded[:, 8:] == 255).all()


def test_a_look_at_a_large_file_reads_its_header_alone(tmp_path: Path):
    file = tmp_path / "slide.tif"
    file.write_bytes(tiff_bytes(np.zeros((4, 20_000, 5), np.uint8)))
    os.truncate(file, 200_000_000)
    tracemalloc.start()
    try:
        assert look(str(file)) is not None
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
