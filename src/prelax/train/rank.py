"""Over how many directions embeddings spread."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def effective_rank(z: Tensor) -> float:
    """Over how many directions embeddings spread: exp of the entropy of their covariance's spectrum.

    >>> round(effective_rank(torch.eye(4)), 3)  # centred, four points span three directions
    3.0
    """
    z = z.double() - z.double().mean(dim=0)
    gram = z @ z.T if z.shape[0] <= z.shape[1] else z.T @ z
    if not torch.isfinite(gram).all():
        return math.nan
    values = torch.linalg.eigvalsh(gram).clamp_min(0)
    share = values / values.sum().clamp_min(1e-300)
    share = share[share > 0]
    return float(torch.exp(-(share * share.log()).sum()))
