"""Optimisers and their schedules: rates are computed ahead for every step, so that a step asks nothing of the host."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from prelax.config import MethodSettings, TrainSettings
from prelax.train.muon import Closure, Muon, gather_momentum, loss_of

NOTHING = 1e-4  # a weight that begins nowhere above this is meant to begin at zero


class LARS(torch.optim.Optimizer):
    """SGD whose step for each weight is in proportion to that weight's length (You et al. 2017).

    Groups with ``adapt=False`` (biases and norms) take plain momentum steps. As BYOL has it: decay is added to the
    gradient, the adapted gradient enters the momentum, and the rate multiplies what comes out.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        loss = loss_of(closure)
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            if not weights:
                continue
            grads: Any = [w.grad for w in weights]
            if group["weight_decay"]:
                grads = torch._foreach_add(grads, weights, alpha=group["weight_decay"])
            if group["adapt"]:
                lengths, steps = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, grads))
                ratios = torch.where((lengths > 0) & (steps > 0), group["trust"] * lengths / steps, 1.0)
                grads = torch._foreach_mul(grads, ratios.unbind())
            buffers = gather_momentum(self, weights, grads, group["momentum"])
            torch._foreach_sub_(weights, torch._foreach_mul(buffers, group["lr"]))
        return loss


def matrices_of(network: nn.Module) -> set[Tensor]:
    """The weights that Muon turns: of linear layers and convolutions in backbone and projector.

    What a group of channels has for itself (depthwise convolutions) is no matrix of the layer. What begins at zero, or
    as good as (timm's gMLP, GCResNeXt), is to grow: turned, it would keep the length it has.
    """
    layers = [
        layer
        for name, layer in network.named_modules()
        if name.startswith("online.") and isinstance(layer, nn.Linear | nn.Conv2d) and getattr(layer, "groups", 1) == 1
    ]
    return {layer.weight for layer in layers if float(layer.weight.detach().abs().max()) > NOTHING}


def groups(network: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """The weights in groups: the predictor apart if its rate is constant, biases and norms if they do not decay.

    Muon's matrices are apart as well: they follow a schedule of their own.
    """
    found: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    matrices = matrices_of(network) if settings.optimizer == "muon" else set[Tensor]()
    for name, weight in network.named_parameters():
        if weight.requires_grad:
            constant = settings.predictor_lr == "constant" and name.startswith("predictor.")
            plain = weight.ndim <= 1 and (settings.optimizer == "lars" or not settings.decay_norms)
            found.setdefault((constant, plain, weight in matrices), []).append(weight)
    alone = {"weight_decay": 0.0, **({"adapt": False} if settings.optimizer == "lars" else {})}
    return [
        {"params": weights, "constant": constant, **(alone if plain else {}), **({"matrix": True} if matrix else {})}
        for (constant, plain, matrix), weights in sorted(found.items())
    ]


def optimizer(network: nn.Module, settings: TrainSettings, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser of the settings. On CUDA its rates are tensors, so that a captured step can change them."""
    cuda = device.type == "cuda"
    parts: Iterable[dict[str, Any]] = groups(network, settings)
    rate = peak_lr(settings)
    for part in parts:
        part["lr"] = torch.tensor(rate, device=device) if cuda else rate
    decay = settings.weight_decay
    if settings.optimizer == "lars":
        return LARS(parts, rate, settings.momentum, decay)
    if settings.optimizer == "muon":
        return Muon(parts, rate, settings.momentum, decay)
    if settings.optimizer == "adamw":
        for part in parts:
            part["betas"] = (settings.momentum, 0.999)
        return torch.optim.AdamW(parts, rate, weight_decay=decay, fused=cuda or None, capturable=cuda)
    return torch.optim.SGD(parts, rate, settings.momentum, weight_decay=decay, fused=True)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes a state back that may come from another kind of device: how the optimiser was built stays.

    The rate stays what it is too: a tensor on CUDA, a number elsewhere, set before every step.
    """
    state, built = {**state}, ("lr", "fused", "capturable", "foreach")
    groups = [
        {**saved, **{key: group[key] for key in built if key in group}}
        for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})


def peak_lr(settings: TrainSettings) -> float:
    """The rate at its highest: ``lr`` is for 256 images."""
    return settings.lr * settings.batch_size / 256


def lr_schedule(settings: TrainSettings, steps: int, peak: float | None = None) -> list[float]:
    """The rate of every step of the run: linear warm-up, then a cosine or a line. ``steps`` are those of an epoch.

    ``peak`` is another highest value, for what follows the rate.

    >>> rates = lr_schedule(TrainSettings(epochs=2, batch_size=256, lr=1.0), steps=2)
    >>> [round(rate, 3) for rate in rates]
    [1.0, 0.854, 0.5, 0.146]
    """
    warm = round(settings.warmup_epochs * steps)
    peak = peak_lr(settings) if peak is None else peak
    total = settings.epochs * steps
    rates = [peak * (step + 1) / warm for step in range(warm)]
    for step in range(total - warm):
        done = step / max(total - warm, 1)
        left = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
        rates.append(peak * (settings.final_lr + (1 - settings.final_lr) * left))
    return rates


def constant_after_warmup(rates: list[float]) -> list[float]:
    """The schedule of SimSiam's predictor: the same until the highest rate, then that rate to the end."""
    top = rates.index(max(rates))
    return rates[:top] + [rates[top]] * (len(rates) - top)


def share_schedule(end: float, total: int) -> list[float]:
    """What is left of the pretexts' weights at every step: from 1 to ``end`` by cosine.

    >>> share_schedule(0.0, 3)
    [1.0, 0.5, 0.0]
    """
    last = max(total - 1, 1)
    return [round(end + (1.0 - end) * 0.5 * (1.0 + math.cos(math.pi * step / last)), 12) for step in range(total)]


def tau_schedule(tau: float, total: int) -> list[float]:
    """BYOL's decay of the target at every step: from ``tau`` to 1 by cosine."""
    return [1 - (1 - tau) * (math.cos(math.pi * step / max(total, 1)) + 1) / 2 for step in range(total)]


def schedules(method: MethodSettings, train: TrainSettings, steps: int) -> dict[str, list[float]]:
    """Everything that changes from step to step of a run. ``steps`` are those of an epoch."""
    rates = lr_schedule(train, steps)
    return {
        "lr": rates,
        "constant": constant_after_warmup(rates),
        "turn": lr_schedule(train, steps, train.turn),
        "tau": tau_schedule(method.tau, len(rates)),
        "share": share_schedule(method.gamma_end, len(rates)),
    }
