"""What stands on a backbone: the projector that ends F, the predictor G, and the pretext heads H."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from prelax.config import ModelSettings
from prelax.nets.norm import normalise_views


class MLP(nn.Module):
    """Layers of Linear, BatchNorm and ReLU over views that keep their own statistics: V x B x in > V x B x out.

    A single view (B x in) gives B x out. ``last_norm`` ends with a BatchNorm without affine, as SimSiam's projector
    does; otherwise the last layer is a plain Linear.
    """

    def __init__(self, sizes: Sequence[int], last_norm: bool = False) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        last = len(pairs) - 1
        # A Linear followed by BatchNorm needs no bias: the mean takes it away.
        self.linears = nn.ModuleList(
            nn.Linear(a, b, bias=i == last and not last_norm) for i, (a, b) in enumerate(pairs)
        )
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(b, affine=i < last) for i, (_, b) in enumerate(pairs) if i < last or last_norm
        )

    def forward(self, x: Tensor, borrow: Sequence[int] | None = None) -> Tensor:
        single = x.ndim == 2
        x = x.unsqueeze(0) if single else x
        last = len(self.linears) - 1
        for i, linear in enumerate(self.linears):
            x = linear(x)
            if i < len(self.norms):
                norm = self.norms[i]
                if self.training:
                    x = normalise_views(x, norm, borrow)  # type: ignore[arg-type]
                else:
                    x = norm(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            if i < last:
                x = x.relu()
        return x.squeeze(0) if single else x


def projector(features: int, hidden: int, dim: int, layers: int = 3, last_norm: bool = True) -> MLP:
    """The end of F: backbone features to embeddings z."""
    return MLP([features, *[hidden] * (layers - 1), dim], last_norm=last_norm)


def projector_of(model: ModelSettings, features: int) -> MLP:
    """The projector of the settings, on a backbone of so many features."""
    hidden, dim = model.projector_hidden, model.projector_dim
    return projector(features, hidden, dim, model.projector_layers, model.projector_last_norm)


def predictor(dim: int, hidden: int) -> MLP:
    """G: embeddings z to predictions p of the other view's embedding."""
    return MLP([dim, hidden, dim])


def pretext_head(dim: int, width: int, hidden: int = 512, layers: int = 2) -> MLP:
    """H: a residual (or a feature) to ``width`` outputs, the sum of the targets' widths.

    The hidden layers have BatchNorm: a linear head on a raw residual (norm about 50) diverges.
    """
    return MLP([dim, *[hidden] * (layers - 1), width])
