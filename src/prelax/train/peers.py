"""The same SimSiam job as others run it: torchvision transforms or the lightly package, fed by a DataLoader.

Both make the views of the settings' preset, decode nothing (images are in memory), use every core for their transforms,
and train the same backbone, projector and predictor with SGD; on CUDA in bfloat16 and channels-last. What differs is
how the views are made and fed, and how the step is run.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from prelax import augment
from prelax.config import Settings
from prelax.errors import PrelaxError
from prelax.train.devices import choose_device
from prelax.train.views import plain_pipelines, size_of

PEERS = {
    "torchvision": "torchvision's transforms on PIL images, a DataLoader over all cores, an eager loop",
    "lightly": "the lightly package: its SimSiam transform, heads and loss, a DataLoader over all cores",
}


GIVEN: dict[str, type] = {  # what peers have, too
    "crop": augment.Crop,
    "flip": augment.Flip,
    "jitter": augment.Jitter,
    "grey": augment.Grey,
    "blur": augment.Blur,
    "solarise": augment.Solarise,
    "normalise": augment.Normalise,
}


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Two views of images that lie in memory."""

    def __init__(self, count: int, side: int, transform: Callable[[Image.Image], Any]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (256, side, side, 3), dtype=torch.uint8, generator=generator).numpy()
        self.count, self.transform = count, transform

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        views = self.transform(Image.fromarray(self.pixels[index % 256]))
        return views[0], views[1]


class Two:
    """Two views of an image, each by its own transform."""

    def __init__(self, one: Callable[[Image.Image], Tensor], two: Callable[[Image.Image], Tensor]) -> None:
        self.one, self.two = one, two

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        return self.one(image), self.two(image)


def installed() -> list[str]:
    """The peers this machine has."""
    return [name for name in PEERS if name == "torchvision" or importlib.util.find_spec(name)]


def bench_peer(name: str, settings: Settings, seconds: float = 5.0, workers: int | None = None) -> dict[str, Any]:
    """A row like those of ``prelax.train.bench.bench``: views a second of a peer on the settings' SimSiam."""
    device = choose_device(settings.train.device)
    side, batch = views_side(settings), settings.train.batch_size
    workers = os.cpu_count() or 1 if workers is None else workers
    transform = transform_of(name, settings, side)
    loader = DataLoader(
        Pairs(batch * 10_000, side, transform),
        batch,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        pin_memory=device.type == "cuda",
    )
    net = network(name, settings, side).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate = settings.train.lr * batch / 256
    optimizer = torch.optim.SGD(
        net.parameters(), rate, settings.train.momentum, weight_decay=settings.train.weight_decay
    )
    batches: Iterator[tuple[Tensor, Tensor]] = iter(loader)

    def step() -> None:
        one, two = (v.to(device, memory_format=torch.channels_last, non_blocking=True) for v in next(batches))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            (z1, p1), (z2, p2) = net(one), net(two)
        loss = -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(3):  # workers start, algorithms are chosen
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or steps < 3:
        step()
        steps += 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    each = (time.perf_counter() - start) / steps
    return {
        "mode": name,
        "method": "simsiam",
        "backbone": settings.model.backbone,
        "image_size": side,
        "batch": batch,
        "views": 2,
        "ms_per_step": round(each * 1e3, 3),
        "views_per_s": round(2 * batch / each, 1),
        "workers": workers,
    }


def views_side(settings: Settings) -> int:
    """The side of the views, and of the images they are made of."""
    side = settings.augment.size or settings.data.image_size or 32
    return size_of(plain_pipelines(settings, 3, side)[0], side) if ":" in settings.augment.preset else side


def transform_of(name: str, settings: Settings, side: int) -> Two:
    """The two views of the settings, as the peer makes them; refuses a user's own preset of which it has not all."""
    one, two = plain_pipelines(settings, 3, side)
    for op in (*one.ops, *two.ops) if ":" in settings.augment.preset else ():
        if not isinstance(op, GIVEN.get(op.name, ())):
            raise PrelaxError(f"{name} is not given {op.name}, which augment.preset={settings.augment.preset} does")
    return Two(view_of(name, one, side), view_of(name, two, side))


def view_of(name: str, pipeline: augment.Pipeline, side: int) -> Callable[[Image.Image], Tensor]:
    """A pipeline's crop, flip, colours, blur and solarisation in the peer's own transforms; it is given no others."""
    ops: dict[str, Any] = {op.name: op for op in pipeline.ops}
    crop, normalise = ops.get("crop"), ops.get("normalise")
    if crop is None or normalise is None:
        raise PrelaxError(f"{name} is measured with views that are cropped and normalised")
    chance = {of: ops[of].p if of in ops else 0.0 for of in ("flip", "jitter", "grey", "blur", "solarise")}
    brightness, contrast, saturation, hue = (
        float(getattr(ops.get("jitter"), of, 0.0)) for of in ("brightness", "contrast", "saturation", "hue")
    )
    if name == "lightly":
        from lightly.transforms import BYOLView2Transform  # of lightly's views the one that has all of these

        return BYOLView2Transform(
            side,
            cj_prob=chance["jitter"],
            cj_bright=brightness,
            cj_contrast=contrast,
            cj_sat=saturation,
            cj_hue=hue,
            min_scale=crop.scale[0],
            random_gray_scale=chance["grey"],
            gaussian_blur=chance["blur"],
            solarization_prob=chance["solarise"],
            hf_prob=chance["flip"],
            normalize={"mean": list(normalise.mean), "std": list(normalise.std)},
        )
    return T.Compose(
        [
            T.RandomResizedCrop(side, crop.scale),
            T.RandomHorizontalFlip(chance["flip"]),
            T.RandomApply([T.ColorJitter(brightness, contrast, saturation, hue)], chance["jitter"]),
            T.RandomGrayscale(chance["grey"]),
            T.RandomApply([T.GaussianBlur(side // 20 * 2 + 1, (0.1, 2.0))], chance["blur"]),
            T.RandomSolarize(128, chance["solarise"]),
            T.ToTensor(),
            T.Normalize(normalise.mean, normalise.std),
        ]
    )


class Siamese(nn.Module):
    """A backbone with SimSiam's two heads: images to (z, p)."""

    def __init__(self, body: nn.Module, projector: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.body, self.projector, self.predictor = body, projector, predictor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projector(self.body(x))
        return z, self.predictor(z)


def network(name: str, settings: Settings, side: int) -> nn.Module:
    """The settings' network in the peer's own parts."""
    model = settings.model
    hidden, dim, inner = model.projector_hidden, model.projector_dim, model.predictor_hidden
    if model.backbone == "resnet8":
        from prelax.nets import ResNet8

        body: nn.Module = ResNet8(3)
        features = 64
    else:
        body = getattr(torchvision.models, model.backbone)(weights=None)
        features = int(body.fc.in_features)  # type: ignore[union-attr, arg-type]
        body.fc = nn.Identity()
        if model.stem == "small" or (model.stem == "auto" and side <= 64):
            body.conv1, body.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    if name == "lightly":
        from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead

        return Siamese(body, SimSiamProjectionHead(features, hidden, dim), SimSiamPredictionHead(dim, inner, dim))
    sizes = [features, *[hidden] * (model.projector_layers - 1), dim]
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b, affine=not last), *([] if last else [nn.ReLU()])]
    guess = nn.Sequential(nn.Linear(dim, inner, bias=False), nn.BatchNorm1d(inner), nn.ReLU(), nn.Linear(inner, dim))
    return Siamese(body, nn.Sequential(*layers), guess)
