"""Who is judged and on what: a frozen backbone, labelled training images, and test images it has never seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from prelax import augment
from prelax.collectives import alone, gather_shares, share
from prelax.config import DataSettings
from prelax.data import ImageSet, load, subset
from prelax.data.known import training_names
from prelax.data.memory import available_memory
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.evaluate.features import Preprocess, at_once, extract, finite, forward, frozen
from prelax.evaluate.labels import apart, digests_of, labelled, unseen, unseen_by_name
from prelax.loading import Loaded, pipelines_of
from prelax.nets.backbones import width_of
from prelax.nets.heads import MLP
from prelax.preprocess import Preprocess as Resized

BATCH = 2048  # images a forward pass; a frozen backbone in eval mode does not care which images share a batch
CACHE = 16 << 30  # bytes that sets of crops may take
ON_DEVICE = 0.4  # share of a card's free memory that pixels may take
LEAST = 0.08  # share of an image that a probe's crops go down to
ROOM = 0.5  # share of the free memory, where they are kept, that sets of crops may take


@dataclass
class Subject:
    """A backbone with the images it is judged on; features are computed once and kept."""

    backbone: nn.Module
    preprocess: Preprocess
    crops: augment.Pipeline  # crops and flips, for training images
    train: ImageSet
    test: ImageSet
    device: torch.device
    seed: int
    dropped: int | None = None  # test images left out because pre-training saw them; None: not compared
    verified: bool = False  # the run recorded what it was trained on, and these are those images
    known: bool = True  # so did the runs that its weights come from, if any
    doubles: int = 0  # test images left out because the probes are trained on them
    kept: dict[str, Tensor] = field(default_factory=dict)
    shared: bool = False  # features are computed in shares by all processes
    tell: Callable[[str], None] = lambda part: None  # called with how far a probe that takes minutes has come

    @property
    def classes(self) -> int:
        return len(self.train.classes)

    def labels(self, split: str) -> Tensor:
        labels = (self.train if split == "train" else self.test).labels
        assert labels is not None
        return labels.to(self.device)

    def features(self, split: str) -> Tensor:
        """Features of the images as they are, N x D."""
        if split not in self.kept:
            images = self.train.images if split == "train" else self.test.images
            self.kept[split] = self.extracted(images, self.preprocess)
        return self.kept[split]

    def extracted(self, images: Tensor, preprocess: Preprocess) -> Tensor:
        return extract(self.backbone, images, preprocess, device=self.device, batch_size=BATCH, shared=self.shared)

    def for_linear(self, view: str) -> tuple[Tensor, str]:
        """Features of the test images as a linear probe sees them, N x D, and how much of an image that is.

        The central 7/8 is the other half of a protocol whose probe is trained on random crops. Images larger than a
        view are seen so by all probes. Where pre-training keeps most of an image (digits, scans), so do the probe's
        crops, and it is judged by whole images.
        """
        plain = self.preprocess
        if isinstance(plain, Resized) and min(self.test.images.shape[2:]) > plain.size:
            return self.features("test"), "central 7/8"
        crop = next((op for op in self.crops.ops if isinstance(op, augment.Crop)), None)
        if view == "whole" or not isinstance(plain, Resized) or crop is None or crop.scale[0] > LEAST:
            return self.features("test"), "whole"
        if "centre" not in self.kept:
            self.kept["centre"] = self.extracted(self.test.images, replace(plain, centre=True))
        return self.kept["centre"], "central 7/8"

    def cropped(self, run: Callable[[Tensor], Tensor], pixels: Tensor, epoch: int) -> Tensor:
        """Features of the training images under an epoch's crops and flips, N x D; ``run`` is the frozen backbone."""
        found = []
        size = at_once(BATCH, pixels, self.device)
        mine = share(len(pixels), size) if self.shared else range(len(pixels))
        for start in range(mine.start, mine.stop, size):
            batch = pixels[start : min(start + size, mine.stop)].to(self.device, non_blocking=True)
            rows = torch.arange(start, start + len(batch), device=self.device)
            draws = Draws(self.seed, rows).at("probe", "crops", epoch)
            found.append(run(self.crops(batch, draws).images))
        whole = torch.cat(found) if found else None
        if self.shared:
            whole = gather_shares(whole, len(pixels), size)
        assert whole is not None
        return whole

    @torch.no_grad()
    def cached_crops(self, sets: int) -> Tensor:
        """Features of the training images under several sets of crops and flips, sets x N x D."""
        name = f"crops-{sets}"
        if name not in self.kept:
            with frozen(self.backbone.to(self.device)):
                run = forward(self.backbone, self.device)
                pixels = near(self.train.images, self.device)
                first = self.cropped(run, pixels, 0)
                banks = first.new_empty(sets, *first.shape)  # filled in place: stacking would hold everything twice
                for epoch in range(sets):
                    self.tell(f"crops {epoch + 1} of {sets}")
                    banks[epoch] = first if epoch == 0 else self.cropped(run, pixels, epoch)
                self.kept[name] = finite(banks)
        return self.kept[name]

    def sets_that_fit(self, wanted: int) -> int:
        """How many sets of crops can be kept, at most those wanted and at least one."""
        each = 4 * len(self.train) * width_of(self.backbone)
        room = CACHE if self.shared else min(CACHE, int(ROOM * free_memory(self.device)))  # shares must be of one mind
        return max(1, min(wanted, room // each))

    def only(self, rows: Tensor) -> Subject:
        """The same subject with some of the training images; what is known of them is kept."""
        kept = {name: value[rows.to(value.device)] if name == "train" else value for name, value in self.kept.items()}
        kept = {name: value for name, value in kept.items() if name in ("train", "test", "centre")}
        return replace(self, train=subset(self.train, rows), kept=kept)


def near(images: Tensor, device: torch.device) -> Tensor:
    """Pixels on the device when they fit there, else where they are."""
    if device.type != "cuda":
        return images
    return images.to(device) if images.numel() < ON_DEVICE * free_memory(device) else images


def free_memory(device: torch.device) -> int:
    """Bytes nobody uses on the device, or on the host."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def probe_crops(loaded: Loaded) -> augment.Pipeline:
    """The crops and flips that training images get in the paper's probe.

    Crops are of 8 to 100 % of the image, as in everybody's probe, unless pre-training itself kept more of it (digits,
    scans) or cropped nothing; images are mirrored only where pre-training mirrors them.
    """
    ops = pipelines_of(loaded.settings, loaded.channels, loaded.size)[0].ops
    crop = next(iter(augment.crops_of(ops)), augment.Crop(scale=(1.0, 1.0), ratio=(1.0, 1.0)))
    scale = (LEAST, 1.0) if crop.scale[0] <= 0.2 else crop.scale
    flips = [op for op in map(augment.bare, ops) if isinstance(op, augment.Flip)]
    normalise = augment.Normalise(loaded.preprocess.mean, loaded.preprocess.std)
    return augment.Pipeline([replace(crop, size=loaded.size, scale=scale), *flips, normalise])


def subject(loaded: Loaded, on: DataSettings | None = None, seed: int = 0, shared: bool = False) -> Subject:
    """A loaded backbone and the labelled images of a dataset (its own by default), no test image seen before."""
    own = loaded.settings.data
    target = on or own
    train, test = load(target, "train"), load(target, "test")
    target = target.model_copy(update={"range": train.range}) if target != own and train.range else target
    same = target == own and own.shards is None  # what a probe is trained on is what pre-training saw
    pretraining = train if same else pretraining_images(own, target)
    verified = pretraining is not None and same_images(loaded, pretraining, target)
    train, test = labelled(train, "training"), labelled(test, "test")
    if len(present := train.labels.unique()) < 2:  # type: ignore[union-attr]
        raise PrelaxError(
            f"all labelled images of {train.name} are of one class ({train.classes[int(present[0])]}): measuring needs "
            "two; use --on with another dataset, or `prelax embed`"
        )
    if train.images.shape[1] != loaded.channels:
        raise PrelaxError(
            f"{train.name} has {train.images.shape[1]} channel(s) and the backbone takes {loaded.channels}: "
            f"set data.channels={loaded.channels}"
        )
    dropped = None
    if (names := pretraining_names(own, target)) is not None:
        test, dropped = unseen_by_name(test, names)
    if pretraining is not None and pretraining.images.shape[1:] == test.images.shape[1:]:
        test, dropped = unseen(test, pretraining)
    before = loaded.seen_before()
    for earlier in before or []:
        if (found := without_earlier(test, earlier, target)) is None:
            before = None
        else:
            test, more = found
            dropped = (dropped or 0) + more
    test, doubles = (test, 0) if same else unseen(test, train, "among the training images")
    if (why := apart(train, test)) is not None:
        raise PrelaxError(f"{train.name}: {why}")
    return Subject(
        loaded.backbone,
        loaded.preprocess,
        probe_crops(loaded),
        train,
        test,
        loaded.device,
        seed,
        dropped,
        verified and before is not None,
        before is not None,
        doubles=doubles,
        shared=shared,
    )


def without_earlier(test: ImageSet, earlier: Mapping[str, Any], target: DataSettings) -> tuple[ImageSet, int] | None:
    """The test images that the weights a run began with had not seen, and how many they had; None: not known."""
    try:
        data = DataSettings.model_validate(earlier["data"])
        names = pretraining_names(data, target)
        whole = data.shards is None and digests_of(load(data, "train"))[0] == earlier["digest"]
        images = pretraining_images(data, target) if whole else None
    except (PrelaxError, ValueError, KeyError):
        return None  # they are not here any more
    if names is not None:
        return unseen_by_name(test, names)
    if whole and data.source != target.source and "folder" not in (data.source, target.source):
        return test, 0  # published, and other files
    return unseen(test, images) if images is not None and images.images.shape[1:] == test.images.shape[1:] else None


def same_images(loaded: Loaded, pretraining: ImageSet, target: DataSettings) -> bool:
    """Whether the images at hand are, by the run's own record (``data.json``), those it was trained on.

    A split that changed since (files added, another share held out) would put training images into the test set, and
    comparing with today's training images could not tell: it is refused. Without a record the answer is no.
    """
    record, own = loaded.path / "data.json", loaded.settings.data
    shapes = [(data.image_size, data.channels, data.range) for data in (target, own)]
    if not record.is_file() or shapes[0] != shapes[1]:
        return False
    try:
        recorded = str(json.loads(record.read_text(encoding="utf-8"))["digest"])
    except (ValueError, KeyError, TypeError):
        raise PrelaxError(
            f"{record} cannot be read; without it the test images cannot be told from training images: use --on "
            "with another dataset"
        ) from None
    if recorded != digests_of(pretraining)[0]:
        raise PrelaxError(
            f"the training images of {own.source} are not those {loaded.path} was trained on, so test images may be: "
            "restore the files and split it was trained with, or train again"
        )
    return True


def pretraining_images(own: DataSettings, target: DataSettings) -> ImageSet | None:
    """The images a backbone was trained on, decoded as the target's are, where they can hold its test images."""
    if own.shards is not None:
        return None  # nobody holds them all at once
    if target.source != own.source and "folder" not in (target.source, own.source):
        return None  # two published datasets: their pixels are not the same files (`pretraining_names`)
    try:
        alike = {"image_size": target.image_size, "channels": target.channels, "range": target.range}
        return load(own.model_copy(update=alike), "train")
    except PrelaxError:
        return None  # a backbone that came without its data


def pretraining_names(own: DataSettings, target: DataSettings) -> set[str] | None:
    """The names of the training files where two published datasets share photos: Imagenette is cut out of ImageNet.

    Its test photos are nearly all ImageNet's training photos, and some of its training photos are of ImageNet's val.
    """
    if {own.source, target.source} != {"imagenet", "imagenette"} or own.shards is not None:
        return None
    try:
        return training_names(own)
    except PrelaxError:
        return None  # a backbone that came without its data


def random_subject(of: Subject, loaded: Loaded) -> Subject:
    """The same task for random weights: the floor.

    BatchNorm takes its statistics from training images (no labels are used), which is worth several points. The paper's
    linear probes have a rate for networks trained long: random weights, and small networks, have more by ``logistic``.
    """
    net = settle_norms(loaded.fresh(of.seed), of)
    return replace(of, backbone=net, kept={})


def start_subject(of: Subject, loaded: Loaded) -> Subject | None:
    """The same task for the weights that a run began with, as they were; None where those were random."""
    net = loaded.begun()
    return replace(of, backbone=net, kept={}) if net is not None else None


@alone()
@torch.no_grad()
def settle_norms(net: nn.Module, of: Subject, images: int = 4096) -> nn.Module:
    """A network whose BatchNorms know the statistics of the training images."""
    rows = Draws(of.seed, rows=len(of.train)).bits("settle")[:, 0].argsort()[:images].sort().values
    parts = rows.chunk(math.ceil(len(rows) / 512))  # equal ones: each weighs the same
    return settled(net, (of.preprocess(of.train.images[index].to(of.device)) for index in parts))


@torch.no_grad()
def settled(net: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """A network whose BatchNorms know the statistics of batches, in eval mode."""
    norms = [part for part in net.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [part.momentum for part in norms]
    net.eval()  # nothing but the norms learns: a dropout would draw, and shift the statistics
    for part in norms:
        part.reset_running_stats()
        part.momentum = None  # a plain average over the batches
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | MLP):  # an MLP normalises in the place of its norms
            module.train()
    for batch in batches:
        if len(batch) > 1:
            net(batch)
    for part, momentum in zip(norms, momenta, strict=True):
        part.momentum = momentum
    return net.eval()
