"""One step's worth of a method: views in, embeddings, terms, one number out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prelax.config import Settings
from prelax.nets import Network
from prelax.objectives import PretextLoss, Term, base_of, loss_scale, margin, method, nt_xent, r2s, sim, terms_of
from prelax.objectives.methods import coefficient
from prelax.record import Target

READS = {"pl": "z", "relaxpl": "z", "predict": "h", "classify": "h", "compare": "hh"}


@dataclass(frozen=True)
class Views:
    """The views of a batch, one after another, and what was drawn for each."""

    images: Tensor  # (V B) x C x H x W
    targets: Sequence[Mapping[str, Tensor]]  # a view: what the pipeline drew, standardised
    relaxed: Sequence[Mapping[str, Tensor]]  # a view: what the relaxed augmentation drew; empty for other views
    labels: Tensor | None = None


class Objective(nn.Module):
    """A method's network and its terms.

    Calling it on ``Views`` gives the loss and a dict of what is worth watching (all 0-d tensors, and the embeddings
    of view 1 under ``"z"``), without waiting for the device.

    Args:
        settings: everything.
        channels: of the images.
        specs: targets of the pipeline.
        relaxed_specs: targets of the relaxed augmentation.
        classes: of the labels, for the supervised line.
    """

    def __init__(
        self,
        settings: Settings,
        channels: int,
        image_size: int,
        specs: Sequence[Target],
        relaxed_specs: Sequence[Target],
        classes: int = 0,
    ) -> None:
        super().__init__()
        self.settings = settings.method
        self.views = method(settings.method.name).views
        self.base = base_of(settings.method)
        self.terms = [term for term in terms_of(settings.method) if term.weight(settings.method) > 0]
        self.scale = loss_scale(settings.method)
        reduction = settings.method.pl_reduction
        differences = [_difference(spec) for spec in specs]
        label = [Target("label", "categorical", classes=max(classes, 1))]
        asked = {
            "pl": specs,
            "relaxpl": relaxed_specs,
            "predict": relaxed_specs,
            "compare": differences,
            "classify": label,
        }
        self.losses = {t.name: PretextLoss(asked[t.kind], reduction) for t in self.terms if t.kind in asked}
        heads = {t.name: (READS[t.kind], self.losses[t.name].width) for t in self.terms if t.kind in asked}
        # SimCLR compares embeddings as they are; a relaxed term needs G on any base (without it z' - r = z is void).
        self.needs_g = [
            t for t in self.terms if t.kind in ("margin", "relax") or (t.kind == "sim" and self.base != "simclr")
        ]
        self.network = Network(
            settings.model,
            channels,
            image_size,
            heads,
            predicts=bool(self.needs_g),
            moving_target=self.base == "byol" and bool(self.needs_g),
        )
        self.autocast = False  # bfloat16 in the backbone
        self.together = False  # all views through the backbone as one batch

    def forward(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        count = len(self.views)
        h = self.features(views.images, count)  # V x B x F
        z = self.network.online.projector(h)  # V x B x D
        t = self.targets(views.images, z)  # V x B x D
        g = self.predictions(z)
        total = z.new_zeros(())
        seen: dict[str, Tensor] = {}
        for term in self.terms:
            loss = self.loss(term, h, z, t, g, views)
            total = total + self.scale * term.weight(self.settings) * loss
            key = f"loss/{term.name}"
            # A term in two directions is shown as their mean.
            share = sum(other.name == term.name for other in self.terms)
            seen[key] = seen.get(key, 0.0) + loss.detach() / share
        seen["loss"] = total.detach()
        seen |= self.watch(z.detach())
        return total, seen

    def features(self, images: Tensor, count: int) -> Tensor:
        """Backbone features in float32, V x B x F."""
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            return self.network.online.features(images, count, self.together).float()

    @torch.no_grad()
    def targets(self, images: Tensor, z: Tensor) -> Tensor:
        """What predictions are compared with: the embeddings without gradient, or the moving average's."""
        target = self.network.target
        if target is None:
            return z.detach()
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            h = target.features(images, len(self.views), self.together).float()
        return target.projector(h)

    def residual(self, z: Tensor, i: int, j: int) -> Tensor:
        """r_ij = z_i - z_j, of raw or unit embeddings. Views count from 1."""
        zi, zj = z[i - 1], z[j - 1]
        if self.settings.residual == "normalised":
            zi, zj = F.normalize(zi, dim=-1), F.normalize(zj, dim=-1)
        if self.settings.residual_gradient == "detach-anchor":
            zj = zj.detach()
        residual = zi - zj
        return residual.detach() if self.settings.residual_gradient == "detach" else residual

    def predictions(self, z: Tensor) -> dict[tuple[int, ...], Tensor]:
        """G of every embedding and residual that a term asks for, in one pass: ``g[i,]`` and ``g[i, j]``."""
        singles = sorted({(t.views[0],) for t in self.needs_g})
        pairs = sorted({self.pair(t) for t in self.needs_g if t.kind == "relax"})
        if not singles:
            return {}
        asked = [z[i - 1] for (i,) in singles]
        for i, j in pairs:
            r = self.residual(z, i, j)
            asked.append(r.detach() if self.settings.residual_gradient == "detach-in-g" else r)
        borrow = None
        if self.settings.residual_norm == "shared":
            at = {i: n for n, (i,) in enumerate(singles)}
            borrow = [*range(len(singles)), *(at.get(i, at.get(j, 0)) for i, j in pairs)]
        return dict(zip([*singles, *pairs], self.network.predict(asked, borrow), strict=True))

    def pair(self, term: Term) -> tuple[int, int]:
        """The residual of a relaxed term; R2S may take it in reverse."""
        i, j, _ = term.views
        return (j, i) if self.settings.reverse and term.name == "r2s" else (i, j)

    def loss(
        self, term: Term, h: Tensor, z: Tensor, t: Tensor, g: Mapping[tuple[int, ...], Tensor], views: Views
    ) -> Tensor:
        """One term, unweighted."""
        settings, kind, on = self.settings, term.kind, term.views
        if kind in ("pl", "relaxpl"):
            drawn = views.targets if kind == "pl" else views.relaxed
            return self.losses[term.name](self.head(term, self.residual(z, *on)), drawn[on[0] - 1])
        if kind == "predict":
            return self.losses[term.name](self.head(term, h[on[0] - 1]), views.relaxed[on[0] - 1])
        if kind == "classify":
            assert views.labels is not None
            return self.losses[term.name](self.head(term, h[on[0] - 1]), {"label": views.labels})
        if kind == "compare":
            i, j = (view - 1 for view in on)
            drawn_i, drawn_j = views.targets[i], views.targets[j]
            between = {spec.name: drawn_i[spec.name] - drawn_j[spec.name] for spec in self.losses[term.name].specs}
            return self.losses[term.name](self.head(term, torch.cat([h[i], h[j]], dim=-1)), between)
        if kind == "margin":
            return margin(g[on[:1]], t[on[1] - 1], settings.eta)
        if kind == "sim":
            if self.base == "simclr":
                return nt_xent(z[on[0] - 1], z[on[1] - 1], settings.temperature)
            return sim(g[on[:1]], t[on[1] - 1])
        assert kind == "relax", kind
        alpha = coefficient(settings, term.alpha)
        p, g_r, target = g[on[:1]], g[self.pair(term)], t[on[2] - 1]
        if self.base == "simclr":
            return nt_xent(p - alpha * g_r, z[on[2] - 1], settings.temperature)
        return r2s(p, g_r, target, alpha)

    def head(self, term: Term, x: Tensor) -> Tensor:
        return self.network.heads[term.name](x)

    @torch.no_grad()
    def watch(self, z: Tensor) -> dict[str, Tensor]:
        """Length of the residual between unit embeddings, and their spread (1 is healthy, 0 collapsed)."""
        unit = F.normalize(z, dim=-1)
        seen = {"embedding_std": unit[0].std(dim=0).mean() * unit.shape[-1] ** 0.5, "z": z[0]}
        if len(self.views) > 1:
            i = next((n for n, view in enumerate(self.views) if view.relaxed and n > 1), 1)
            seen["residual_norm"] = (unit[i] - unit[0]).norm(dim=-1).mean()
        return seen


def _difference(spec: Target) -> Target:
    """What AugSelf predicts of a target: the difference of two draws, as a number."""
    return replace(spec, kind="continuous", classes=1)
