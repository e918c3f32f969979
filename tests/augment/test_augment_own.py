"""Pipelines of a user's own by name, MODULE:NAME: what is taken, what is refused, and how settings change them."""

import sys
import types
from collections.abc import Callable

import pytest
import torch

from prelax.augment import (
    Blur,
    Crop,
    Flip,
    Grey,
    Jitter,
    Maybe,
    Named,
    Normalise,
    Pipeline,
    QuarterTurn,
    adjust,
    preset,
    presets,
)
from prelax.errors import PrelaxError

HALF = Normalise((0.5,), (0.25,))


class Plain:
    """An operation that says no more than it has to."""

    name = "blur"
    targets = ()

    def make_params(self, shape: tuple[int, ...], draws: object) -> dict[str, torch.Tensor]:
        return {}

    def transform(self, images: torch.Tensor, params: dict[str, torch.Tensor]) -> torch.Tensor:
        return images


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """Gives an object a name that settings can call it by."""
    module = types.ModuleType("pipelines_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def give(found: object) -> str:
        module.VIEWS = found  # type: ignore[attr-defined]
        return f"{module.__name__}:VIEWS"

    return give


def test_one_pipeline_is_both_views_and_a_pair_is_one_each(called: Callable[[object], str]) -> None:
    one, two = Pipeline([Crop(24), HALF]), Pipeline([Crop(24), Flip(), HALF])
    assert presets(called(one)) == (one, one)
    assert preset(called(one)) is one
    for pair in ((one, two), [one, two]):
        assert presets(called(pair)) == (one, two)
    with pytest.raises(PrelaxError, match="a pipeline for each view"):
        preset(called((one, two)))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Pipeline, "is of type type; make it a prelax.augment.Pipeline, or a pair"),
        ([Crop(24), HALF], "is of type Crop; make it"),
        ((Pipeline([HALF]),) * 3, "is of type tuple; make it"),
        (Pipeline([Crop((24, 16))]), "are 24 x 16 px; make them squares of one size"),
        ((Pipeline([Crop(24)]), Pipeline([Crop(32)])), "are 24 x 24 and 32 x 32 px"),
        ((Pipeline([Crop(96)]), Pipeline([HALF])), "images of 160 px are 96 x 96 and 160 x 160 px"),
        ((Pipeline([Crop(160)]), Pipeline([HALF])), "images of 96 px are 96 x 96 and 160 x 160 px"),
    ],
)
def test_what_is_no_preset_is_refused_in_one_line(called: Callable[[object], str], found: object, said: str) -> None:
    with pytest.raises(PrelaxError) as error:
        presets(called(found))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_there_is_refused(called: Callable[[object], str]) -> None:
    name = called(None)
    with pytest.raises(PrelaxError, match=r"augment\.preset no_such_module:VIEWS: No module named"):
        presets("no_such_module:VIEWS")
    with pytest.raises(PrelaxError, match=r"has no attribute 'OTHER'; it must be MODULE:NAME"):
        presets(name.replace("VIEWS", "OTHER"))


def test_a_size_is_that_of_the_last_crop(called: Callable[[object], str]) -> None:
    shape = (1, 3, 64, 64)
    one, two = presets(called(Pipeline([Crop(40), Named(Crop(32), "second"), HALF])), 24)
    assert one is two
    assert one.ops[0].size == 40  # type: ignore[union-attr]
    assert one.output_shape(shape) == (1, 3, 24, 24)
    pair = presets(called((Pipeline([Crop(32)]), Pipeline([Flip(), Crop(32, (0.5, 1.0))]))), 16)
    assert [view.output_shape(shape)[2:] for view in pair] == [(16, 16), (16, 16)]
    with pytest.raises(
        PrelaxError, match=r"augment\.size=24 is the side of a crop, and .* has none: augment\.size=none"
    ):
        presets(called(Pipeline([Flip(), HALF])), 24)


def test_the_shape_of_a_view_is_that_of_what_is_made() -> None:
    images = torch.randint(256, (2, 3, 40, 56), dtype=torch.uint8)
    for pipeline in (
        Pipeline([Crop(24), QuarterTurn()]),
        Pipeline([Flip()]),
        Pipeline([Crop(None), Crop(8, name="b")]),
    ):
        assert pipeline(images, 0).images.shape == pipeline.output_shape((2, 3, 40, 56))


def test_strengths_change_what_they_can_and_refuse_what_they_cannot() -> None:
    mine = Pipeline([Crop(24), Jitter(name="colours"), Maybe(Grey(1.0), 0.5), HALF])
    changed = adjust(mine, colour=0.5, grey=0.1)
    assert changed.ops[1] == Jitter(0.2, 0.2, 0.2, 0.05, name="colours")
    assert changed.ops[2] == Maybe(Grey(1.0), 0.1)
    assert [op.name for op in adjust(mine, colour=0.0, grey=0.0).ops] == ["crop", "normalise"]
    assert [op.name for op in adjust(Pipeline([Plain()]), blur=0.0).ops] == []
    with pytest.raises(PrelaxError, match=r"augment\.blur says how often, and Plain has no p"):
        adjust(Pipeline([Plain(), HALF]), blur=0.5)
    with pytest.raises(PrelaxError, match=r"augment\.colour changes a Jitter, and jitter is a Maybe here"):
        adjust(Pipeline([Maybe(Jitter(), 0.3)]), colour=0.5)
    assert Blur(p=0.5) in adjust(mine, blur=0.5).ops
