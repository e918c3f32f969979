"""The terms of the paper's objectives, as plain functions of embeddings.

Squared distances are between unit vectors, as printed in the paper: ||p - z||^2 = 2 - 2 cos(p, z), between 0 and 4.
SimSiam's own loss is the mean of two negative cosines, a quarter of the sum of two such distances (less a constant):
``method.loss_scale`` brings whole objectives to that scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from prelax.collectives import rows_of_processes


def distance(p: Tensor, z: Tensor) -> Tensor:
    """Squared distance of two batches of vectors once both are of length one: B x D, B x D > B, in float32 or wider."""
    wide = torch.promote_types(p.dtype, torch.float32)
    return 2.0 - 2.0 * F.cosine_similarity(p.to(wide), z.to(wide), dim=-1, eps=1e-12)


def sim(p: Tensor, z: Tensor) -> Tensor:
    """Similarity loss (Eq. 1): a prediction against the other view's target.

    >>> sim(torch.eye(2), torch.eye(2)).item()
    0.0
    """
    return distance(p, z).mean()


def r2s(p1: Tensor, g_r: Tensor, z2: Tensor, alpha: float = 1.0) -> Tensor:
    """Residual relaxed similarity (Eq. 4): ||G(z1) - alpha G(r) - z2||^2.

    With the prediction of the relaxed view and the residual between it and the view it was made from, this is R3S.

    Args:
        p1: G(z1), B x D.
        g_r: G(r), B x D.
        z2: the target, B x D.
        alpha: 0 is exact alignment (plain similarity), 1 identity alignment.
    """
    return distance(p1 - alpha * g_r, z2).mean()


def margin(p: Tensor, z: Tensor, eta: float = 0.5) -> Tensor:
    """Margin-relaxed similarity (Eq. 9): a mismatch up to eta costs nothing."""
    return (distance(p, z) - eta).clamp_min(0.0).mean()


def nt_xent(q: Tensor, z: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR's loss from one view to the other: q_i must find z_i among all other q and z of the batch.

    NT-Xent is the mean of ``nt_xent(z1, z2)`` and ``nt_xent(z2, z1)``. With several processes the others' embeddings
    are gathered, with gradient.
    """
    q, z = F.normalize(q.float(), dim=-1), F.normalize(z.float(), dim=-1)
    all_q, all_z = rows_of_processes(q), rows_of_processes(z)
    here, first = torch.arange(q.shape[0], device=q.device), _first_row(q, all_q)
    among_z = q @ all_z.T / temperature  # B x N
    among_q = q @ all_q.T / temperature  # B x N
    mask = torch.zeros_like(among_q, dtype=torch.bool)
    mask[here, here + first] = True
    among_q = among_q.masked_fill(mask, float("-inf"))  # an embedding is not its own negative
    return F.cross_entropy(torch.cat([among_z, among_q], dim=1), here + first)


def looc(q: Tensor, key: Tensor, others: Sequence[Tensor], temperature: float = 0.5) -> Tensor:
    """LooC's loss in the space that keeps one augmentation: q must find the key that shares it.

    Among the image's other keys, which differ in that augmentation, and the keys of other images, those of other
    processes included (gathered with gradient).

    Args:
        q, key: B x D.
        others: the image's other keys, each B x D.
    """
    q, key = F.normalize(q.float(), dim=-1), F.normalize(key.float(), dim=-1)
    own = [(q * F.normalize(other.float(), dim=-1)).sum(-1, keepdim=True) for other in others]  # B x 1 each
    keys = rows_of_processes(key)
    logits = torch.cat([q @ keys.T, *own], dim=1) / temperature  # B x (N + others)
    return F.cross_entropy(logits, torch.arange(len(q), device=q.device) + _first_row(key, keys))


def _first_row(mine: Tensor, gathered: Tensor) -> int:
    """Where the rows of this process begin among those of all."""
    return dist.get_rank() * len(mine) if len(gathered) != len(mine) else 0
