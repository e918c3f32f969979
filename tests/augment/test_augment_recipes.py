"""Presets are the recipes they are named after, defaults are torchvision's, and what cannot be meant is refused."""

import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from prelax.augment import (
    OPERATIONS,
    PRESETS,
    Blur,
    Crop,
    Erase,
    Flip,
    FreeRotation,
    Grey,
    Invert,
    Jigsaw,
    Jitter,
    Maybe,
    Named,
    Noise,
    Normalise,
    Operation,
    Pipeline,
    QuarterTurn,
    Solarise,
    host_stage,
    operation,
    presets,
)
from prelax.augment.exact import _full_precision
from prelax.errors import PrelaxError

CIFAR = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SIMSIAM = (Flip(p=0.5), Jitter(0.4, 0.4, 0.4, 0.1, p=0.8), Grey(p=0.2))


def byol(size: int) -> tuple[tuple[Operation, ...], ...]:
    """BYOL's Table 6: only blurring and solarising differ between the two views."""
    crop = Crop(size, (0.08, 1.0), (3 / 4, 4 / 3), "bicubic")
    same = (crop, Flip(p=0.5), Jitter(0.4, 0.4, 0.2, 0.1, p=0.8), Grey(p=0.2))
    blurs, solarises = (Blur(None, (0.1, 2.0), p) for p in (1.0, 0.1)), (Solarise(0.5, p) for p in (0.0, 0.2))
    return tuple((*same, blur, solarise, IMAGENET) for blur, solarise in zip(blurs, solarises, strict=True))


RECIPES: dict[str, tuple[tuple[Operation, ...], ...]] = {
    "none": ((Crop(224, (1.0, 1.0), (1.0, 1.0)), IMAGENET),),
    "simsiam-32": ((Crop(32, (0.2, 1.0), (3 / 4, 4 / 3)), *SIMSIAM, CIFAR),),
    "simsiam-224": ((Crop(224, (0.2, 1.0), (3 / 4, 4 / 3)), *SIMSIAM, Blur(None, (0.1, 2.0), p=0.5), IMAGENET),),
    "byol-128": byol(128),
    "byol-224": byol(224),
    "digits": ((Crop(16, (0.4, 1.0)), Noise((0.0, 0.1), p=1.0), Normalise((0.3053,), (0.3189,))),),
    "medical": (
        (
            *(Crop(224, (0.6, 1.0)), Flip(p=0.5), Maybe(FreeRotation(10.0), 0.5), Jitter(0.2, 0.2, 0.0, 0.0, p=0.5)),
            *(Blur(None, (0.1, 1.0), p=0.2), Noise((0.0, 0.03), p=1.0), IMAGENET),
        ),
    ),
    "satellite": (
        (
            *(Crop(224, (0.4, 1.0)), Flip(p=0.5), Flip(p=0.5, vertical=True), QuarterTurn()),
            *(Jitter(0.2, 0.2, 0.2, 0.02, p=0.5), Blur(None, (0.1, 1.0), p=0.1), IMAGENET),
        ),
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_recipe(name: str) -> None:
    one, two = presets(name)
    assert one.ops == RECIPES[name][0]
    assert two.ops == RECIPES[name][-1]


def test_what_is_not_said_is_as_in_torchvision() -> None:
    def said(transform: type, *names: str) -> list[object]:
        known = inspect.signature(transform).parameters
        return [known[name].default for name in names]

    assert said(v2.RandomResizedCrop, "scale", "ratio") == [Crop().scale, Crop().ratio]
    assert said(v2.RandomErasing, "p", "scale", "ratio", "value") == [0.5, Erase().scale, Erase().ratio, Erase().value]
    assert said(v2.GaussianBlur, "sigma") == [Blur().sigma]
    assert said(v2.GaussianNoise, "clip") == [Noise().clip]
    for theirs, ours in ((v2.RandomHorizontalFlip, Flip()), (v2.RandomInvert, Invert()), (v2.RandomErasing, Erase())):
        assert said(theirs, "p") == [ours.p], theirs


def test_what_torchvision_asks_for_is_as_in_simsiam_and_byol() -> None:
    assert Jitter() == Jitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    assert Grey() == Grey(0.2)
    assert Solarise() == Solarise(0.5, 0.2)
    assert Blur() == Blur(None, p=0.5)


@pytest.mark.parametrize(("side", "taps"), [(16, 3), (32, 3), (128, 13), (224, 23)])  # BYOL has 23 at 224 pixels
def test_a_blur_of_no_said_kernel_has_an_odd_tenth_of_the_side_and_3_taps_at_least(side: int, taps: int) -> None:
    images = torch.zeros(1, 1, side, side)
    images[..., side // 2, side // 2] = 1.0
    out = Blur(p=1.0).transform(images, {"sigma": torch.tensor([50.0])})
    assert int((out[0, 0, side // 2] > 0).sum()) == taps


P_OF: list[Callable[[float], object]] = [
    *(lambda p, op=op: op(p=p) for op in (Flip, Jitter, Grey, Solarise, Invert, Blur, Erase, Noise)),  # type: ignore[misc]
    lambda p: Maybe(QuarterTurn(), p),
]


@pytest.mark.parametrize("make", P_OF)
def test_a_probability_is_from_0_to_1(make: Callable[[float], object]) -> None:
    for p in (0.0, 1.0):
        make(p)
    for p in (-0.01, 1.01):
        with pytest.raises(PrelaxError, match="p is a probability from 0 to 1"):
            make(p)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Jitter(brightness=-0.1), "jitter brightness is a range"),
        (lambda: Jitter(hue=-0.1), "jitter hue is a range"),
        (lambda: Blur(sigma=(0.0, 1.0)), "blur sigma is a range"),
        (lambda: Blur(kernel=-1), "odd number of taps"),
        (lambda: Erase(scale=(-0.1, 0.3)), "erase scale is a range"),
        (lambda: Erase(ratio=(0.0, 1.0)), "erase ratio is a range"),
        (lambda: Noise((0.2, 0.1)), "noise sigma is a range"),
        (lambda: Crop(8, (0.0, 0.0)), "at most 1, got"),
        (lambda: Crop(8, ratio=(0.0, 1.0)), "crop ratio is a range"),
        (lambda: FreeRotation(0.0), "above 0 and at most 180"),
        (lambda: FreeRotation(180.5), "above 0 and at most 180"),
        (lambda: FreeRotation(5, "bicubic"), "nearest or bilinear"),
        (lambda: Jigsaw(1), "2 or more"),
        (lambda: Jigsaw(2, classes=1), "at least 2 are needed"),
        (lambda: Normalise((), ()), "a value per channel"),
        (lambda: Normalise((0.5,), (1.0, 1.0)), "a value per channel"),
        (lambda: Normalise((0.5, 0.5), (1.0, 0.0)), "std must be above 0"),
        (lambda: Pipeline([Blur(9)])(torch.zeros(1, 1, 4, 32)), "does not fit into 4 x 32"),
        (lambda: Pipeline([Blur(9)])(torch.zeros(1, 1, 32, 4)), "does not fit into 32 x 4"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PrelaxError, match=message):
        make()


def test_the_ends_of_what_can_be_meant_are_not_refused() -> None:
    Jitter(0.0, 0.0, 0.0, 0.5)
    Crop(8, (0.0, 1.0))
    FreeRotation(180)
    Jigsaw(2, classes=2)
    Pipeline([Blur(7, p=1.0)])(torch.zeros(1, 1, 4, 32), 0)


def test_noise_is_cut_off_at_black_and_white_unless_it_is_not_to_be() -> None:
    white = torch.ones(4, 1, 8, 8)
    params = {"applied": torch.ones(4, dtype=torch.bool), "sigma": torch.full((4,), 0.1), "seed": torch.arange(4)}
    cut, free = (Noise(clip=clip).transform(white, params) for clip in (True, False))
    assert free.max() > 1.1
    assert torch.equal(cut, free.clamp(0.0, 1.0))


@pytest.mark.parametrize(
    "op",
    [operation(name) for name in OPERATIONS if name != "normalise"]
    + [CIFAR, Maybe(Flip(), 0.5), Named(Flip(), "again")],
    ids=repr,
)
def test_operations_cannot_be_changed_and_are_pickled_as_they_are(op: Operation) -> None:
    with pytest.raises(FrozenInstanceError):
        op.p = 0.3  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(op)) == op


def test_floats_greys_and_other_numbers_of_a_host_stage_are_bytes_or_refused() -> None:
    image = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    assert torch.equal(host_stage(lambda x: x / 255 + 0.4 / 255)(image), image)  # rounded, and cut off at white
    assert torch.equal(host_stage(lambda x: x)(Image.fromarray(image[0].numpy())), image)
    with pytest.raises(PrelaxError, match="uint8, or floats"):
        host_stage(lambda x: x.int())(image)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_are_of_full_precision_and_what_was_set_is_set_again(device: str) -> None:
    backend = torch.backends.cuda.matmul if device == "cuda" else torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    try:
        for asked in ("tf32", "ieee"):
            backend.fp32_precision = asked
            with _full_precision(torch.device(device)):
                assert backend.fp32_precision == "ieee"
            assert backend.fp32_precision == asked
    finally:
        backend.fp32_precision = before
