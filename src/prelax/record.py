"""What was done to each image: columns by name, and which of them are pretext targets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from prelax.config import nearest
from prelax.errors import PrelaxError

Kind = Literal["continuous", "binary", "categorical"]


@dataclass(frozen=True)
class Target:
    """A column of a record that a pretext head can learn to read.

    Args:
        name: the column, for example ``"crop.area"``.
        kind: continuous (squared error), binary or categorical (cross entropy).
        classes: how many values a categorical column takes.
        mean, std: standardise a continuous column; known from how it is drawn, never from data.
        mirrors: the axis, ``x`` or ``y``, along which it mirrors what was done before.
        turns: whether it is the number of quarter turns, clockwise, by which it turns what was done before.
    """

    name: str
    kind: Kind
    classes: int = 1
    mean: float = 0.0
    std: float = 1.0
    mirrors: str = ""
    turns: bool = False

    @property
    def width(self) -> int:
        """How many outputs a head needs for it: one, or one per class."""
        return self.classes if self.kind == "categorical" else 1

    def value(self, column: Tensor) -> Tensor:
        """The column as its loss wants it: standardised floats, 0/1 floats, or int64 classes."""
        if self.kind == "categorical":
            return column.to(torch.int64)
        if self.kind == "binary":
            return column.to(torch.float32)
        return (column.to(torch.float32) - self.mean) / self.std

    def difference(self) -> Target:
        """The target that says how two draws differ: a number, the turn between two turns, else whether they do."""
        if self.turns or self.mirrors:
            return self
        return replace(self, kind="binary" if self.kind == "categorical" else "continuous", classes=1)

    def between(self, one: Tensor, two: Tensor) -> Tensor:
        """How two draws differ, as the loss of ``difference`` wants it.

        >>> turns = Target("rotation.turns", "categorical", classes=4, turns=True)
        >>> turns.between(torch.tensor([0, 3]), torch.tensor([1, 1]))
        tensor([3, 2])
        """
        if self.turns:
            return (one - two) % self.classes
        if self.mirrors or self.kind == "categorical":  # which of two was mirrored shows in neither
            return (one != two).to(torch.float32)
        return one - two


def as_shown(values: Mapping[str, Tensor], specs: Sequence[Target]) -> dict[str, Tensor]:
    """Values of targets as the view shows them: places and angles that were mirrored or turned afterwards, likewise.

    Of an image that is as likely as its mirror image nobody can tell on which side a box lay; in the view one can.

    >>> specs = (Target("crop.x", "continuous"), Target("flip.applied", "binary", mirrors="x"))
    >>> as_shown({"crop.x": torch.tensor([0.5, 0.5]), "flip.applied": torch.tensor([0.0, 1.0])}, specs)["crop.x"]
    tensor([ 0.5000, -0.5000])
    """
    shown = dict(values)
    for place, spec in enumerate(specs):
        done = values[spec.name]
        for before in specs[:place]:
            name = before.name
            whose, _, part = name.rpartition(".")
            if spec.mirrors and part in (spec.mirrors, "degrees"):
                shown[name] = torch.where(done > 0, -shown[name], shown[name])
            elif spec.turns and part == "aspect":
                ratio = shown[name] * before.std + before.mean
                lying = (1 / ratio.clamp_min(1e-6) - before.mean) / before.std
                shown[name] = torch.where(done % 2 > 0, lying, shown[name])
            elif spec.turns and part == "x":
                y, x = shown[f"{whose}.y"], shown[name]
                for way, four in ((f"{whose}.y", (y, x, -y, -x)), (name, (x, -y, -x, y))):  # clockwise, 0 to 3
                    shown[way] = torch.stack(four).gather(0, done[None])[0]
    return shown


def differing(specs: Sequence[Target], drawn: Sequence[Target]) -> tuple[Target, ...]:
    """The targets that say how two draws differ in ``specs``; ``drawn`` is all that was drawn.

    To mirror both ways is to turn by half, so beside quarter turns it can be told whether a view is mirrored, not how;
    and of several quarter turns only what they come to.
    """
    mirrors, turns = [spec for spec in specs if spec.mirrors], [spec for spec in specs if spec.turns]
    left_out = turns[1:] + (mirrors[1:] if any(spec.turns for spec in drawn) else [])
    return tuple(spec.difference() for spec in specs if spec not in left_out)


def differences(one: Mapping[str, Tensor], two: Mapping[str, Tensor], specs: Sequence[Target]) -> dict[str, Tensor]:
    """How two draws differ, as the views show it: everything that was drawn, of which ``differing`` are asked for."""
    if not specs:
        return {}
    held = len(one[specs[0].name])  # of several copies of each of `two`
    two = {name: value.repeat(held // len(value)) for name, value in two.items()}
    shown = as_shown(one, specs), as_shown(two, specs)
    found = {spec.name: spec.between(shown[0][spec.name], shown[1][spec.name]) for spec in specs}
    if any(spec.turns for spec in specs):
        (turns, mirrored), (others, other) = bearing(one, specs), bearing(two, specs)
        for spec in specs:
            if spec.mirrors:
                found[spec.name] = (mirrored != other).to(torch.float32)
            elif spec.turns:
                found[spec.name] = torch.where(mirrored == other, turns - others, turns + others) % 4
    return found


def bearing(values: Mapping[str, Tensor], specs: Sequence[Target]) -> tuple[Tensor, Tensor]:
    """How an image lies after all mirroring and turning: quarter turns of it, and whether it was mirrored before."""
    like = values[specs[0].name]
    turns, mirrored = like.new_zeros(len(like), dtype=torch.int64), like.new_zeros(len(like), dtype=torch.bool)
    for spec in specs:
        if spec.mirrors:
            done = values[spec.name] > 0
            turns = torch.where(done, (2 if spec.mirrors == "y" else 0) - turns, turns)
            mirrored = mirrored ^ done
        elif spec.turns:
            turns = turns + values[spec.name]
    return turns % 4, mirrored


def asked_of(specs: Sequence[Target], asks: str | None) -> tuple[Target, ...]:
    """The targets that ``method.asks`` names, by augmentation or one by one; with a minus first, all but those.

    >>> specs = [Target("crop.y", "continuous"), Target("crop.x", "continuous"), Target("flip.applied", "binary")]
    >>> [spec.name for spec in asked_of(specs, "crop")], [spec.name for spec in asked_of(specs, "-crop.x,-flip")]
    (['crop.y', 'crop.x'], ['crop.y'])
    """
    if asks is None:
        return tuple(specs)
    valid = {spec.name for spec in specs} | {spec.name.split(".")[0] for spec in specs}
    said = [part.strip() for part in asks.split(",")]
    for part in said:
        if part.removeprefix("-") not in valid:
            raise PrelaxError(f"method.asks: no {part!r} is drawn{nearest(part.removeprefix('-'), valid)}")
    left = {part[1:] for part in said if part.startswith("-")}
    kept = {part for part in said if not part.startswith("-")}
    found = tuple(spec for spec in specs if (not kept or _named(spec, kept)) and not _named(spec, left))
    if not found:
        raise PrelaxError(f"method.asks={asks} leaves nothing to ask")
    return found


def _named(spec: Target, names: Collection[str]) -> bool:
    return spec.name in names or spec.name.split(".")[0] in names


@dataclass(frozen=True)
class Record(Mapping[str, Tensor]):
    """Every parameter of every image of a batch, as named columns (a row an image).

    >>> record = Record({"flip.applied": torch.tensor([True, False])}, (Target("flip.applied", "binary"),))
    >>> record.targets()["flip.applied"]
    tensor([1., 0.])
    """

    columns: dict[str, Tensor]
    specs: tuple[Target, ...] = field(default=())

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def targets(self) -> dict[str, Tensor]:
        """The pretext targets, ready for ``prelax.objectives.PretextLoss``."""
        return {spec.name: spec.value(self.columns[spec.name]) for spec in self.specs}

    def map(self, change: Callable[[Tensor], Tensor]) -> Record:
        """The record with ``change`` made to every column (``lambda c: c.cpu()``, ``lambda c: c[:8]``)."""
        return Record({name: change(column) for name, column in self.columns.items()}, self.specs)

    def then(self, other: Record) -> Record:
        """This record followed by what was done next; a column drawn anew replaces the old one."""
        specs = {spec.name: spec for spec in (*self.specs, *other.specs)}
        return Record({**self.columns, **other.columns}, tuple(specs.values()))


@dataclass(frozen=True)
class View:
    """A batch of augmented images and the record of what was done to each of them."""

    images: Tensor  # B x C x H x W
    record: Record
