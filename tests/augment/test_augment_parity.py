"""With the same parameters, the pixels torchvision gives, image by image."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from prelax.augment import (
    Blur,
    Crop,
    Erase,
    Flip,
    FreeRotation,
    Grey,
    Invert,
    Jitter,
    Normalise,
    Pipeline,
    QuarterTurn,
    Solarise,
)
from prelax.augment.jittering import _by_slots
from prelax.draws import Draws

MODES = {
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
    "nearest": InterpolationMode.NEAREST,
}


def noise_images(batch: int, channels: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, channels, height, width), generator=generator, dtype=torch.uint8)


def smooth_images(batch: int, height: int, width: int) -> torch.Tensor:
    """Images with ties, flat areas and saturated pixels, where hue is delicate."""
    small = noise_images(batch, 3, 4, 4, seed=1).float() / 255
    large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic").clamp(0, 1)
    large[0], large[1, 0], large[2, 1:] = 0.5, 1.0, 0.0
    return large


def cropped(images: torch.Tensor, box: dict[str, torch.Tensor], size: tuple[int, int], mode: str) -> torch.Tensor:
    rows = []
    for i, image in enumerate(images.float() / 255):
        top, left, height, width = (int(box[key][i]) for key in ("top", "left", "height", "width"))
        rows.append(F.resized_crop(image, top, left, height, width, list(size), MODES[mode], antialias=True))
    return torch.stack(rows)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_box_of_any_image_is_cropped_as_torchvision_does(mode: str, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    channels = data.draw(st.sampled_from([1, 3, 7]))
    # Outputs one pixel wide are left out: there torch repeats the first row (its kernel misreads the stride).
    size = data.draw(st.tuples(st.integers(1, 40), st.integers(2, 40)))
    rows = []
    for _ in range(3):
        h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
        rows.append((data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w))
    box = dict(zip(("top", "left", "height", "width"), torch.tensor(rows).unbind(1), strict=True))
    images = noise_images(3, channels, height, width)
    expected = cropped(images, box, size, mode)
    crop = Crop(size, interpolation=mode)  # type: ignore[arg-type]
    torch.testing.assert_close(crop.transform(images.float() / 255, box), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(crop.transform(images, box), expected.clamp(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_boxes_of_one_to_three_pixels_and_the_full_image_are_exact(mode: str) -> None:
    rows = [(i, j, h, w) for h in (1, 2, 3) for w in (1, 2, 3) for i, j in ((0, 0), (24 - h, 31 - w), (7, 9))]
    rows.append((0, 0, 24, 31))
    box = dict(zip(("top", "left", "height", "width"), torch.tensor(rows).unbind(1), strict=True))
    images = noise_images(len(rows), 3, 24, 31)
    ours = Crop((32, 20), interpolation=mode).transform(images.float() / 255, box)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, cropped(images, box, (32, 20), mode), atol=1e-5, rtol=0)


def test_flips_folded_into_a_crop_are_bit_for_bit_the_flips_made_after_it() -> None:
    images = noise_images(16, 3, 40, 30)
    draws_box = {"top": 3, "left": 2, "height": 33, "width": 25}
    box = {name: torch.full((16,), value) for name, value in draws_box.items()}
    y, x = torch.arange(16) % 2 == 0, torch.arange(16) % 4 < 2
    folded = Crop(32).transform(images, box, flip_y=y, flip_x=x)
    after = Flip(vertical=True).transform(Crop(32).transform(images, box), {"applied": y})
    assert torch.equal(folded, Flip().transform(after, {"applied": x}))


def test_all_24_orders_of_jitter_agree_with_torchvision() -> None:
    orders = torch.tensor(list(permutations(range(4))))
    for images in (noise_images(24, 3, 20, 17).float() / 255, smooth_images(24, 20, 17)):
        generator = torch.Generator().manual_seed(3)
        factors = 0.3 + 1.4 * torch.rand(24, 3, generator=generator)
        hue = torch.rand(24, generator=generator) - 0.5
        params = {"applied": torch.ones(24, dtype=torch.bool), "order": orders, "hue": hue}
        params |= dict(zip(("brightness", "contrast", "saturation"), factors.unbind(1), strict=True))
        steps = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        expected = []
        for i, image in enumerate(images):
            for step in orders[i].tolist():
                image = steps[step](image, float(hue[i] if step == 3 else factors[i, step]))
            expected.append(image)
        traced = torch.compile(
            Jitter().transform, fullgraph=True, backend="eager"
        )  # the programme for GPUs and compilers
        for ours in (Jitter().transform(images, params), traced(images, params)):
            torch.testing.assert_close(ours, torch.stack(expected), atol=1e-4, rtol=0)


def test_jitter_that_is_not_applied_leaves_every_bit() -> None:
    images = noise_images(4, 3, 9, 9).float() / 255
    params = {name: torch.full((4,), 0.7) for name in ("brightness", "contrast", "saturation", "hue")}
    params |= {"applied": torch.zeros(4, dtype=torch.bool), "order": torch.arange(4).expand(4, 4)}
    assert torch.equal(Jitter().transform(images, params), images)
    assert torch.equal(_by_slots(images, params), images)


def test_grey_solarise_invert_and_normalise_are_torchvisions() -> None:
    images = noise_images(4, 3, 11, 8).float() / 255
    applied = torch.tensor([True, False, True, False])
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    for op, reference in (
        (Grey(), lambda x: F.rgb_to_grayscale(x, 3)),
        (Solarise(0.5), lambda x: F.solarize(x, 0.5)),
        (Invert(), F.invert),
    ):
        expected = torch.where(applied[:, None, None, None], reference(images), images)
        torch.testing.assert_close(op.transform(images, {"applied": applied}), expected, atol=1e-6, rtol=0)
    expected = F.normalize(images, list(mean), list(std))
    torch.testing.assert_close(Normalise(mean, std).transform(images, {}), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kernel", "height", "width"), [(3, 5, 9), (7, 16, 16), (13, 40, 30), (23, 24, 12)])
def test_blur_is_torchvisions_and_sigma_zero_is_the_identity(kernel: int, height: int, width: int) -> None:
    images = noise_images(6, 3, height, width).float() / 255
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.7, 2.0, 0.0])
    ours = Blur(kernel).transform(images, {"applied": sigma > 0, "sigma": sigma})
    for i in range(5):
        expected = F.gaussian_blur(images[i], [kernel, kernel], [float(sigma[i])] * 2)
        torch.testing.assert_close(ours[i], expected, atol=1e-5, rtol=0)
    assert torch.equal(ours[5], images[5])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_quarter_turns_are_bit_exact_and_clockwise(dtype: torch.dtype) -> None:
    images = noise_images(4, 2, 6, 6).to(dtype)
    ours = QuarterTurn().transform(images, {"turns": torch.arange(4)})
    for turns in range(4):
        assert torch.equal(ours[turns], torch.rot90(images[turns], -turns, (-2, -1)))
        assert torch.equal(ours[turns], F.rotate(images[turns].float(), -90.0 * turns).to(dtype))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (21, 34)])
def test_free_rotation_is_torchvisions(mode: str, height: int, width: int) -> None:
    images = noise_images(5, 3, height, width).float() / 255
    degrees = torch.tensor([-33.0, -7.5, 0.0, 12.25, 171.0])
    ours = FreeRotation(180, mode).transform(images, {"degrees": degrees})  # type: ignore[arg-type]
    for i in range(5):
        expected = F.rotate(images[i], float(degrees[i]), MODES[mode])
        torch.testing.assert_close(ours[i], expected, atol=2e-5, rtol=0)


def test_erasing_is_torchvisions() -> None:
    images = noise_images(3, 3, 12, 10).float() / 255
    box = {"top": torch.tensor([0, 4, 6]), "left": torch.tensor([1, 3, 5])}
    box |= {"height": torch.tensor([3, 8, 0]), "width": torch.tensor([9, 1, 0])}
    ours = Erase(value=0.25).transform(images, box)
    for i in range(3):
        where = [int(box[key][i]) for key in ("top", "left", "height", "width")]
        value = torch.full((3, where[2], where[3]), 0.25)
        assert torch.equal(ours[i], F.erase(images[i], *where, value))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, (32, 32)), (40, 25, (32, 16)), (5, 70, (9, 31))])
def test_the_taps_used_when_compiled_are_the_products_used_when_not(
    mode: str, height: int, width: int, size: tuple[int, int]
) -> None:
    images = noise_images(32, 3, height, width)
    crop = Crop(size, (0.01, 1.0), (0.2, 5.0), interpolation=mode)  # type: ignore[arg-type]
    box = crop.make_params(tuple(images.shape), Draws(0, 32))  # type: ignore[arg-type]
    flip = torch.arange(32) % 2 == 0
    traced = torch.compile(crop.transform, fullgraph=True, backend="eager")(images, box, flip_x=flip)
    torch.testing.assert_close(traced, crop.transform(images, box, flip_x=flip), atol=1e-5, rtol=0)


def test_of_no_images_there_are_no_views() -> None:
    none = torch.empty(0, 3, 40, 40, dtype=torch.uint8)
    assert Pipeline([Crop(32), Flip(), Blur()])(none, 0).images.shape == (0, 3, 32, 32)
