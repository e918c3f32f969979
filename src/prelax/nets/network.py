"""Everything with weights that a method trains: backbone, projector, predictor, pretext heads, and the target."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from prelax.config import ModelSettings
from prelax.nets.backbones import backbone, width_of
from prelax.nets.heads import MLP, predictor, pretext_head, projector_of
from prelax.nets.norm import keeps_views_apart, set_views


class Encoder(nn.Module):
    """F: a backbone and its projector."""

    def __init__(self, body: nn.Module, head: MLP) -> None:
        super().__init__()
        self.backbone = body
        self.projector = head

    def features(self, images: Tensor, views: int, together: bool) -> Tensor:
        """Backbone features of views that follow one another in a batch: (V B) x C x H x W > V x B x features.

        Args:
            together: send all views through as one batch (fast on a GPU) rather than one after another; the
                normalisation statistics are per view either way.
        """
        if together and views > 1 and keeps_views_apart(self.backbone):
            set_views(self.backbone, views)
            return self.backbone(images).unflatten(0, (views, -1))
        set_views(self.backbone, 1)
        return torch.stack([self.backbone(part) for part in images.chunk(views)])

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings z of a batch of single images: B x C x H x W > B x D."""
        set_views(self.backbone, 1)
        return self.projector(self.backbone(images))


class Network(nn.Module):
    """Backbone and projector (F), predictor (G), pretext heads (H), and the target that is followed.

    Args:
        model: sizes.
        channels, image_size: of the views.
        heads: the pretext heads by name, ``{"pl": ("z", 13)}``: what each reads, embeddings (``z``), backbone features
            (``h``) or two of them side by side (``hh``), and how many outputs it has.
        predicts: whether there is a predictor G (SimCLR alone has none).
        moving_target: whether the target is a moving average (BYOL) or the network itself without gradient (SimSiam).
    """

    def __init__(
        self,
        model: ModelSettings,
        channels: int,
        image_size: int,
        heads: Mapping[str, tuple[str, int]],
        predicts: bool = True,
        moving_target: bool = False,
    ) -> None:
        super().__init__()
        body = backbone(model.backbone, model.stem, channels, image_size, model.init)
        features = width_of(body)
        self.online = Encoder(body, projector_of(model, features))
        self.predictor = predictor(model.projector_dim, model.predictor_hidden) if predicts else None
        reads = {"z": model.projector_dim, "h": features, "hh": 2 * features}
        self.heads = nn.ModuleDict(
            {
                name: pretext_head(reads[what], width, model.head_hidden, model.head_layers)
                for name, (what, width) in heads.items()
            }
        )
        self.target: Encoder | None = None
        if moving_target:
            self.target = copy.deepcopy(self.online).requires_grad_(False)

    @property
    def backbone(self) -> nn.Module:
        return self.online.backbone

    def predict(self, asked: Sequence[Tensor], borrow: Sequence[int] | None = None) -> list[Tensor]:
        """G of several batches of embeddings, each with its own statistics (or another's, by ``borrow``)."""
        assert self.predictor is not None
        return list(self.predictor(torch.stack(list(asked)), borrow).unbind(0))

    @torch.no_grad()
    def follow(self, tau: float | Tensor) -> None:
        """Moves the target: phi <- tau phi + (1 - tau) theta. Its BatchNorm averages are its own."""
        if self.target is not None:
            phi, theta = list(self.target.parameters()), list(self.online.parameters())
            torch._foreach_mul_(phi, tau)  # type: ignore[arg-type]
            torch._foreach_add_(phi, torch._foreach_mul(theta, 1.0 - tau))  # type: ignore[arg-type]
