"""k nearest neighbours: the proof that needs no training and no randomness."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 1 << 26  # floats a chunk may hold: 256 MiB


@torch.no_grad()
def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int = 200,
    temperature: float = 0.1,
    classes: int | None = None,
) -> Tensor:
    """The class of each test image by the votes of its k nearest training images, each weighing exp(cosine / T).

    k above the number of training images is that number. Works in chunks on the device of the features.

    >>> train = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> knn_predict(train, torch.tensor([0, 0, 1]), torch.tensor([[2.0, 0.1], [0.1, 5.0]]), k=1)
    tensor([0, 1])
    """
    classes = classes or int(train_labels.max()) + 1
    k = min(k, len(train_features))
    bank = F.normalize(train_features.float(), dim=1)  # N x D
    labels = train_labels.to(bank.device)
    rows = max(1, CHUNK // max(len(bank), k * classes))
    answers = []
    for queries in F.normalize(test_features.float(), dim=1).split(rows):
        cosine, nearest = (queries @ bank.T).topk(k, dim=1)  # B x k
        weight = torch.exp((cosine - cosine[:, :1]) / temperature)  # the best weighs 1: no overflow at a small T
        # A product with one-hot rows, not scatter_add: the order of a sum must not depend on the run.
        votes = weight[:, None] @ F.one_hot(labels[nearest], classes).to(weight.dtype)  # B x 1 x classes
        answers.append(votes[:, 0].argmax(dim=1))
    return torch.cat(answers)


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 200,
    temperature: float = 0.1,
    classes: int | None = None,
) -> float:
    """Percent of test images whose class their k nearest training images vote for; light enough for a training loop.

    >>> train = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> knn_accuracy(train, torch.tensor([0, 1]), torch.tensor([[3.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]), k=1)
    50.0
    """
    predicted = knn_predict(train_features, train_labels, test_features, k, temperature, classes)
    return accuracy(predicted, test_labels)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent right, every image counting the same (never a mean of batch means)."""
    right = (predicted == labels.to(predicted.device)).sum().item()
    return 100.0 * right / len(labels)
