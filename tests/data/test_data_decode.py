"""One file to pixels: modes, depths, orientation, the central square."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as TF

from prelax.data.decode import Plan, Unreadable, decode, look, to_uint8

RED = (250, 10, 20)


def plain(path: Path, mode: str, colour: object, **options: object) -> str:
    Image.new(mode, (20, 20), colour).save(path, **options)  # type: ignore[arg-type]
    return str(path)


@pytest.mark.parametrize(
    ("mode", "name", "colour", "expected"),
    [
        ("L", "a.png", 77, (77, 77, 77)),
        ("1", "a.png", 1, (255, 255, 255)),
        ("LA", "a.png", (77, 255), (77, 77, 77)),
        ("RGB", "a.png", RED, RED),
        ("RGBA", "a.png", (*RED, 255), RED),
        ("RGBA", "a.png", (*RED, 0), (255, 255, 255)),
        ("CMYK", "a.tif", (0, 255, 255, 0), (255, 0, 0)),
        ("I;16", "a.png", 257 * 90, (90, 90, 90)),
        ("I;16", "a.tif", 257 * 90, (90, 90, 90)),
        ("F", "a.tif", 0.4, (102, 102, 102)),
    ],
)
def test_every_mode_becomes_the_colour_it_shows(tmp_path: Path, mode, name, colour, expected):
    pixels = decode(plain(tmp_path / name, mode, colour), Plan(8, 3))
    assert pixels.dtype == np.uint8
    assert pixels.shape == (3, 8, 8)
    assert np.array_equal(pixels, np.broadcast_to(np.array(expected)[:, None, None], (3, 8, 8)))


def test_a_palette_is_looked_up_and_its_transparency_laid_on_white(tmp_path: Path):
    image = Image.new("P", (20, 20), 1)
    image.putpalette([0, 0, 0, *RED])
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.png", transparency=1)
    assert decode(str(tmp_path / "a.png"), Plan(4, 3))[:, 0, 0].tolist() == list(RED)
    assert decode(str(tmp_path / "b.png"), Plan(4, 3))[:, 0, 0].tolist() == [255, 255, 255]
    assert look(str(tmp_path / "a.png")).channels == 3


def test_colour_becomes_grey_for_a_grey_set_as_pillow_does(tmp_path: Path, photo):
    path = photo(tmp_path / "a.png", (16, 16))
    expected = np.asarray(Image.open(path).convert("L"))
    assert np.array_equal(decode(str(path), Plan(16, 1))[0], expected)


@pytest.mark.parametrize("size", [(40, 40), (90, 40), (41, 97), (20, 33)])
def test_the_central_square_is_torchvisions_resize_and_centre_crop(tmp_path: Path, size):
    y, x = np.mgrid[: size[1], : size[0]]
    pixels = np.stack([x * 255 / size[0], y * 255 / size[1], (x + y) * 255 / sum(size)], axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = torch.from_numpy(decode(str(tmp_path / "a.png"), Plan(32, 3)))
    resized = TF.resize(torch.from_numpy(pixels).permute(2, 0, 1), [32], antialias=True)
    expected = TF.center_crop(resized, [32, 32])
    # torchvision rounds the long side and the crop to whole pixels, so a gradient may shift by half a step
    assert (found.int() - expected.int()).abs().max() <= 5


def test_an_image_of_the_wanted_size_is_untouched(tmp_path: Path, photo):
    path = photo(tmp_path / "a.png", (24, 24))
    assert np.array_equal(decode(str(path), Plan(24, 3)).transpose(1, 2, 0), np.asarray(Image.open(path)))


def test_exif_orientation_turns_the_image(tmp_path: Path):
    image = Image.new("RGB", (40, 40), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 40, 20))  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held turned: show it rotated clockwise
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    pixels = decode(str(tmp_path / "a.jpg"), Plan(8, 3))
    assert pixels[:, :, 6:].min() > 200 > 50 > pixels[:, :, :2].max()


def test_a_large_jpeg_decoded_small_is_close_to_the_full_decode(tmp_path: Path):
    y, x = np.mgrid[:1200, :1600]
    wave = (127 + 120 * np.sin(x / 60) * np.cos(y / 45)).astype(np.uint8)
    Image.fromarray(np.stack([wave, wave.T[:1200, :1200].repeat(2, 1)[:, :1600], 255 - wave], 2)).save(
        tmp_path / "a.jpg", quality=92
    )
    full = Image.open(tmp_path / "a.jpg").resize((64, 64), Image.Resampling.BILINEAR, box=(200, 0, 1400, 1200))
    reduced = decode(str(tmp_path / "a.jpg"), Plan(64, 3)).transpose(1, 2, 0).astype(int)
    assert np.abs(reduced - np.asarray(full)).mean() < 2


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
def test_numpy_files_of_many_channels_are_read_in_either_layout(tmp_path: Path, layout, dtype):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 18, 6), dtype=np.uint8)
    given = pixels if dtype == "uint8" else pixels.astype("uint16") * 257 if dtype == "uint16" else pixels / 255
    given = given.astype(dtype)
    np.save(tmp_path / "a.npy", given if layout == "HWC" else given.transpose(2, 0, 1))
    assert look(str(tmp_path / "a.npy")).channels == 6
    assert np.array_equal(decode(str(tmp_path / "a.npy"), Plan(16, 6)), pixels[:, 1:17].transpose(2, 0, 1))


def test_numpy_files_that_are_no_images_are_refused(tmp_path: Path):
    path = str(tmp_path / "a.npy")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(Unreadable):
        decode(path, Plan(8, 3))
    np.save(path, np.zeros((2, 3, 4, 5)))
    with pytest.raises(Unreadable, match="4-dimensional"):
        decode(path, Plan(8, 3))
    np.save(path, np.full((9, 9), np.nan, dtype=np.float32))
    with pytest.raises(Unreadable, match="no finite pixel"):
        decode(path, Plan(8, 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 65535), min_size=2, max_size=20))
def test_sixteen_bits_keep_their_order_and_their_ends(values):
    array = np.array([0, *sorted(values), 65535], dtype=np.uint16)
    scaled = to_uint8(array, Plan(8, 1)).astype(int)
    assert (np.diff(scaled) >= 0).all()
    assert (scaled[0], scaled[-1]) == (0, 255)
    assert np.abs(scaled - array / 257).max() <= 0.501


def test_processes_that_decode_do_not_import_torch():
    asked = "import sys, prelax.data.decode, prelax.data.pool; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked]).returncode == 0
