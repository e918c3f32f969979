"""Regularised linear models on features, fitted to the optimum: what few labels and small probes need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from prelax.draws import Draws

MANY = 10_000
GRID = (1e-1, 1e-2, 1e-3, 1e-4)  # strongest first: each fit starts where the one before ended


@dataclass(frozen=True)
class Linear:
    """A linear map of standardised features."""

    mean: Tensor  # D
    std: Tensor  # D
    weight: Tensor  # outputs x D
    bias: Tensor  # outputs
    l2: float

    def __call__(self, features: Tensor) -> Tensor:
        """N x D -> N x outputs"""
        return F.linear((features - self.mean) / self.std, self.weight, self.bias)


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature; 1 for one that never varies, so that it stays 0."""
    std, mean = torch.std_mean(features, dim=0, correction=0)
    return mean, torch.where(std > 1e-8, std, torch.ones_like(std))


def fit_logistic(
    features: Tensor, labels: Tensor, classes: int, l2: float, start: Linear | None = None, tolerance: float = 1e-5
) -> Linear:
    """The multinomial logistic regression that minimises mean cross entropy + l2/2 |W|^2, by full-batch L-BFGS.

    scikit-learn's ``LogisticRegression(C=1 / (l2 * N))`` on standardised features is the same model.
    """
    mean, std = moments(features)
    x, labels = (features - mean) / std, labels.to(features.device)
    size = features.shape[1]
    if start is None:
        weight, bias = x.new_zeros(classes, size), x.new_zeros(classes)
    else:
        weight, bias = start.weight.clone(), start.bias.clone()
    weight.requires_grad_(True)
    bias.requires_grad_(True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=300, tolerance_grad=tolerance, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(F.linear(x, weight, bias), labels) + 0.5 * l2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)  # type: ignore[arg-type]
    return Linear(mean, std, weight.detach(), bias.detach(), l2)


def choose_logistic(
    features: Tensor, labels: Tensor, classes: int, seed: int = 0, grid: Sequence[float] = GRID, folds: int = 3
) -> Linear:
    """The logistic regression whose l2 does best in stratified cross-validation on these images alone (on one fold of
    many images).

    Best is the likelihood of the held-out labels: with few images accuracy is too coarse and often ties.
    The only image of a class is always trained on; where every class has only one there is nothing to validate on,
    and the middle of the grid is taken.
    """
    labels = labels.to(features.device)
    count = torch.bincount(labels, minlength=classes)
    several = count[labels] > 1
    if not several.any():
        return fit_logistic(features, labels, classes, sorted(grid)[len(grid) // 2])
    likelihood = torch.zeros(len(grid), dtype=torch.float64)
    fold = torch.full_like(labels, -1)
    fold[several] = stratified_folds(labels[several], min(folds, int(count[count > 1].min())), seed)
    # Among thousands of images one fold tells the penalties apart as well as all of them do.
    for held in range(1 if len(labels) >= MANY else int(fold.max()) + 1):
        train, test = fold != held, fold == held
        model = None
        for row, l2 in enumerate(grid):
            model = fit_logistic(features[train], labels[train], classes, l2, model, tolerance=1e-3)
            likelihood[row] -= float(F.cross_entropy(model(features[test]), labels[test], reduction="sum"))
    return fit_logistic(features, labels, classes, grid[int(likelihood.argmax())])


def stratified_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """A fold for every image; each class is spread over all of them as evenly as it goes."""
    rank = Draws(seed, rows=len(labels), device=labels.device).bits("fold")[:, 0].argsort()
    by_class = rank[labels[rank].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels), device=labels.device) % folds
    return fold


def fit_ridge(features: Tensor, targets: Tensor, l2: float) -> Linear:
    """The linear regression that minimises mean squared error + l2 |W|^2, exactly.  N x D, N x T"""
    mean, std = moments(features)
    x = ((features - mean) / std).double()
    centre = targets.double().mean(0)
    gram = x.T @ x / len(x)
    gram.diagonal().add_(l2)
    weight = torch.linalg.solve(gram, x.T @ (targets.double() - centre) / len(x)).T  # T x D
    return Linear(mean, std, weight.to(features.dtype), centre.to(features.dtype), l2)


def r2(predicted: Tensor, targets: Tensor) -> Tensor:
    """The share of each target's variance that is predicted; 0 is as good as its mean, below is worse.  N x T -> T"""
    left = (targets - predicted).square().sum(0)
    return 1.0 - left / (targets - targets.mean(0)).square().sum(0).clamp_min(1e-12)
