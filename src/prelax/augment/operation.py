"""What an augmentation is: parameters drawn for every image, a transform that obeys them, and its pretext targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Target

Shape = tuple[int, int, int, int]  # B, C, H, W
Params = dict[str, Tensor]


class Operation(Protocol):
    """An augmentation; any object with these four members is one, no base class is needed.

    ``make_params`` gives columns of B rows (one per image); ``transform`` takes float images in [0, 1] and those
    columns. Keep nothing on ``self`` but constants, and use tensor arithmetic only (no ``.item()``, no loop over
    images), so that the operation runs on every device without waiting and under ``torch.compile``.

    Four optional class attributes tell a pipeline more: ``needs_rgb`` (refuse images that have not three channels),
    ``moves_pixels`` (values are only moved, so it may run on finished, normalised images of any dtype), ``takes_uint8``
    (it accepts uint8 and gives floats in [0, 1]) and ``identity`` (the value of a column that changes nothing, a tuple
    where a column has several an image: recorded where ``Maybe`` did not apply the operation; of ``applied`` it is 0).
    Where mean and std of targets depend on the images' size, a method ``targets_at(shape)`` gives them for a batch.
    Where columns follow from a k-way target, a method ``completed(params)`` makes them of one that is given, not drawn.
    """

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[Target, ...]: ...

    def make_params(self, shape: Shape, draws: Draws) -> Params: ...

    def transform(self, images: Tensor, params: Params) -> Tensor: ...


def trait(op: Operation, name: str, default: Any = False) -> Any:
    """An optional attribute of an operation."""
    return getattr(op, name, default)


def targets_at(op: Operation, shape: Shape) -> tuple[Target, ...]:
    """An operation's targets, standardised as they are drawn for a batch of this shape."""
    own = trait(op, "targets_at", None)
    found: tuple[Target, ...] = op.targets if own is None else own(shape)
    return found


def per_image(column: Tensor) -> Tensor:
    """A column shaped to meet images.  B -> B x 1 x 1 x 1"""
    return column[:, None, None, None]


def vector(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A short constant made on the device itself: copying it there would make the host wait."""
    return torch.cat([torch.full((1,), value, device=device) for value in values])


def probability(p: float, what: str) -> None:
    """Refuse what is no probability."""
    if not 0.0 <= p <= 1.0:
        raise PrelaxError(f"{what}: p is a probability from 0 to 1, got {p}")


def ordered(pair: tuple[float, float], what: str, low: float = 0.0) -> None:
    """Refuse a range that is empty or starts below ``low``."""
    if not low <= pair[0] <= pair[1]:
        raise PrelaxError(f"{what} is a range (low, high) with {low:g} <= low <= high, got {tuple(pair)}")


def moments(low: float, high: float, p: float, otherwise: float) -> tuple[float, float]:
    """Mean and standard deviation of a value uniform in [low, high] with probability p, else ``otherwise``."""
    return mixed((low + high) / 2, (high - low) / 12**0.5, p, otherwise)


def mixed(mean: float, std: float, p: float, otherwise: float) -> tuple[float, float]:
    """Mean and standard deviation of a value that is drawn with probability p and is ``otherwise`` else."""
    both = p * mean + (1 - p) * otherwise
    variance = p * (std**2 + mean**2) + (1 - p) * otherwise**2 - both**2
    return both, max(variance, 1e-12) ** 0.5


def per_row(flags: Tensor, column: Tensor) -> Tensor:
    """A flag an image, to stand beside a column that may have several values an image."""
    return flags.view(-1, *[1] * (column.ndim - 1))


def constant(column: Tensor, value: float | tuple[float, ...]) -> Tensor:
    """A column like another in which every image has the same value, or the same values."""
    if isinstance(value, tuple):
        return torch.stack([torch.full_like(column[:, 0], one) for one in value], 1)
    return torch.full_like(column, value)


class AllOrNothing:
    """What an operation without parameters has besides its ``transform``: with probability p it is done, or not."""

    p: float
    name: str

    def __post_init__(self) -> None:
        probability(self.p, self.name)

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target(f"{self.name}.applied", "binary"),)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return {"applied": draws.bernoulli("applied", self.p)}


@dataclass(frozen=True)
class Maybe:
    """Any operation, applied to each image with probability p; ``applied`` says to which.

    >>> from prelax.augment import Invert, Pipeline
    >>> view = Pipeline([Maybe(Invert(p=1.0), 0.5)])(torch.zeros(64, 1, 2, 2), 0)
    >>> bool(torch.equal(view.images[:, 0, 0, 0] == 1, view.record["invert.maybe"]))
    True
    """

    op: Operation
    p: float = 0.5

    def __post_init__(self) -> None:
        probability(self.p, f"Maybe({self.op.name})")

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def needs_rgb(self) -> bool:
        return bool(trait(self.op, "needs_rgb"))

    @property
    def moves_pixels(self) -> bool:
        return bool(trait(self.op, "moves_pixels"))

    @property
    def column(self) -> str:
        """``applied``, or ``maybe`` where the operation has an ``applied`` of its own."""
        return "maybe" if any(t.name == f"{self.name}.applied" for t in self.op.targets) else "applied"

    @property
    def targets(self) -> tuple[Target, ...]:
        return self._all(self.op.targets)

    def targets_at(self, shape: Shape) -> tuple[Target, ...]:
        return self._all(targets_at(self.op, shape))

    def _all(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        return (*(self._mixed(target) for target in targets), Target(f"{self.name}.{self.column}", "binary"))

    def _mixed(self, target: Target) -> Target:
        """A continuous target's mean and std, now that it is the identity's value with probability 1 - p."""
        rest = self._identity().get(target.name[len(self.name) + 1 :])
        if not isinstance(rest, int | float) or target.kind != "continuous":
            return target
        mean, std = mixed(target.mean, target.std, self.p, rest)
        return replace(target, mean=mean, std=std)

    def _identity(self) -> dict[str, float | tuple[float, ...]]:
        """What is recorded of an image that was left alone."""
        known: dict[str, float | tuple[float, ...]] = trait(self.op, "identity", {})
        return {"applied": 0, **known} if self.column == "maybe" else known

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        params = self.op.make_params(shape, draws)
        applied = draws.bernoulli("maybe", self.p)
        for name, value in self._identity().items():
            params[name] = torch.where(per_row(applied, params[name]), params[name], constant(params[name], value))
        return {**params, self.column: applied}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        out = self.op.transform(images, params)
        if out.shape != images.shape:
            raise PrelaxError(
                f"Maybe({self.name}): the operation changes the shape {tuple(images.shape)} to {tuple(out.shape)}, "
                "so it cannot be left out for some images; apply it to all"
            )
        return torch.where(per_image(params[self.column]), out, images)


@dataclass(frozen=True)
class Named:
    """An operation under another name, so that a pipeline may hold two of a kind."""

    op: Operation
    name: str

    @property
    def targets(self) -> tuple[Target, ...]:
        return self._renamed(self.op.targets)

    def targets_at(self, shape: Shape) -> tuple[Target, ...]:
        return self._renamed(targets_at(self.op, shape))

    def _renamed(self, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        rename = len(self.op.name)
        return tuple(replace(target, name=self.name + target.name[rename:]) for target in targets)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "op":  # not yet set (while unpickling)
            raise AttributeError(attribute)
        return getattr(self.op, attribute)

    def make_params(self, shape: Shape, draws: Draws) -> Params:
        return self.op.make_params(shape, draws)

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return self.op.transform(images, params)


def bare(op: Operation) -> Operation:
    """The operation itself, under whatever name.

    >>> from prelax.augment import Flip
    >>> bare(Named(Flip(), "mirrored")).name
    'flip'
    """
    return op.op if isinstance(op, Named) else op
