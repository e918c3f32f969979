"""Pixels to views: the draws of a method's views, the relaxed one among them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax import augment
from prelax.augment.operation import trait
from prelax.config import Settings
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.objectives import ViewSpec, method, weighed
from prelax.record import Record, Target, View
from prelax.train.step import Views

SMALL = 0  # number of the pipeline of small views
STRENGTHS = ("area_from", "area_to", "colour", "flip", "grey", "blur", "solarise")  # settings that change a preset
OF_COLOURS = ("colour", "grey")


@dataclass(frozen=True)
class Made:
    """A view and how it came about."""

    pipeline: augment.Pipeline
    drawn: View
    shown: View


class ViewMaker:
    """Makes the views of a method from uint8 pixels, where the pixels are.

    What an image gets is decided by (seed, epoch, view, image number) alone: not by the batch, the process or the
    device it happens to be on.
    """

    def __init__(self, settings: Settings, channels: int, image_size: int, device: torch.device) -> None:
        self.seed = settings.seed
        self.views: tuple[ViewSpec, ...] = method(settings.method.name).views
        one, two = plain_pipelines(settings, channels, image_size)
        check_drawn(settings, one, two)
        self.size = size_of(one, image_size)
        self.specs: tuple[Target, ...] = one.specs_at((1, channels, image_size, image_size))
        self.small_size = settings.augment.small_size or max(self.size // 2, 4)
        self.pipelines = {1: one, 2: two}
        if any(view.small for view in self.views):
            self.pipelines[SMALL] = small_pipeline(one, self.small_size, settings)
        self.relax: augment.Operation | None = None
        self.relaxing: dict[int, tuple[augment.Pipeline, augment.Pipeline]] = {}
        if any(view.relaxed for view in self.views):
            relax, smaller = (
                augment.relaxation(one, augment.as_set(settings.method.relax, (one, two), side, channels))
                for side in (self.size, self.small_size)
            )
            self.relax = relax
            self.relaxing = {
                number: augment.relaxed_pipelines(pipeline, smaller if number == SMALL else relax)
                for number, pipeline in self.pipelines.items()
            }
        wanted = settings.augment.compile
        if wanted == "always" or (wanted == "auto" and device.type == "cuda"):
            fused = {id(pipeline): pipeline.compiled() for pipeline in self.pipelines.values()}  # one may be two views'
            self.pipelines = {number: fused[id(pipeline)] for number, pipeline in self.pipelines.items()}
            self.relaxing = {number: _compiled(*pair) for number, pair in self.relaxing.items()}
        self.relaxed_specs: tuple[Target, ...] = ()
        # Views made smaller: after the relaxed augmentation, unless that only moves pixels (which is then quicker).
        full = {view.draw for view in self.views if not view.small}
        self.smaller = {n for n, view in enumerate(self.views, start=1) if view.small and view.draw in full}
        self.late = self.smaller if self.relax is not None and not trait(self.relax, "moves_pixels") else set()
        # The relaxed augmentation is drawn for views of the size that it is done to.
        relaxed = {n: view for n, view in enumerate(self.views, start=1) if view.relaxed}
        small = all(view.small and n not in self.late for n, view in relaxed.items())
        self.relaxed_side = self.small_size if small else self.size
        if self.relax is not None:
            self.relaxed_specs = augment.targets_at(self.relax, (1, channels, self.relaxed_side, self.relaxed_side))
        self.dtype = torch.float32
        self.memory_format = torch.contiguous_format

    def keys(self, epoch: int) -> Tensor:
        """Where the draws of an epoch begin, a key for each draw and each view: what a captured step reads.

        A tensor of these in place of the number of the epoch gives the same views.
        """
        draws = Draws(self.seed, 1).at("augment", epoch)
        places = [draws.at(*place).on_device().key for place in self._places()]
        return torch.stack(places)  # type: ignore[arg-type]

    def _places(self) -> list[tuple[str, int]]:
        seen = dict.fromkeys(view.draw for view in self.views)
        return [*(("draw", draw) for draw in seen), *(("view", n) for n in range(1, len(self.views) + 1))]

    def __call__(self, pixels: Tensor, ids: Tensor, epoch: int | Tensor, labels: Tensor | None = None) -> Views:
        """The views of a batch.

        Args:
            pixels: uint8, B x C x H x W.
            ids: the number of each image in the data set.
            epoch: its number, or its ``keys`` on the device.
            labels: passed on.
        """
        views = [made.shown for made in self.make(pixels, ids, epoch)]
        full, small = (
            [view.images for view, spec in zip(views, self.views, strict=True) if spec.small is which]
            for which in (False, True)
        )
        return Views(
            torch.cat(full).contiguous(memory_format=self.memory_format),
            [_values(view, self.specs) for view in views],
            [
                _values(view, self.relaxed_specs) if spec.relaxed else {}
                for view, spec in zip(views, self.views, strict=True)
            ],
            labels,
            torch.cat(small).contiguous(memory_format=self.memory_format) if small else None,
        )

    def make(self, pixels: Tensor, ids: Tensor, epoch: int | Tensor) -> list[Made]:
        """Each view with the pipeline that drew it and what it was before the relaxed augmentation."""
        keys = epoch if isinstance(epoch, Tensor) else self.keys(epoch).to(pixels.device)
        draws = {place: Draws(keys[n], ids, pixels.device) for n, place in enumerate(self._places())}
        drawn: dict[int, View] = {}
        views: list[Made] = []
        for number, view in enumerate(self.views, start=1):
            which = 2 if view.draw == 2 else 1
            pipeline = self.pipelines[SMALL if view.small and number not in self.smaller else which]
            if view.draw not in drawn:
                record = pipeline.sample(tuple(pixels.shape), draws["draw", view.draw])  # type: ignore[arg-type]
                if views:
                    first = views[0].drawn.record
                    shared = {name: column for name, column in first.items() if _belongs(name, view.shares)}
                    record = Record({**record.columns, **shared}, record.specs)
                drawn[view.draw] = View(pipeline.apply(pixels, record, self.dtype, self.memory_format), record)
            shown = drawn[view.draw]
            late = number in self.late
            if number in self.smaller and not late:
                shown = self.made_smaller(shown)
            if view.relaxed:
                given = self.given(view, views, len(ids), pixels.device)
                relaxing = self.relaxing[SMALL if view.small and not late else which]
                shown = augment.show_relaxed(relaxing, shown, pixels, draws["view", number], given, self.memory_format)
            shown = self.made_smaller(shown) if late else shown
            views.append(Made(pipeline, drawn[view.draw], shown))
        return views

    def made_smaller(self, view: View) -> View:
        return View(F.adaptive_avg_pool2d(view.images, self.small_size), view.record)

    def given(self, view: ViewSpec, before: list[Made], rows: int, device: torch.device) -> dict[str, Tensor]:
        """What is not drawn for a relaxed view: shared with view 1, or a fixed value of a k-way target."""
        assert self.relax is not None
        if "relax" in view.shares:
            return {name: c for name, c in before[0].shown.record.items() if _belongs(name, (self.relax.name,))}
        kway = next((target for target in self.relax.targets if target.kind == "categorical"), None)
        if view.fixed is None or kway is None:
            return {}
        return {kway.name: torch.full((rows,), view.fixed % kway.classes, dtype=torch.int64, device=device)}


def plain_pipelines(settings: Settings, channels: int, image_size: int) -> tuple[augment.Pipeline, augment.Pipeline]:
    """What views 1 and 2 go through, whatever the method does with them; one and the same where they do not differ."""
    asked = settings.augment
    own = ":" in asked.preset  # a user's, who has said how large views are
    size = asked.size or (image_size if image_size <= 64 and not own else None)
    strengths = {name: getattr(asked, name) for name in STRENGTHS}
    for name in OF_COLOURS if channels != 3 else ():
        if strengths[name]:
            raise PrelaxError(f"augment.{name} is for colour images: these have {channels} channel(s), leave it out")
    one, two = augment.presets(preset_name(settings), size, channels)
    changed = augment.adjust(one, **strengths)
    return changed, changed if two is one else augment.adjust(two, **strengths)


def check_drawn(settings: Settings, one: augment.Pipeline, two: augment.Pipeline) -> None:
    """Refuses pipelines that draw nothing a pretext could ask for, or too little for what it asks of both views."""
    asked, kinds = settings.method, {term.kind for term in weighed(settings.method)}
    if not kinds & {"pl", "compare"}:
        return
    if not one.specs:
        raise PrelaxError(
            f"{asked.name} asks how its views were made, and those of augment.preset={settings.augment.preset} draw "
            "nothing that has targets: take an augmentation that has, or method.name=simsiam"
        )
    views = method(asked.name).views
    both = "compare" in kinds or asked.std_tells == "difference"
    of_two = any(term.kind == "pl" and views[term.views[0] - 1].draw == 2 for term in weighed(asked))
    if not both and not of_two:
        return
    names = {spec.name for spec in two.specs}
    if lacking := [spec.name for spec in one.specs if spec.name not in names]:
        what = "how two views differ" if both else "how view 2 was made"
        raise PrelaxError(
            f"{asked.name} asks {what}, and view 2 of augment.preset={settings.augment.preset} draws no "
            f"{' and no '.join(lacking)}: let both have that augmentation, Maybe(..., 0.0) where it is not to be done"
        )


def size_of(pipeline: augment.Pipeline, image_size: int) -> int:
    """The side of the views that a pipeline makes of images of a size."""
    return pipeline.output_shape((1, 3, image_size, image_size))[-1]


def described(settings: Settings) -> list[str] | None:
    """What a user's own preset does to views 1 and 2, in words that are the same in every process; None of others."""
    if ":" not in settings.augment.preset:
        return None
    known = settings.data
    lines = map(repr, plain_pipelines(settings, known.channels or 3, known.image_size or 32))
    return [re.sub(r" at 0x[0-9a-f]+", "", line) for line in lines]


def small_pipeline(one: augment.Pipeline, size: int, settings: Settings) -> augment.Pipeline:
    """View 1's pipeline with crops of another size, and of another share of the image where the settings say so.

    One that does not crop shows the whole image, made smaller at the end.
    """
    asked = settings.augment
    if not augment.crops_of(one.ops):
        if asked.small_area_from is not None or asked.small_area_to is not None:
            raise PrelaxError(
                "augment.small_area_from and small_area_to say how much a small crop shows, and "
                f"augment.preset={asked.preset} has no Crop"
            )
        before, after = one.stages
        whole = augment.Crop(size, scale=(1.0, 1.0), ratio=(1.0, 1.0))
        return augment.Pipeline([*before, augment.Named(whole, "smaller"), *after])

    def smaller(crop: augment.Crop) -> augment.Crop:
        shown = augment.showing(crop, asked.small_area_from, asked.small_area_to, "small crops", "small_area")
        return replace(shown, size=size)

    return augment.Pipeline([augment.recropped(op, smaller) for op in one.ops])


def _compiled(alone: augment.Pipeline, shows: augment.Pipeline) -> tuple[augment.Pipeline, augment.Pipeline]:
    """Both compiled; one and the same stay so."""
    fused = alone.compiled()
    return fused, fused if shows is alone else shows.compiled()


def _belongs(column: str, operations: tuple[str, ...]) -> bool:
    """Whether a column is one of these operations' parameters."""
    return any(column.startswith(f"{name}.") for name in operations)


def _values(view: View, specs: tuple[Target, ...]) -> dict[str, Tensor]:
    """The standardised targets among a view's columns (an asymmetric view may lack some: they are not asked of it)."""
    return {spec.name: spec.value(view.record[spec.name]) for spec in specs if spec.name in view.record}


def preset_name(settings: Settings) -> str:
    """The augmentations of the settings by name; ``auto`` goes by the source and the size of the images."""
    if settings.augment.preset != "auto":
        return settings.augment.preset
    if settings.data.source == "digits":
        return "digits"
    size = settings.augment.size or settings.data.image_size or 224
    if settings.data.source in ("cifar10", "cifar100", "tiny-imagenet") or size <= 64:
        return "simsiam-32"
    return "simsiam-224"
