"""Pictures of more than 8 bits a channel, of which Pillow gives 8, and arrays whose axes have to be told apart."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from prelax.data import ImageSet
from prelax.data.decode import Plan, Unreadable, decode, look

Read = Callable[..., ImageSet]
RAMP = np.random.default_rng(0).integers(0, 4096, (32, 32, 3)).astype(np.uint16)  # a camera's 12 bits


def png(pixels: np.ndarray, orientation: int = 1) -> bytes:
    """A PNG of 16 bits a channel, written from the specification."""
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HH", orientation, 0) + bytes(4)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)),
        (b"eXIf", exif),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    ]
    framed = (struct.pack(">I", len(b)) + a + b + struct.pack(">I", zlib.crc32(a + b)) for a, b in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def ppm(pixels: np.ndarray) -> bytes:
    return f"P6\n{pixels.shape[1]} {pixels.shape[0]}\n65535\n".encode() + pixels.astype(">u2").tobytes()


def stretched(pixels: np.ndarray) -> np.ndarray:
    return np.rint(pixels.transpose(2, 0, 1) / 4095 * 255)


@pytest.mark.parametrize(("write", "ending"), [(png, "png"), (ppm, "ppm")])
def test_all_bits_of_a_deep_picture_in_colour_count(tmp_path: Path, read: Read, write: Callable, ending: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / f"one.{ending}").write_bytes(write(RAMP))
    found = read(tmp_path / "set")
    assert found.range == "0,4095;"
    assert np.abs(found.images[0].numpy() - stretched(RAMP)).max() <= 1
    given = read(tmp_path / "set", range="0,2047").images[0].numpy()
    assert np.abs(given - np.minimum(np.rint(RAMP.transpose(2, 0, 1) / 2047 * 255), 255)).max() <= 1


def test_transparency_of_a_deep_picture_is_laid_on_white() -> None:
    plan = Plan(32, 3, whole=(0, 65535))
    pixels = np.concatenate([RAMP * 16, np.zeros((32, 32, 1), np.uint16)], axis=2)
    pixels[:16, :, 3] = 65535
    for given in (pixels, pixels[:, :, [0, 3]]):  # in colour, and grey
        assert look(png(given)).channels == given.shape[2] - 1
        shown = decode(png(given), plan)
        assert (shown[:, 16:] == 255).all()
        wanted = np.rint(given[:16, :, :-1].transpose(2, 0, 1) / 257)
        assert np.abs(shown[:, :16].astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_deep_picture_is_turned_as_a_shallow_one_is(orientation: int) -> None:
    deep = decode(png(RAMP * 16, orientation), Plan(32, 3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    held = io.BytesIO()
    Image.fromarray((RAMP // 16).astype(np.uint8)).save(held, "png", exif=exif)
    assert np.abs(deep.astype(int) - decode(held.getvalue(), Plan(32, 3))).max() <= 1


def test_a_cut_deep_picture_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        decode(png(RAMP)[:300], Plan(32, 3))


@pytest.mark.skipif(not features.check("jpg_2000"), reason="this Pillow reads no JPEG 2000")
def test_deep_jpeg_2000_in_colour_is_refused_and_a_shallow_one_read() -> None:
    held = io.BytesIO()
    Image.fromarray((RAMP // 16).astype(np.uint8)).save(held, "jpeg2000", irreversible=False)
    shallow = held.getvalue()
    assert np.array_equal(decode(shallow, Plan(32, 3)), (RAMP // 16).transpose(2, 0, 1))
    at = shallow.index(b"ihdr") + 14  # of the box, 12 bits
    with pytest.raises(Unreadable, match="JPEG2000 picture of more than 8 bits a channel: save it as a PNG or TIFF"):
        decode(shallow[:at] + b"\x0b" + shallow[at + 1 :], Plan(32, 3))
    bare = shallow[shallow.index(b"\xff\x4f\xff\x51") :]
    assert look(bare) == look(shallow)
    assert look(bare[:42] + b"\x0b" + bare[43:]).kind == "i"


def test_white_may_be_zero_in_a_deep_tiff(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 65535, (16, 16), np.uint16, endpoint=True)
    Image.fromarray(65535 - pixels).save(tmp_path / "a.tif", tiffinfo={262: 0})
    shown = decode(str(tmp_path / "a.tif"), Plan(16, 1))[0].astype(int)
    assert np.abs(shown - np.rint(pixels / 257)).max() <= 1


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((16, 16, 32), 32),
        ((32, 16, 16), 32),
        ((3, 20, 30), 3),
        ((20, 30, 3), 3),
        ((5, 90, 80), 5),
        ((90, 80, 5), 5),
        ((16, 18, 6), 6),
    ],
)
def test_the_axis_of_the_channels_is_the_one_that_can_be(tmp_path: Path, shape: tuple, channels: int) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    assert look(str(tmp_path / "a.npy")).channels == channels


def test_an_array_that_could_be_either_is_refused_until_it_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    np.save(path, np.zeros((24, 60, 30), np.uint8))
    with pytest.raises(Unreadable, match=r"data\.channels=24 or 30 says which axis is that of the channels"):
        decode(path, Plan(16, 3))
    assert look(path, 24) is not None
    assert decode(path, Plan(16, 24)).shape == (24, 16, 16)
    assert decode(path, Plan(16, 30)).shape == (30, 16, 16)
