"""What the views of a method share, and what decides them."""

from dataclasses import replace

import pytest
import torch

from prelax import augment
from prelax.config import resolve
from prelax.errors import PrelaxError
from prelax.objectives import METHODS, Method, Term, ViewSpec
from prelax.train import ViewMaker

PIXELS = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(8)


def maker(name: str, *changes: str) -> ViewMaker:
    settings = resolve("cifar10/simsiam", [f"method.name={name}", *changes])
    return ViewMaker(settings, channels=3, image_size=32, device=torch.device("cpu"))


def test_the_third_view_is_the_first_rotated_and_shares_its_record() -> None:
    one, _, three = maker("prelax-rot").make(PIXELS, IDS, 1)
    turns = three.shown.record["rotation.turns"]
    for row in range(8):
        wanted = torch.rot90(one.shown.images[row], -int(turns[row]), (1, 2))  # clockwise
        assert torch.equal(three.shown.images[row], wanted)
    for name, column in one.shown.record.items():
        assert torch.equal(three.shown.record[name], column)


@pytest.mark.parametrize("name", ["prelax-all", "prelax-turns"])
def test_targets_are_standardised_for_the_size_of_the_images(name: str) -> None:
    settings = resolve("digits/prelax-all", [f"method.name={name}", "method.relax=crop"])
    made = ViewMaker(settings, channels=1, image_size=16, device=torch.device("cpu"))
    views = made(torch.zeros(4000, 1, 16, 16, dtype=torch.uint8), torch.arange(4000), 1)
    for told in (views.targets[0], views.relaxed[2]):
        assert len(told) >= 4
        for column, value in told.items():
            if column.endswith(("y", "x", "area", "aspect")):
                assert abs(value.mean()) < 0.06, column
                assert abs(value.std() - 1) < 0.04, column


def test_views_of_two_draws_share_nothing() -> None:
    one, two = maker("simsiam").make(PIXELS, IDS, 1)
    assert not torch.equal(one.shown.record["crop.area"], two.shown.record["crop.area"])


def test_an_images_views_do_not_depend_on_its_batch() -> None:
    made = maker("prelax-all")
    whole, part = made.make(PIXELS, IDS, 3), made.make(PIXELS[5:], IDS[5:], made.keys(3))
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a.shown.images[5:], b.shown.images, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["prelax-all", "prelax-turns", "prelax-crops", "essl", "looc"])
def test_views_in_channels_last_are_the_same_views(method: str) -> None:
    plain, last = maker(method), maker(method)
    last.memory_format = torch.channels_last
    a, b = plain(PIXELS, IDS, 2), last(PIXELS, IDS, 2)
    assert b.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(a.images, b.images)
    assert a.small is None or torch.equal(a.small, b.small)
    for one, other in zip([*a.targets, *a.relaxed], [*b.targets, *b.relaxed], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_compiled_rotation_is_the_eager_one() -> None:
    eager, fused = maker("prelax-rot"), maker("prelax-rot")
    alone = fused.relaxing[1][0].compiled()
    fused.relaxing = {1: (alone, alone)}
    a, b = eager(PIXELS, IDS, 2), fused(PIXELS, IDS, fused.keys(2))
    assert torch.equal(a.images, b.images)
    assert torch.equal(a.relaxed[2]["rotation.turns"], b.relaxed[2]["rotation.turns"])


def test_epochs_and_seeds_draw_anew() -> None:
    areas = [maker("simsiam").make(PIXELS, IDS, epoch)[0].shown.record["crop.area"] for epoch in (1, 2)]
    assert not torch.equal(*areas)
    other = ViewMaker(resolve("cifar10/simsiam", seed=1), 3, 32, torch.device("cpu"))
    assert not torch.equal(areas[0], other.make(PIXELS, IDS, 1)[0].shown.record["crop.area"])


def test_essl_sees_a_third_small_crop_in_all_four_rotations() -> None:
    made = maker("essl").make(PIXELS, IDS, 1)
    first = made[2].shown.images
    assert first.shape == (8, 3, 16, 16)
    for turns, view in enumerate(made[2:]):
        assert view.shown.record["rotation.turns"].unique().tolist() == [turns]
        assert torch.equal(view.shown.images, torch.rot90(first, -turns, (2, 3)))  # clockwise
    assert not torch.equal(made[2].shown.record["crop.area"], made[0].shown.record["crop.area"])


def test_prelax_turns_sees_view_1_made_smaller_in_all_four_rotations() -> None:
    one, _, *turned = maker("prelax-turns").make(PIXELS, IDS, 1)
    smaller = one.shown.images.unflatten(-1, (16, 2)).unflatten(-3, (16, 2)).mean((-1, -3))  # 2 x 2 pixels are one
    for turns, view in enumerate(turned):
        torch.testing.assert_close(view.shown.images, torch.rot90(smaller, -turns, (2, 3)))  # clockwise
        assert torch.equal(view.shown.record["crop.area"], one.shown.record["crop.area"])
        assert view.shown.record["rotation.turns"].unique().tolist() == [turns]


@pytest.mark.parametrize("preset", ["simsiam-32", "medical"])
def test_a_view_made_smaller_has_what_changes_pixels_done_to_it_at_full_size(preset: str) -> None:
    made = maker("prelax-turns", "method.relax=invert", f"augment.preset={preset}", "augment.size=32")
    one, _, *copies = made.make(PIXELS, IDS, 1)
    smaller = one.shown.images.unflatten(-1, (16, 2)).unflatten(-3, (16, 2)).mean((-1, -3))
    done = torch.stack([view.shown.record["invert.applied"] for view in copies])
    assert set(done.flatten().tolist()) == {False, True}
    for view, inverted in zip(copies, done, strict=True):
        torch.testing.assert_close(view.shown.images[~inverted], smaller[~inverted])
        mean, std = (
            torch.tensor(of).view(3, 1, 1) for of in (made.pipelines[1].ops[-1].mean, made.pipelines[1].ops[-1].std)
        )
        turned = (1 - 2 * mean) / std - smaller
        torch.testing.assert_close(view.shown.images[inverted], turned[inverted], atol=1e-4, rtol=1e-4)


def test_prelax_crops_sees_four_small_crops_of_their_own_each_turned_by_its_draw() -> None:
    made = maker("prelax-crops").make(PIXELS, IDS, 1)
    areas = torch.stack([view.shown.record["crop.area"] for view in made])
    assert len(areas.unique(dim=0)) == 6  # every view has crops of its own
    for view in made[2:]:
        turns = view.shown.record["rotation.turns"]
        assert len(turns.unique()) > 1
        assert view.shown.images.shape == (8, 3, 16, 16)
        for row, upright in enumerate(view.drawn.images):
            wanted = torch.rot90(upright, -int(turns[row]), (1, 2))  # clockwise
            torch.testing.assert_close(view.shown.images[row], wanted)


@pytest.mark.parametrize("name", ["prelax-turns", "essl", "rotation"])
def test_a_jigsaw_of_fixed_permutations_shows_the_ones_it_tells(name: str) -> None:
    made = maker(name, "method.relax=jigsaw")
    for number, view in enumerate(made.make(PIXELS, IDS, 1)[-4:]):
        assert view.shown.record["jigsaw.permutation"].tolist() == [number] * 8
        order = view.shown.record["jigsaw.order"]
        assert torch.equal(order, augment.Jigsaw().completed({"permutation": torch.full((8,), number)})["order"])
        if number == 0 and name == "rotation":  # the first leaves an image as it is
            assert torch.equal(view.shown.images, view.drawn.images)


def test_small_views_are_a_batch_of_their_own() -> None:
    views = maker("essl")(PIXELS, IDS, 1)
    assert views.images.shape == (16, 3, 32, 32)
    assert views.small.shape == (32, 3, 16, 16)
    assert maker("simsiam")(PIXELS, IDS, 1).small is None


def test_small_views_have_the_size_and_the_share_of_the_image_that_are_set() -> None:
    share = ["augment.small_size=12", "augment.small_area_from=0.05", "augment.small_area_to=0.14"]
    *_, last = maker("essl", *share).make(PIXELS, IDS, 1)
    assert last.shown.images.shape[-1] == 12
    assert 0.03 < last.shown.record["crop.area"].min() <= last.shown.record["crop.area"].max() < 0.18


def test_a_share_that_ends_before_it_begins_is_refused_by_the_names_of_its_settings() -> None:
    with pytest.raises(PrelaxError, match=r"from 0.2 to 0.1 of the image: augment.small_area_from must not be above"):
        maker("prelax-crops", "augment.small_area_to=0.1")


def test_loocs_keys_share_one_augmentation_each() -> None:
    q, plain, colour, turned = (view.shown.record for view in maker("looc").make(PIXELS, IDS, 1))
    assert torch.equal(q["jitter.hue"], colour["jitter.hue"])
    assert torch.equal(q["grey.applied"], colour["grey.applied"])
    assert not torch.equal(q["crop.area"], colour["crop.area"])
    assert torch.equal(q["rotation.turns"], turned["rotation.turns"])
    assert not torch.equal(q["jitter.hue"], turned["jitter.hue"])
    assert not torch.equal(q["jitter.hue"], plain["jitter.hue"])


def test_view_1_may_show_another_draw_and_is_shared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    views = (ViewSpec(2), ViewSpec(1, shares=("crop",)), ViewSpec(3))
    monkeypatch.setitem(METHODS, "other-way", Method("", "", views, (Term("sim", "sim", (1, 2)),)))
    one, two, three = (made.shown.record for made in maker("other-way").make(PIXELS, IDS, 1))
    assert torch.equal(one["crop.area"], two["crop.area"])
    assert not torch.equal(one["jitter.hue"], two["jitter.hue"])
    assert not torch.equal(one["crop.area"], three["crop.area"])


def test_relaxing_the_crop_crops_the_first_view_again() -> None:
    one, _, three = maker("prelax-rot", "method.relax=crop").make(PIXELS, IDS, 1)
    assert torch.equal(one.shown.record["crop.area"], three.shown.record["crop.area"])
    assert "relaxed-crop.area" in three.shown.record
    assert not torch.equal(one.shown.images, three.shown.images)


@pytest.mark.parametrize("name", ["crop", "jitter", "grey", "blur"])
@pytest.mark.parametrize("preset", ["simsiam-32", "byol-128", "medical"])
def test_what_is_relaxed_is_set_as_the_run_sets_it_and_as_the_effects_measure_it(name: str, preset: str) -> None:
    settings = resolve("cifar10/prelax-rot", [f"method.relax={name}", f"augment.preset={preset}", "augment.size=32"])
    made = ViewMaker(settings, 3, 32, torch.device("cpu"))
    relaxed = made.relax.op if isinstance(made.relax, augment.Named) else made.relax
    own = {op.name: op for op in made.pipelines[1].ops}
    if (name, preset) == ("blur", "byol-128"):  # view 1 always has it, so that there would be nothing to tell
        assert relaxed == replace(own["blur"], p=0.5)
        return
    assert relaxed == augment.as_set(name, list(made.pipelines.values()), 32)
    assert relaxed == own.get(name, relaxed)
    if name == "crop":
        assert relaxed.scale == {"simsiam-32": (0.2, 1.0), "byol-128": (0.08, 1.0), "medical": (0.6, 1.0)}[preset]
