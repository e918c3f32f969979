"""Which labelled images an evaluation may use: those with a label, a stratified few, and none seen in pre-training."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import PurePosixPath

import torch
from torch import Tensor

from prelax.data.images import ImageSet, fingerprints, subset
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.whole import replacing


def labelled(images: ImageSet, split: str = "") -> ImageSet:
    """The images of a set that have a label."""
    if images.labels is None or not bool((images.labels >= 0).any()):
        of = f" {split} images of" if split else " images of"
        if images.unlabelled:
            raise PrelaxError(
                f"none of the {len(images)}{of} {images.name} has a label to evaluate with: {images.unlabelled}"
            )
        how = "FILE.npy (one an image)" if images.name.lower().endswith(".npy") else "FILE.csv (path,label)"
        raise PrelaxError(
            f"none of the {len(images)}{of} {images.name} has a label to evaluate with; give them with "
            f"--labels {how}, use --on with a labelled dataset, or `prelax embed`"
        )
    known = images.labels >= 0
    return images if bool(known.all()) else subset(images, known.nonzero()[:, 0])


def obstacle(train: ImageSet, test: ImageSet) -> str:
    """Why nothing can be measured by the labels of these images, in a line; nothing where it can."""
    for images, split in ((train, "training"), (test, "test")):
        if images.labels is None or not bool((images.labels >= 0).any()):
            return f"none of the {len(images)} {split} images has a label"
    assert train.labels is not None
    present = train.labels[train.labels >= 0].unique()
    if len(present) < 2:
        return f"all labelled images are of one class ({train.classes[int(present[0])]}), and measuring needs two"
    return apart(train, test) or ""


def apart(train: ImageSet, test: ImageSet) -> str | None:
    """That no class of the test images has training images, in a line: none of them could be recognised."""
    assert train.labels is not None
    assert test.labels is not None
    trained, tested = (set(labels[labels >= 0].tolist()) for labels in (train.labels, test.labels))
    if trained & tested:
        return None
    theirs, others = ", ".join(first_of(test, tested)), ", ".join(first_of(train, trained))
    return f"the test images are of other classes ({theirs}) than the training images ({others}): none can be right"


def first_of(images: ImageSet, labels: set[int], most: int = 3) -> list[str]:
    """The names of a few classes, and that there are more."""
    names = [images.classes[label] for label in sorted(labels)]
    return names if len(names) <= most else [*names[:most], "…"]


def unseen(test: ImageSet, others: ImageSet, where: str = "in pre-training") -> tuple[ImageSet, int]:
    """The test images that are not among others (those of pre-training), pixel for pixel, and how many were left out.

    Refuses a test set that is mostly training images: that is a wrong split, not a stray duplicate.
    """
    if test.images.shape[1:] != others.images.shape[1:]:
        raise PrelaxError("images of different sizes cannot be compared pixel for pixel; decode them alike")
    seen = set(fingerprints(test.images))
    seen &= {digest for part in others.images.split(8192) for digest in fingerprints(part)}
    if not seen:
        return test, 0
    return _without(test, [digest in seen for digest in fingerprints(test.images)], where)


def unseen_by_name(test: ImageSet, names: set[str]) -> tuple[ImageSet, int]:
    """The same where the same photo has the same file name in both sets, but other pixels (another size)."""
    return _without(test, [PurePosixPath(path).stem in names for path in test.paths or []])


def _without(test: ImageSet, seen: list[bool], where: str = "in pre-training") -> tuple[ImageSet, int]:
    kept, dropped = ~torch.tensor(seen, dtype=torch.bool), sum(seen)
    if not dropped:
        return test, 0
    if 2 * dropped > len(test):
        raise PrelaxError(
            f"{dropped} of the {len(test)} test images of {test.name} were {where}; "
            "give a test set that was not (data.test_root, data.test_fraction)"
        )
    return subset(test, kept.nonzero()[:, 0]), dropped


def digest(images: Tensor) -> str:
    """A hash of a set of images, whatever their order: what a run was trained on, to be compared later.

    >>> pixels = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
    >>> digest(pixels) == digest(pixels.flip(0)), digest(pixels) == digest(pixels[:1])
    (True, False)
    """
    return _digests(images)[0]


def _digests(images: Tensor) -> tuple[str, str]:
    """The same, and one that the order of the images changes."""
    each = [one for part in images.split(8192) for one in fingerprints(part)]
    in_order = hashlib.blake2b(b"".join(each), digest_size=16).hexdigest()
    return hashlib.blake2b(b"".join(sorted(each)), digest_size=16).hexdigest(), in_order


def digests_of(images: ImageSet) -> tuple[str, str]:
    """The `digest` of a set and one of its order; of a cached set they are kept beside the pixels while these stay.

    Whoever trains goes by the order too: the numbers of the images decide every draw.
    """
    if images.file is None:
        return _digests(images.images)
    kept = images.file.with_name("digest.txt")
    written = str(images.file.stat().st_mtime_ns)
    try:
        since, count, found, in_order = kept.read_text().split()
        if (since, count) == (written, str(len(images))) and all(
            re.fullmatch("[0-9a-f]{32}", one) for one in (found, in_order)
        ):
            return found, in_order
    except (OSError, ValueError):
        pass  # not kept yet
    found, in_order = _digests(images.images)
    with contextlib.suppress(OSError), replacing(kept) as temporary:
        temporary.write_text(f"{written} {len(images)} {found} {in_order}")
    return found, in_order


def few(labels: Tensor, *, share: float | None = None, per_class: int | None = None, seed: int = 0) -> Tensor:
    """Rows of a stratified few: a share of every class (at least one image), or so many images of each.

    >>> labels = torch.tensor([0] * 100 + [1] * 50)
    >>> labels[few(labels, share=0.1)].bincount().tolist()
    [10, 5]
    """
    if (share is None) == (per_class is None):
        raise PrelaxError("few labels: give either a share or a number per class")
    if share is not None and not 0.0 < share <= 1.0:
        raise PrelaxError(f"few labels: a share is above 0 and at most 1, got {share:g}")
    if per_class is not None and per_class < 1:
        raise PrelaxError(f"few labels: at least one image a class, got {per_class}")
    labels = labels.cpu()
    rank = Draws(seed, rows=len(labels)).at("few").bits("rank")[:, 0]
    rows = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        wanted = per_class if per_class is not None else max(1, round((share or 0.0) * len(members)))
        rows.append(members[rank[members].argsort()[:wanted]])
    return torch.cat(rows).sort().values
