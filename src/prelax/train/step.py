"""One step's worth of a method: views in, embeddings, terms, one number out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prelax.collectives import grouped, sum_over_processes, world_size
from prelax.config import Settings
from prelax.nets import Encoder, Network
from prelax.objectives import PretextLoss, Term, base_of, looc, loss_scale, margin, method, nt_xent, r2s, sim
from prelax.objectives.methods import turned, weighed
from prelax.objectives.parts import coefficient
from prelax.record import Target, asked_of, differences, differing

READS = {"pl": "z", "relaxpl": "z", "predict": "h", "classify": "h", "compare": "hh", "looc": "h"}
LOOC_DIM = 128  # of each space that keeps one augmentation


@dataclass(frozen=True)
class Views:
    """The views of a batch, one after another, and what was drawn for each."""

    images: Tensor  # (V B) x C x H x W: those of full size, which come first
    targets: Sequence[Mapping[str, Tensor]]  # a view: what the pipeline drew, standardised
    relaxed: Sequence[Mapping[str, Tensor]]  # a view: what the relaxed augmentation drew; empty for other views
    labels: Tensor | None = None
    small: Tensor | None = None  # (V B) x C x h x w: those that are smaller


class Objective(nn.Module):
    """A method's network and its terms.

    Calling it on ``Views`` gives the loss and a dict of what is worth watching (all 0-d tensors, and the embeddings
    of view 1 under ``"z"``), without waiting for the device.

    Args:
        settings: everything.
        channels, image_size: of the views.
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
        self.full = sum(not view.small for view in self.views)
        self.copies = tuple(n for n, view in enumerate(self.views, start=1) if view.small)
        # Copies of one view in fixed turns are normalised together: by itself a turn would lose what sets it apart.
        self.apart = 1 if all(view.fixed is not None for view in self.views) else self.full
        self.base = base_of(settings.method)
        self.terms = weighed(settings.method)
        self.turned = turned(self.settings, self.terms)
        self.scale = loss_scale(settings.method)
        self.share: Tensor  # what is left of the pretexts' weights; the engine writes it
        self.register_buffer("share", torch.ones(()), persistent=False)
        reduction = settings.method.pl_reduction
        self.drawn = tuple(specs)
        told = asked_of(specs, settings.method.asks) if any(t.kind in ("pl", "compare") for t in self.terms) else ()
        between = differing(told, specs)
        label = [Target("label", "categorical", classes=max(classes, 1))]
        asked = {
            "pl": told if settings.method.std_tells == "view" else between,
            "relaxpl": relaxed_specs,
            "predict": relaxed_specs,
            "compare": between,
            "classify": label,
        }
        self.losses = {t.name: PretextLoss(asked[t.kind], reduction) for t in self.terms if t.kind in asked}
        self.off = {"pl": settings.method.std_reads or settings.method.pl_reads, "relaxpl": settings.method.pl_reads}
        reads = READS | {kind: "h" for kind, place in self.off.items() if place == "backbone"}
        heads = {t.name: (reads[t.kind], self.losses[t.name].width) for t in self.terms if t.kind in asked}
        heads |= {t.name: (reads[t.kind], LOOC_DIM) for t in self.terms if t.kind == "looc"}
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
        self.aims = max((t.views[-1] for t in self.needs_g), default=1)  # views that a moving target has to see
        embeds = [t for t in self.terms if t.kind not in READS or reads[t.kind] == "z"]
        self.embeds_small = any(view in self.copies for t in embeds for view in t.views)
        if not embeds:
            self.network.online.projector.requires_grad_(False)  # it is watched, but has no part in the loss
        self.autocast = False  # bfloat16 in the backbone
        self.together = False  # all views through the backbone as one batch

    def forward(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        h = self.features(self.network.online, views.images)  # V x B x F
        if views.small is not None:
            small = self.features(self.network.online, views.small, apart=1, views=len(self.views) - self.full)
            h = torch.cat([h, small])
        aim = None
        if self.network.target is not None:
            with torch.no_grad():
                aimed_at = views.images[: len(views.images) // self.full * self.aims]
                aim = self.features(self.network.target, aimed_at, self.aims, self.aims)
        return self.judge(h, aim, views.targets, views.relaxed, views.labels)

    def judge(
        self,
        h: Tensor,
        aim: Tensor | None,
        drawn: Sequence[Mapping[str, Tensor]],
        relaxed: Sequence[Mapping[str, Tensor]],
        labels: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """From backbone features (and, for a moving target, the target's) to the loss: all that is not convolution."""
        full = self.network.online.projector(h[: self.full])  # V x B x D
        z = list(full.unbind(0))
        if self.embeds_small:
            z.append(self.network.online.projector(h[self.full :].flatten(0, 1)))  # (copies B) x D, normalised together
        t = z if aim is None else self.network.target.projector(aim).unbind(0)  # type: ignore[union-attr]
        g = self.predictions(z)
        total = full.new_zeros(())
        seen: dict[str, Tensor] = {}
        for term in self.terms:
            if term.kind in READS:
                loss = self.pretext(term, h, z, drawn, relaxed, labels)
            else:
                loss = self.alignment(term, z, t, g)
            weight: float | Tensor = self.scale * term.weight(self.settings)
            if self.settings.gamma_end < 1 and term.coefficient in ("gamma", "gamma2"):
                weight = weight * self.share
            total = total + weight * loss
            key = f"loss/{term.name}"
            # A term in two directions is shown as their mean.
            ways = sum(other.name == term.name for other in self.terms)
            seen[key] = seen.get(key, 0.0) + loss.detach() / ways
        seen["loss"] = total.detach()
        seen |= self.watch(full.detach())
        return total, seen

    def features(self, encoder: Encoder, images: Tensor, apart: int | None = None, views: int | None = None) -> Tensor:
        """Backbone features in float32, V x B x F.

        Args:
            apart: equal parts of the batch that BatchNorm takes one by one; by default as the method has it.
            views: V; by default how many are of full size.
        """
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            h = encoder.features(images, apart or self.apart, self.together).float()
        return h.flatten(0, 1).unflatten(0, (views or self.full, -1))

    def residual(self, z: Sequence[Tensor], i: int, j: int) -> Tensor:
        """r_ij = z_i - z_j, of raw or unit vectors, with the gradient that is configured. Views count from 1."""
        zi, zj = z[i - 1], z[j - 1]
        zi, zj = like(zi, zj), like(zj, zi)
        if self.settings.residual == "normalised":
            zi, zj = F.normalize(zi, dim=-1), F.normalize(zj, dim=-1)
        if self.settings.residual_gradient == "detach-anchor":
            zj = zj.detach()
        residual = zi - zj
        return residual.detach() if self.settings.residual_gradient == "detach" else residual

    def predictions(self, z: Sequence[Tensor]) -> dict[tuple[int, ...], Tensor]:
        """G of every embedding and residual that a term asks for: ``g[i,]``, and ``g[i, j]`` where alpha is not 0."""
        singles = sorted({(t.views[0],) for t in self.needs_g})
        relaxed = [t for t in self.needs_g if t.kind == "relax" and coefficient(self.settings, t.alpha) > 0]
        pairs = sorted({self.pair(t) for t in relaxed})
        if not singles:
            return {}
        asked: dict[tuple[int, ...], Tensor] = {(i,): z[i - 1] for (i,) in singles}
        for i, j in pairs:
            r = self.residual(z, i, j)
            asked[i, j] = r.detach() if self.settings.residual_gradient == "detach-in-g" else r
        found: dict[tuple[int, ...], Tensor] = {}
        for rows in sorted({len(value) for value in asked.values()}):  # one pass, and one for copies
            names = [name for name, value in asked.items() if len(value) == rows]
            borrow = None
            if self.settings.residual_norm == "shared":
                at = {name[0]: n for n, name in enumerate(names) if len(name) == 1}
                borrow = [at.get(name[0], at.get(name[-1], 0)) for name in names]
            predicted = self.network.predict([asked[name] for name in names], borrow)
            found |= dict(zip(names, predicted, strict=True))
        return found

    def pair(self, term: Term) -> tuple[int, int]:
        """The residual of a relaxed term, in reverse if so configured: that of R2S, or of R3S where R2S is not."""
        i, j, _ = term.views
        return (j, i) if self.settings.reverse and term in self.turned else (i, j)

    def alignment(
        self, term: Term, z: Sequence[Tensor], t: Sequence[Tensor], g: Mapping[tuple[int, ...], Tensor]
    ) -> Tensor:
        """A term that compares embeddings: sim, margin or relax, unweighted."""
        settings, on = self.settings, term.views
        target = like(t[on[-1] - 1].detach(), z[on[0] - 1])
        if term.kind == "margin":
            return margin(g[on[:1]], target, settings.eta)
        if term.kind == "sim":
            if self.base == "simclr":
                return self.each_copy(z[on[0] - 1], z[on[1] - 1])
            return sim(g[on[:1]], target)
        assert term.kind == "relax", term.kind
        alpha = coefficient(settings, term.alpha)
        p = g[on[:1]]
        g_r = g[self.pair(term)] if alpha > 0 else torch.zeros_like(p)
        if self.base == "simclr":
            return self.each_copy(p - alpha * g_r, z[on[2] - 1])
        return r2s(p, g_r, target, alpha)

    def each_copy(self, p: Tensor, z: Tensor) -> Tensor:
        """NT-Xent of a view, or the mean of those of its copies: copies of an image are not each other's negatives."""
        parts = p.split(len(z))
        return torch.stack([nt_xent(part, z, self.settings.temperature) for part in parts]).mean()

    def pretext(
        self,
        term: Term,
        h: Tensor,
        z: Sequence[Tensor],
        drawn: Sequence[Mapping[str, Tensor]],
        relaxed: Sequence[Mapping[str, Tensor]],
        labels: Tensor | None,
    ) -> Tensor:
        """A term that reads something off a residual or off features, unweighted."""
        head, i = self.network.heads[term.name], term.views[0]
        if term.kind == "looc":
            q, key, *others = (head(h[view - 1]) for view in term.views)
            return looc(q, key, others, self.settings.temperature)
        loss = self.losses[term.name]
        if term.kind in ("pl", "relaxpl"):
            read: Sequence[Tensor] = z
            if self.off[term.kind] == "backbone":
                read = [*h[: self.full].unbind(0), *([h[self.full :].flatten(0, 1)] if self.copies else [])]
            if term.kind == "pl":
                j = {"other": term.views[1], "none": None}[self.settings.std_anchor]
            else:
                j = {"same": term.views[1], "other": 2, "none": None}[self.settings.pl_anchor]
            r = read[i - 1] if j is None else self.residual(read, i, j)
            told, specs = (drawn, self.drawn) if term.kind == "pl" else (relaxed, loss.specs)
            wanted = concatenated([told[n - 1] for n in (self.copies if i in self.copies else (i,))], specs)
            if term.kind == "pl" and self.settings.std_tells == "difference":
                assert j is not None  # it was refused
                wanted = differences(wanted, drawn[j - 1], self.drawn)
            return loss(head(r), wanted)
        if term.kind == "predict":
            return loss(
                head(torch.cat([h[view - 1] for view in term.views])),
                concatenated([relaxed[view - 1] for view in term.views], loss.specs),
            )
        if term.kind == "classify":
            assert labels is not None
            return loss(head(h[i - 1]), {"label": labels})
        assert term.kind == "compare", term.kind
        j = term.views[1]
        between = differences(drawn[i - 1], drawn[j - 1], self.drawn)
        return loss(head(torch.cat([h[i - 1], h[j - 1]], dim=-1)), between)

    @torch.no_grad()
    def watch(self, z: Tensor) -> dict[str, Tensor]:
        """Length of the residual between unit embeddings, and their spread (1 is healthy, 0 collapsed)."""
        unit = F.normalize(z, dim=-1)
        seen = {"embedding_std": spread(unit[0]) * unit.shape[-1] ** 0.5, "z": z[0]}
        if self.full > 1:
            i = next((n for n, view in enumerate(self.views[: self.full]) if view.relaxed and n > 1), 1)
            seen["residual_norm"] = (unit[i] - unit[0]).norm(dim=-1).mean()
        return seen


def like(x: Tensor, other: Tensor) -> Tensor:
    """x, once for every copy that ``other`` has of its images.  B x D, (K B) x D -> (K B) x D"""
    return x.repeat(len(other) // len(x), 1) if len(other) > len(x) else x


def concatenated(copies: Sequence[Mapping[str, Tensor]], specs: Sequence[Target]) -> Mapping[str, Tensor]:
    """What was drawn for the copies of a batch, one after another."""
    if len(copies) == 1:
        return copies[0]
    return {spec.name: torch.cat([copy[spec.name] for copy in copies]) for spec in specs}


def spread(unit: Tensor) -> Tensor:
    """The standard deviation of each coordinate over the images of all processes, and the mean of these.  B x D -> 1"""
    if not grouped():
        return unit.std(dim=0).mean()
    count = world_size() * len(unit)
    mean, square = sum_over_processes(torch.stack([unit.sum(0), unit.square().sum(0)])) / count
    return ((square - mean.square()).clamp_min(0.0) * (count / max(count - 1, 1))).sqrt().mean()
