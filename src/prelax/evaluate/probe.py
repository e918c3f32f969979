"""The probes of a frozen backbone: kNN, linear by the paper and fast, and both with few labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prelax.augment import Flip
from prelax.config import EvaluateSettings, Settings
from prelax.data import ImageSet
from prelax.evaluate.features import extract, finite, forward, frozen
from prelax.evaluate.knn import accuracy, knn_accuracy
from prelax.evaluate.labels import few, labelled
from prelax.evaluate.linear import LINEAR, Probes, Protocol, Score, score, train_probes
from prelax.evaluate.logistic import choose_logistic
from prelax.evaluate.subject import Subject, near
from prelax.loading import preprocess_of

SETS = (8, 40)  # sets of crops the fast probe caches: of many images few, of few images many
CROPS = 200_000  # of all sets together, between those bounds


@dataclass(frozen=True)
class Outcome:
    """What a probe found: accuracies over its seeds, and how it was made."""

    score: Score
    settings: dict[str, Any]
    seeds: list[int] = field(default_factory=list)


def neighbours(asked: int, images: int) -> int:
    """How many vote: at most a tenth of the images, or the largest class would win in a small set.

    >>> neighbours(200, 50_000), neighbours(200, 168), neighbours(200, 5)
    (200, 16, 1)
    """
    return min(asked, max(1, images // 10))


def knn(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int] = ()) -> Outcome:
    """kNN on the features as they are; nothing is drawn."""
    k = neighbours(settings.knn_k, len(subject.train))
    found = _vote(subject, k, settings.knn_temperature)
    return Outcome(
        Score([found]), {"k": k, "asked_k": settings.knn_k, "T": settings.knn_temperature, "metric": "cosine"}
    )


def _vote(subject: Subject, k: int, temperature: float) -> float:
    return knn_accuracy(
        subject.features("train"),
        subject.labels("train"),
        subject.features("test"),
        subject.labels("test"),
        k,
        temperature,
        subject.classes,
    )


def train_linear(subject: Subject, protocol: Protocol, seeds: Sequence[int]) -> Probes:
    """The paper's linear probes: new crops and flips of the training images every epoch, the backbone frozen."""
    with frozen(subject.backbone.to(subject.device)), torch.no_grad():
        run = forward(subject.backbone, subject.device)
        pixels = near(subject.train.images, subject.device)

        def features(epoch: int) -> Tensor:
            subject.tell(f"epoch {epoch + 1} of {protocol.epochs}")
            found = subject.cropped(run, pixels, epoch)
            return finite(found) if epoch == 0 else found  # asking waits for the device: once is enough

        return train_probes(features, subject.labels("train"), subject.classes, protocol, seeds)


def linear(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int]) -> Outcome:
    """The paper's linear probe, to the letter."""
    protocol = LINEAR[settings.linear]
    probes = train_linear(subject, protocol, seeds)
    features, seen = subject.for_linear(settings.linear_view)
    found = score(probes.predict(features), subject.labels("test"))
    return Outcome(found, {**about(protocol, settings.linear), "test_images_seen": seen}, list(seeds))


def linear_tta(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int]) -> Outcome:
    """The paper's linear probe with test-time augmentation: logits averaged over several crops and mirror images."""
    protocol = LINEAR[settings.linear]
    probes = train_linear(subject, protocol, seeds)
    views = tta_views(subject)
    # The classifier is linear: the mean of the logits is the logits of the mean feature.
    features = torch.stack([view() for view in views]).mean(0)  # N x D
    found = score(probes.predict(features), subject.labels("test"))
    return Outcome(found, {**about(protocol, settings.linear), "test_views": len(views)}, list(seeds))


def tta_views(subject: Subject) -> list[Callable[[], Tensor]]:
    """Features of the test images whole, in five boxes of 7/8 of the side, and mirrored where crops are mirrored."""
    images = subject.test.images
    side = min(images.shape[2:])
    size = min(side, getattr(subject.preprocess, "size", side))  # the preprocessing cuts nothing off images of its size
    box = round(side * 7 / 8)
    room = side - box
    corners = [None, (0, 0), (0, room), (room, 0), (room, room), (room // 2, room // 2)]
    mirrors = [False, True] if any(isinstance(op, Flip) and not op.vertical for op in subject.crops.ops) else [False]

    def view(corner: tuple[int, int] | None, mirror: bool) -> Tensor:
        def prepare(pixels: Tensor) -> Tensor:
            if corner is not None:
                top, left = corner
                pixels = pixels[:, :, top : top + box, left : left + box]
            if pixels.shape[2:] != (size, size):
                pixels = F.interpolate(pixels.float(), (size, size), mode="bilinear", antialias=True).round().byte()
            return subject.preprocess(pixels.flip(-1) if mirror else pixels)

        return subject.extracted(images, prepare)

    return [partial(view, corner, mirror) for corner in corners for mirror in mirrors]


def linear_fast(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int], sets: int | None = None) -> Outcome:
    """The paper's linear probe on cached features: a few sets of crops take turns instead of new ones every epoch."""
    protocol = LINEAR[settings.linear]
    sets = subject.sets_that_fit(sets or sets_for(len(subject.train)))
    banks = subject.cached_crops(sets)
    probes = train_probes(lambda epoch: banks[epoch % sets], subject.labels("train"), subject.classes, protocol, seeds)
    features, seen = subject.for_linear(settings.linear_view)
    found = score(probes.predict(features), subject.labels("test"))
    said = {**about(protocol, settings.linear), "test_images_seen": seen, "cached_sets": sets}
    return Outcome(found, said, list(seeds))


def sets_for(images: int) -> int:
    """How many sets of crops stand in for new ones every epoch.

    Of 5,000 images 8 sets were 0.2 to 0.6 points off, by which crops they happened to hold; 40 were under 0.3.

    >>> [sets_for(images) for images in (50_000, 8_000, 1_000)]
    [8, 25, 40]
    """
    least, most = SETS
    return max(least, min(most, CROPS // max(images, 1)))


def about(protocol: Protocol, name: str) -> dict[str, Any]:
    """A protocol as a result prints it."""
    said = {**asdict(protocol), "protocol": name, "reported": f"epoch {protocol.epochs}, the last"}
    said["milestones"] = list(protocol.milestones) if protocol.milestones else "cosine"
    return said


def over_few(
    subject: Subject,
    seeds: Sequence[int],
    share: float | None,
    per_class: int | None,
    probe: Callable[[Subject, int], float],
) -> tuple[Score, int]:
    """A probe's accuracy over draws of a few training images, and how many they are."""
    found, count = [], 0
    for seed in seeds:
        rows = few(subject.labels("train"), share=share, per_class=per_class, seed=seed)
        found.append(probe(subject.only(rows), seed))
        count = len(rows)
    return Score(found), count


def knn_few(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int], per_class: int = 10) -> Outcome:
    """kNN with a few labels a class, over draws of which; k is at most the labels a class has."""
    subject.features("train")
    k = min(settings.knn_k, per_class)

    def probe(few_labels: Subject, seed: int) -> float:
        return _vote(few_labels, min(k, len(few_labels.train)), settings.knn_temperature)

    found, count = over_few(subject, seeds, None, per_class, probe)
    said = {"k": k, "T": settings.knn_temperature, "metric": "cosine", "labels_per_class": per_class, "labels": count}
    return Outcome(found, said, list(seeds))


def logistic(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int] = ()) -> Outcome:
    """Logistic regression on all labels, fitted to the optimum: no learning rate to be wrong for small or odd data."""
    model = choose_logistic(subject.features("train"), subject.labels("train"), subject.classes, subject.seed)
    found = accuracy(model(subject.features("test")).argmax(1), subject.labels("test"))
    return Outcome(Score([found]), {"l2": model.l2, "fit": "L-BFGS to the optimum, L2 by cross-validation"})


def linear_few(subject: Subject, settings: EvaluateSettings, seeds: Sequence[int], share: float) -> Outcome:
    """Logistic regression on a stratified share of the labels; its L2 is cross-validated on those labels alone."""
    subject.features("train")
    chosen: list[float] = []

    def probe(few_labels: Subject, seed: int) -> float:
        model = choose_logistic(few_labels.features("train"), few_labels.labels("train"), subject.classes, seed)
        chosen.append(model.l2)
        return accuracy(model(subject.features("test")).argmax(1), subject.labels("test"))

    found, count = over_few(subject, seeds, share, None, probe)
    return Outcome(found, {"share": share, "labels": count, "l2": chosen, "fit": "L-BFGS to the optimum"}, list(seeds))


def backbone_knn(
    backbone: nn.Module,
    settings: Settings,
    train: ImageSet,
    test: ImageSet,
    device: torch.device | str,
    shared: bool = False,
) -> float:
    """The kNN accuracy of a backbone in training, on its own data; draws nothing and leaves it as it was."""
    train, test = labelled(train), labelled(test)
    preprocess = preprocess_of(settings, train.images.shape[1], train.images.shape[-1])

    def features(images: Tensor) -> Tensor:
        return extract(backbone, images, preprocess, device=device, shared=shared)

    assert train.labels is not None
    assert test.labels is not None
    return knn_accuracy(
        features(train.images),
        train.labels,
        features(test.images),
        test.labels,
        neighbours(settings.evaluate.knn_k, len(train)),
        settings.evaluate.knn_temperature,
        len(train.classes),
    )
