"""What a page holds, as plain data: gathered from run folders by ``gather``, written as HTML by ``render``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numpy.typing import NDArray


@dataclass(frozen=True)
class Cell:
    """One figure of one run, with the floor of a random backbone beside it."""

    value: float | None
    floor: float | None = None
    std: float | None = None
    seeds: int = 1
    best: bool = False
    detail: str = ""
    start: float | None = None  # of the weights it began with, where those were not random
    guess: bool = False  # the floor is a guess, for want of random weights
    images: int | None = None  # it was measured on
    notes: tuple[str, ...] = ()  # what its reader should know


@dataclass(frozen=True)
class Row:
    """One line of the table of results: a protocol on a dataset, a cell per run."""

    protocol: str
    dataset: str
    measure: str
    cells: list[Cell | None]
    percent: bool = True


@dataclass(frozen=True)
class Word:
    """A sentence about the health of a run."""

    level: str  # good or bad
    what: str
    text: str


@dataclass(frozen=True)
class Card:
    """A run at a glance."""

    name: str
    path: str
    headline: Row | None
    facts: list[tuple[str, str]]
    words: list[Word]
    labelled: int | None = None  # training images with a label; None: not recorded
    obstacle: str = ""  # why it cannot be measured by its own images


@dataclass(frozen=True)
class Line:
    """A curve of one run; None where nothing was measured or the value is not finite."""

    run: int
    epochs: list[int]
    values: list[float | None]


@dataclass(frozen=True)
class Mark:
    """A horizontal reference line."""

    run: int
    value: float
    label: str


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    caption: str
    lines: list[Line]
    marks: list[Mark] = field(default_factory=list)
    unit: str = ""

    def summary(self, names: Sequence[str]) -> str:
        """The chart in a sentence, for a reader who does not see it; the runs by name where there are several."""
        said = []
        for line in self.lines:
            known = [(e, v) for e, v in zip(line.epochs, line.values, strict=True) if v is not None]
            if known:
                (first, start), (last, end) = known[0], known[-1]
                who = f"{names[line.run]} " if len(names) > 1 else ""
                said.append(f"{who}from {start:.4g} at epoch {first} to {end:.4g} at epoch {last}")
        return f"{self.title}: {'; '.join(said)}" if said else self.title


@dataclass(frozen=True)
class Bar:
    """One thing measured of every run, between 0 and 100 (or 0 and 1 for a cosine), with what guessing would give."""

    name: str
    unit: str
    cells: list[Cell | None]  # a cell per run


@dataclass(frozen=True)
class Effects:
    """What each augmentation alone does: by accuracy where that can be gone by, else by how far features move."""

    accuracy: list[Bar] = field(default_factory=list)
    moved: list[Bar] = field(default_factory=list)  # in per cent of the distance between different images
    remarks: list[str] = field(default_factory=list)  # why not by accuracy


@dataclass(frozen=True)
class Sprite:
    """Thumbnails of many images packed row by row in one picture."""

    uri: str
    side: int
    columns: int
    count: int


@dataclass(frozen=True)
class Atlas:
    """A t-SNE map of images for one run, and the nearest images of every point."""

    run: int
    sprite: int
    places: NDArray  # N x 2 in [0, 1]
    labels: list[int]  # -1: unknown
    neighbours: NDArray  # N x K
    agreement: float | None  # per cent of neighbours with the label of their query
    floor: float | None  # the same for an untrained backbone
    classes: list[str]
    captions: list[str]  # a word for each point: its path, or nothing
    whole: bool = False  # images of all splits, not of the test set alone
    total: int = 0  # images they were drawn from, where not all are shown


@dataclass(frozen=True)
class Shot:
    """A view and what was done to make it: operation, parameters."""

    title: str
    uri: str
    steps: list[tuple[str, str]]
    box: tuple[float, float, float, float] | None = None  # left, top, width, height of the crop, as shares of the image


@dataclass(frozen=True)
class Strip:
    """An image and its views."""

    label: str
    uri: str
    shots: list[Shot]
    side: int  # of the views, in pixels


@dataclass(frozen=True)
class Album:
    """The views of one run."""

    run: int
    strips: list[Strip]


@dataclass(frozen=True)
class Setting:
    key: str
    values: list[str]  # a value per run
    about: str
    default: str | None = None  # None: it has none

    @property
    def differs(self) -> bool:
        """Between the runs, or, of one run, from the default."""
        return len(set(self.values) | ({self.default} if len(self.values) == 1 and self.default else set())) > 1


@dataclass(frozen=True)
class Page:
    """Everything on the page."""

    title: str
    made: str
    version: str
    cards: list[Card]
    rows: list[Row]
    charts: list[Chart]
    more_charts: list[Chart]
    bars: list[Bar]  # what the residual tells
    moves: list[Bar]  # how far augmentations move the features
    effects: Effects  # of each augmentation alone
    sprites: list[Sprite]
    atlases: list[Atlas]
    albums: list[Album]
    settings: list[Setting]
    left_out: list[str]
