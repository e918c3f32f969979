"""Pixels to views: the draws of a method's views, the relaxed one among them."""

from __future__ import annotations

import torch
from torch import Tensor

from prelax import augment
from prelax.config import Settings
from prelax.draws import Draws
from prelax.objectives import ViewSpec, method
from prelax.record import Target, View
from prelax.train.step import Views


class ViewMaker:
    """Makes the views of a method from uint8 pixels, where the pixels are.

    What an image gets is decided by (seed, epoch, view, image number) alone: not by the batch, the process or the
    device it happens to be on.
    """

    def __init__(self, settings: Settings, channels: int, image_size: int, device: torch.device) -> None:
        self.seed = settings.seed
        self.views: tuple[ViewSpec, ...] = method(settings.method.name).views
        name = preset_name(settings)
        one, two = augment.presets(name, settings.augment.size or (image_size if image_size <= 64 else None), channels)
        self.size = next((int(op.size) for op in one.ops if isinstance(op, augment.Crop)), image_size)
        self.specs: tuple[Target, ...] = one.specs
        plain = {1: one, 2: two}
        wanted = settings.augment.compile
        fuse = wanted == "always" or (wanted == "auto" and device.type == "cuda")
        self.pipelines = {1: one.compiled(), 2: two.compiled()} if fuse else plain
        self.relax = None
        if any(view.relaxed for view in self.views):
            options = {"size": self.size} if settings.method.relax == "crop" else {}
            self.relax = augment.relaxation(one, augment.operation(settings.method.relax, **options))
        self.relaxed_specs: tuple[Target, ...] = self.relax.targets if self.relax is not None else ()
        self.dtype = torch.float32
        self.memory_format = torch.contiguous_format

    def __call__(self, pixels: Tensor, ids: Tensor, epoch: int | Tensor, labels: Tensor | None = None) -> Views:
        """The views of a batch. ``ids``: the number of each image in the data set."""
        draws = Draws(self.seed, ids, pixels.device).at("augment", epoch)
        made: dict[int, View] = {}
        views: list[View] = []
        for number, view in enumerate(self.views, start=1):
            pipeline = self.pipelines[2 if view.draw == 2 else 1]
            if view.draw not in made:
                made[view.draw] = pipeline(pixels, draws.at("draw", view.draw), dtype=self.dtype)
            shown = made[view.draw]
            if view.relaxed:
                assert self.relax is not None
                shown = augment.relaxed_view(pipeline, shown, self.relax, pixels, draws.at("view", number))
            views.append(shown)
        images = torch.cat([view.images for view in views]).contiguous(memory_format=self.memory_format)
        return Views(
            images,
            [_values(view, self.specs) for view in views],
            [
                _values(view, self.relaxed_specs) if spec.relaxed else {}
                for view, spec in zip(views, self.views, strict=True)
            ],
            labels,
        )


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
