"""Where images lie for a network: a stratified sample, a t-SNE map, nearest neighbours."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from prelax.draws import Draws

NEAREST = 15  # the paper's retrieval figure


def sample(labels: Tensor | None, total: int, points: int, seed: int = 0) -> Tensor:
    """Rows of a set, at most ``points``, with every class in its own share; in order, the same for the same seed.

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> torch.bincount(labels[sample(labels, 100, 20)]).tolist()
    [18, 2]
    """
    if total <= points:
        return torch.arange(total)
    order = Draws(seed, total).at("report").bits("sample")[:, 0].argsort()  # a shuffle
    if labels is None:
        return order[:points].sort().values
    # Rank of each image inside its class, as a share of the class: the smallest shares are a stratified sample.
    shuffled = labels.cpu()[order]
    share = torch.empty(total)
    for label in shuffled.unique():
        rows = (shuffled == label).nonzero()[:, 0]
        share[rows] = (torch.arange(len(rows)) + 0.5) / len(rows)
    return order[share.argsort(stable=True)[:points]].sort().values


def nearest(features: Tensor, k: int = NEAREST) -> Tensor:
    """The k nearest other rows of each row by cosine, nearest first, at most half of them: N x k."""
    from prelax.evaluate.retrieval import looked_at
    from prelax.evaluate.retrieval import nearest as search

    return search(features, features, looked_at(len(features), k), skip_self=True)[1].cpu()


def agreement(labels: Tensor, neighbours: Tensor) -> float | None:
    """Per cent of neighbours that share their query's label, where both labels are known; None of one class or none."""
    if len(labels[labels >= 0].unique()) < 2:
        return None  # every neighbour would be right
    known = (labels >= 0)[:, None] & (labels[neighbours] >= 0)
    if not bool(known.any()):
        return None
    same = labels[neighbours] == labels[:, None]
    return 100.0 * float(same[known].float().mean())


def tsne(features: Tensor, seed: int = 0) -> NDArray:
    """Places in [0, 1] x [0, 1] by t-SNE (PCA to 50 first); the same for the same features and seed: N x 2."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    unit = F.normalize(features.float(), dim=1).cpu().numpy()  # cosine is what the neighbours go by
    count = len(unit)
    if count < 5:  # too few for a perplexity
        angle = np.arange(count) * (2 * np.pi / max(count, 1))
        return 0.5 + 0.4 * np.stack([np.cos(angle), np.sin(angle)], 1)
    if min(unit.shape) > 50:
        unit = PCA(50, random_state=seed, svd_solver="randomized").fit_transform(unit)
    perplexity = min(30.0, (count - 1) / 3)
    flat = float(np.ptp(unit, axis=0).max()) < 1e-6  # a collapsed network: one place for all
    places = (
        np.zeros((count, 2))
        if flat
        else TSNE(2, perplexity=perplexity, init="pca", random_state=seed, max_iter=750).fit_transform(unit)
    )
    places = places - places.mean(0)
    places = (
        places @ np.linalg.svd(places, full_matrices=False)[2].T
    )  # the long side lies flat: a page is wider than high
    middle = (places.max(0) + places.min(0)) / 2
    reach = float((places.max(0) - places.min(0)).max()) or 1.0  # one scale for both axes
    return (places - middle) / reach + 0.5
