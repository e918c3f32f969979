"""The handwritten digits that ship with scikit-learn: 1,797 grey images of 8 x 8, no download."""

from __future__ import annotations

import torch

from prelax.config import DataSettings
from prelax.data.images import ImageSet, fit
from prelax.draws import Draws

TEST_PER_CLASS = 50  # 500 test images, 1,297 for training


def load_digits(settings: DataSettings, split: str) -> ImageSet:
    """The digits, brought to 16 px unless told otherwise.

    scikit-learn gives no split, so here is one, the same everywhere: fifty images of each class, drawn with the fixed
    seed 0, are the test set and the other 1,297 the training set; both keep scikit-learn's order.
    """
    from sklearn import datasets

    bunch = datasets.load_digits()
    images = torch.from_numpy(bunch.images * (255 / 16)).round().byte()[:, None]  # N x 1 x 8 x 8, 0..16 to 0..255
    labels = torch.from_numpy(bunch.target).long()
    rank = Draws(0, len(labels)).at("digits").bits("split")[:, 0]
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        members = (labels == digit).nonzero()[:, 0]
        test[members[rank[members].argsort()[:TEST_PER_CLASS]]] = True
    rows = (test if split == "test" else ~test).nonzero()[:, 0]
    return ImageSet(
        name="digits",
        images=fit(images[rows], settings.image_size or 16, settings.channels, "digits"),
        labels=labels[rows],
        classes=[str(digit) for digit in range(10)],
    )
