"""Parameters follow torchvision's own samplers, and targets are standardised as they are drawn."""

import math

import pytest
import torch
from torchvision.transforms import v2

from prelax.augment import (
    Blur,
    Crop,
    Erase,
    FreeRotation,
    Jitter,
    Maybe,
    Named,
    Noise,
    Operation,
    Pipeline,
    QuarterTurn,
)
from prelax.draws import Draws

N = 4000


def ks(a: torch.Tensor, b: torch.Tensor) -> float:
    """Kolmogorov and Smirnov's distance of two samples, in units of its scale; above 2 once in 3000 times."""
    a, b = a.double().sort().values, b.double().sort().values
    grid = torch.cat((a, b))
    distance = (
        torch.searchsorted(a, grid, right=True) / len(a) - torch.searchsorted(b, grid, right=True) / len(b)
    ).abs()
    return float(distance.max()) * math.sqrt(len(a) * len(b) / (len(a) + len(b)))


def columns(op: Operation, height: int, width: int, n: int = 50_000) -> dict[str, torch.Tensor]:
    return op.make_params((n, 3, height, width), Draws(0, n))


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (32, 32, (0.2, 1.0), (3 / 4, 4 / 3)),
        (160, 120, (0.08, 1.0), (3 / 4, 4 / 3)),
        (20, 90, (0.8, 1.0), (3 / 4, 4 / 3)),  # no try fits: always the fall-back, wide
        (90, 20, (0.8, 1.0), (3 / 4, 4 / 3)),  # the fall-back, tall
        (40, 70, (0.5, 1.0), (0.5, 2.0)),  # the fall-back now and then
    ],
)
def test_crops_are_drawn_as_torchvision_draws_them(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(8, scale, ratio, antialias=True)
    image = torch.zeros(1, height, width)
    drawn = [theirs.make_params([image]) for _ in range(N)]
    ours = columns(Crop(8, scale, ratio), height, width)
    for name in ("top", "left", "height", "width"):
        assert ks(torch.tensor([params[name] for params in drawn]), ours[name]) < 2, name
    together = torch.tensor([params["height"] * 1000 + params["left"] for params in drawn])
    assert ks(together, ours["height"] * 1000 + ours["left"]) < 2


def test_boxes_lie_in_the_image_and_the_targets_describe_them() -> None:
    box = columns(Crop(8, (0.01, 1.0), (0.1, 10.0)), 13, 29)
    assert (box["top"] >= 0).all()
    assert (box["left"] >= 0).all()
    assert (box["height"] >= 1).all()
    assert (box["width"] >= 1).all()
    assert (box["top"] + box["height"] <= 13).all()
    assert (box["left"] + box["width"] <= 29).all()
    torch.testing.assert_close(box["area"], box["height"] * box["width"] / (13 * 29))
    torch.testing.assert_close(box["aspect"], (box["width"] / 29) / (box["height"] / 13))
    torch.testing.assert_close(box["y"], (box["top"] + box["height"] / 2) / 13)
    torch.testing.assert_close(box["x"], (box["left"] + box["width"] / 2) / 29)


def test_jitter_is_drawn_as_torchvision_draws_it() -> None:
    torch.manual_seed(0)
    theirs = v2.ColorJitter(0.4, 1.5, 0.2, 0.1)
    drawn = [theirs.make_params([]) for _ in range(N)]
    ours = columns(Jitter(0.4, 1.5, 0.2, 0.1, p=1.0), 8, 8)
    for name in ("brightness", "contrast", "saturation", "hue"):
        assert ks(torch.tensor([params[f"{name}_factor"] for params in drawn]), ours[name]) < 2, name
    code = torch.tensor([64, 16, 4, 1])
    theirs_order = torch.stack([torch.as_tensor(params["fn_idx"]) for params in drawn])
    assert ks((theirs_order * code).sum(1), (ours["order"] * code).sum(1)) < 2


def test_erasing_is_drawn_as_torchvision_draws_it() -> None:
    torch.manual_seed(0)
    theirs = v2.RandomErasing(1.0, (0.3, 0.9), (0.3, 3.3))  # large boxes: often refused
    image = torch.zeros(1, 24, 40)
    drawn = [theirs.make_params([image]) for _ in range(N)]
    ours = columns(Erase(1.0, (0.3, 0.9), (0.3, 3.3)), 24, 40)
    fits = torch.tensor([params["v"] is not None for params in drawn])
    assert abs(fits.double().mean() - ours["applied"].double().mean()) < 5 * 0.5 / math.sqrt(N)
    for name, key in (("top", "i"), ("left", "j"), ("height", "h"), ("width", "w")):
        sizes = torch.tensor([params[key] for params, fit in zip(drawn, fits, strict=True) if fit])
        assert ks(sizes, ours[name][ours["applied"]]) < 2, name


def test_blur_sigma_and_angles_are_uniform_as_in_torchvision() -> None:
    torch.manual_seed(0)
    blur = v2.GaussianBlur(3, (0.1, 2.0))
    sigmas = torch.tensor([blur.make_params([])["sigma"][0] for _ in range(N)])
    assert ks(sigmas, columns(Blur(3, p=1.0), 8, 8)["sigma"]) < 2
    rotation = v2.RandomRotation(30)
    angles = torch.tensor([rotation.make_params([])["angle"] for _ in range(N)])
    assert ks(angles, columns(FreeRotation(30), 8, 8)["degrees"]) < 2


@pytest.mark.parametrize(
    "op",
    [
        Crop(224, (0.2, 1.0)),
        Crop(224, (0.08, 1.0)),
        Crop(224, (0.6, 1.0)),
        Crop(224, (0.5, 1.0), (0.5, 2.0)),
        Jitter(0.4, 0.4, 0.2, 0.1, p=0.8),
        Jitter(1.5, 0.0, 0.2, 0.0, p=0.3),
        Noise((0.0, 0.1), p=0.7),
        Erase(0.5),
        Erase(0.9, (0.02, 0.2), (0.2, 1.0)),
        FreeRotation(30),
        Maybe(FreeRotation(30), 0.3),
        Maybe(Jitter(p=0.8), 0.4),
        Maybe(Erase(0.5), 0.6),
    ],
    ids=str,
)
def test_standardised_targets_have_mean_zero_and_deviation_one(op: Operation) -> None:
    drawn = columns(op, 224, 224)
    for target in op.targets:
        if target.kind == "continuous":
            value = target.value(drawn[target.name.partition(".")[2]])
            assert abs(value.mean()) < 0.05, target.name
            assert abs(value.std() - 1) < 0.05, target.name


@pytest.mark.parametrize(("height", "width"), [(4, 4), (16, 16), (32, 32), (7, 13), (40, 70)])
@pytest.mark.parametrize(
    "op",
    [
        Crop(16, (0.2, 1.0)),
        Crop(16, (0.4, 1.0)),
        Crop(16, (0.3, 0.7), (0.4, 1.5)),
        Erase(0.5),
        Erase(0.9, (0.3, 0.9)),  # often refused
        Named(Maybe(Erase(0.9), 0.5), "cover"),
    ],
    ids=str,
)
def test_boxes_of_whole_pixels_are_standardised_for_the_images_they_are_drawn_in(
    op: Operation, height: int, width: int
) -> None:
    record = Pipeline([op]).sample((50_000, 3, height, width), Draws(0, 50_000))
    assert [spec.name for spec in record.specs] == [target.name for target in op.targets]
    for spec in record.specs:
        if spec.kind == "continuous":
            value = spec.value(record[spec.name])
            assert abs(value.mean()) < 0.03, spec.name
            assert abs(value.std() - 1) < 0.03, spec.name


def test_what_follows_a_crop_is_standardised_for_what_the_crop_gives() -> None:
    record = Pipeline([Crop(6), Erase(1.0)]).sample((50_000, 3, 224, 224), Draws(0, 50_000))
    assert all(abs(record.targets()[f"erase.{name}"].std() - 1) < 0.03 for name in ("y", "x", "area"))


def test_a_box_that_rounds_to_nothing_is_not_recorded_as_erased() -> None:
    drawn = columns(Erase(1.0, (0.02, 0.33)), 4, 4)
    assert not drawn["applied"].all()
    assert ((drawn["height"] * drawn["width"] > 0) == drawn["applied"]).all()
    assert (drawn["y"][~drawn["applied"]] == 0.5).all()


def test_a_factor_that_never_moves_is_no_target() -> None:
    assert [t.name for t in Jitter(0.4, 0, 0.2, 0).targets] == [
        "jitter.brightness",
        "jitter.saturation",
        "jitter.applied",
    ]


def test_factors_are_the_identity_where_jitter_was_not_applied() -> None:
    drawn = columns(Jitter(p=0.5), 8, 8)
    off = ~drawn["applied"]
    assert 0.45 < off.double().mean() < 0.55
    assert all((drawn[name][off] == 1).all() for name in ("brightness", "contrast", "saturation"))
    assert (drawn["hue"][off] == 0).all()
    assert (drawn["hue"][~off] != 0).double().mean() > 0.99


def test_all_quarter_turns_are_as_likely() -> None:
    counts = torch.bincount(columns(QuarterTurn(), 8, 8)["turns"], minlength=4)
    assert (counts - 12_500).abs().max() < 500
