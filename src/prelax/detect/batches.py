"""Pictures with their objects, batch by batch; which they are is a pure function of the seed and the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prelax.data import order
from prelax.detect.coco import CocoSet, corners, mask_of
from prelax.draws import Draws
from prelax.errors import PrelaxError

Sample = tuple[Tensor, dict[str, Tensor]]
Address = tuple[int, int]  # epoch, row; an epoch of -1 is for scoring: nothing is mirrored


class Samples(Dataset[Any]):
    """What torchvision's detectors train on, by (epoch, row): uint8 pixels, 3 x H x W, and boxes, labels, masks."""

    def __init__(self, coco: CocoSet, masks: bool, seed: int) -> None:
        self.coco, self.masks, self.seed, self.labels = coco, masks, seed, coco.labels

    def __len__(self) -> int:
        return len(self.coco)

    def __getitem__(self, address: Address) -> Sample | str:
        """The sample, or why there is none: an exception would lose its one line on the way out of a worker."""
        epoch, row = address
        try:
            pixels = torch.from_numpy(self.coco.pixels(row)).permute(2, 0, 1)  # 3 x H x W
        except PrelaxError as error:
            return str(error)
        target = self.target(row)
        if epoch >= 0 and Draws(self.seed, torch.tensor([row])).at("detect", epoch).bernoulli("flip", 0.5).item():
            pixels, target = mirror(pixels, target)
        return pixels.contiguous(), target

    def target(self, row: int) -> dict[str, Tensor]:
        """The objects of an image that are not crowds."""
        image = self.coco.images[row]
        width, height = image["width"], image["height"]
        things = [thing for thing in self.coco.objects[row] if not thing["iscrowd"]]
        boxes = [corners(thing["bbox"], width, height) for thing in things]
        found = {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),  # n x 4
            "labels": torch.tensor([self.labels[thing["category_id"]] for thing in things], dtype=torch.int64),  # n
        }
        if self.masks:
            masks = [mask_of(thing["segmentation"], width, height) for thing in things]
            stacked = np.stack(masks) if masks else np.zeros((0, height, width), np.uint8)
            found["masks"] = torch.from_numpy(stacked)  # n x H x W
        return found


def mirror(pixels: Tensor, target: dict[str, Tensor]) -> Sample:
    """An image and its objects, left for right.

    >>> pixels, target = mirror(torch.arange(4.0).view(1, 1, 4), {"boxes": torch.tensor([[0.0, 0.0, 1.0, 1.0]])})
    >>> pixels.flatten().tolist(), target["boxes"].tolist()
    ([3.0, 2.0, 1.0, 0.0], [[3.0, 0.0, 4.0, 1.0]])
    """
    width = pixels.shape[-1]
    boxes = target["boxes"].clone()
    boxes[:, [0, 2]] = width - target["boxes"][:, [2, 0]]
    target = target | {"boxes": boxes}
    if "masks" in target:
        target["masks"] = target["masks"].flip(-1).contiguous()
    return pixels.flip(-1), target


def addresses(
    images: int, batch: int, seed: int, steps: range, rank: int = 0, world: int = 1
) -> Iterator[list[Address]]:
    """The samples of every step of a range: this process's share of an epoch's shuffle, the odd images left over.

    >>> list(addresses(3, 2, seed=0, steps=range(1, 2))) == list(addresses(3, 2, seed=0, steps=range(2)))[1:]
    True
    """
    a_pass = images // batch
    walk, walked = torch.empty(0, dtype=torch.int64), -1
    for step in steps:
        epoch, place = divmod(step, a_pass)
        if epoch != walked:
            walk, walked = order(seed, epoch, images), epoch
        rows = walk[place * batch : (place + 1) * batch]
        yield [(epoch, row) for row in rows[rank::world].tolist()]


class Stream:
    """Batches decoded ahead by worker processes, one list of addresses after another."""

    def __init__(self, samples: Samples, wanted: Iterable[list[Address]], workers: int, device: torch.device) -> None:
        self.loader = DataLoader(
            samples,
            batch_sampler=wanted,  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=list,
            pin_memory=device.type == "cuda",
        )
        self.device = device

    def __iter__(self) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
        """Pictures as floats from 0 to 1 and their targets, on the device."""
        for batch in self.loader:
            for sample in batch:
                if isinstance(sample, str):
                    raise PrelaxError(sample)
            yield (
                [pixels.to(self.device, non_blocking=True).float() / 255 for pixels, _ in batch],
                [{k: v.to(self.device, non_blocking=True) for k, v in target.items()} for _, target in batch],
            )
