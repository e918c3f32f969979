"""``prelax report``: run folders in, one self-contained HTML file out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import prelax
from prelax.data import only_shards
from prelax.errors import PrelaxError, PrelaxWarning, printable, readable
from prelax.report import embedding
from prelax.report.content import Album, Atlas, Page, Sprite, Word
from prelax.report.gather import attempt, bars, card, charts, effects, moves, names, results, settings_table
from prelax.report.render import render
from prelax.report.sprites import sprite
from prelax.run import Run
from prelax.stamp import now
from prelax.whole import replacing, writing

if TYPE_CHECKING:
    from prelax.data import ImageSet
    from prelax.loading import Loaded

PICTURED = 8  # runs that get a map and views of their own; as many as there are colours
STRIPS = 4  # images of the grid of views
# Settings of the data that do not change which images there are.
ELSEWHERE = {"download", "cache", "store", "workers", "limit"}


def report(
    runs: Sequence[Run | Path | str],
    out: Path | str | None = None,
    *,
    points: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    called: Sequence[str] | None = None,
) -> Path:
    """One HTML file about one or several runs, which opens from disk with no network; its path.

    Args:
        runs: run folders; one that is named twice is shown once.
        out: where to write; by default ``report.html`` in the run's folder, of several ``compared.html`` beside them.
        points: images of the map, at most; 0 leaves the map out.
        seed: of the sample and of t-SNE.
        device: where features are computed.
        called: what the page calls each run; by default its folder's name.
    """
    if not runs:
        raise PrelaxError("no run to report on; give one or more run folders")
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    if called is None:
        places = [run.path.resolve() for run in opened]
        opened = [run for index, run in enumerate(opened) if places[index] not in places[:index]]
    page = gather(opened, points=points, seed=seed, device=device, called=called)
    usual = opened[0].path / "report.html" if len(opened) == 1 else opened[0].path.resolve().parent / "compared.html"
    target = Path(out) if out is not None else usual
    if target.is_dir():
        target = target / "report.html"
    html = readable(render(page)).encode()  # before the file is opened: an old page is not lost
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            temporary.write_bytes(html)
    for line in page.left_out:
        warnings.warn(f"left out of the page: {line}", PrelaxWarning, stacklevel=2)
    return target


def gather(
    runs: Sequence[Run],
    *,
    points: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    called: Sequence[str] | None = None,
) -> Page:
    """Everything a page about these runs holds; what cannot be had is left out, and the page says why."""
    if not 0 <= points <= 65535:
        raise PrelaxError(f"points is {points}; a map holds 0 to 65535")
    called = list(called) if called is not None else names(runs)
    evals, metrics = [run.evals() for run in runs], [run.metrics() for run in runs]
    rows = results(evals)
    first, more = charts(metrics, evals)
    pictures = Pictures(points, seed, torch.device(device))
    if len(runs) > PICTURED:
        pictures.left_out.append(
            f"Maps and views of {', '.join(called[PICTURED:])}: the first {PICTURED} runs have them."
        )
    for index, (run, name) in enumerate(zip(runs[:PICTURED], called[:PICTURED], strict=True)):
        if only_shards(run.settings.data):
            pictures.left_out.append(
                f"The map and the views of {name}: its images are in shards, which are only trained on; "
                "data.root=FOLDER beside data.shards names images to show."
            )
            continue
        if points:
            attempt("The map", name, partial(pictures.add_map, run, index), pictures.left_out)
        attempt("The views", name, partial(pictures.add_views, run, index), pictures.left_out)
    return Page(
        title=called[0] if len(runs) == 1 else " and ".join(called) if len(runs) == 2 else f"{len(runs)} runs compared",
        made=now()[:16].replace("T", " ") + " UTC",
        version=prelax.__version__,
        cards=[
            card(run, called[i], i, rows, words(run), "" if rows else pictures.obstacle(run))
            for i, run in enumerate(runs)
        ],
        rows=rows,
        charts=first,
        more_charts=more,
        bars=bars(evals),
        moves=moves(evals),
        effects=effects(evals),
        sprites=pictures.sprites,
        atlases=pictures.atlases,
        albums=pictures.albums,
        settings=settings_table(runs),
        left_out=pictures.left_out,
    )


def words(run: Run) -> list[Word]:
    """What the doctor says of a run: all that is wrong, and of what is fine what its curves show."""
    from prelax.doctor import examine_run

    plain = {"run", "epochs", "backbone", "checkpoint.pt", "checkpoint.previous.pt"}  # said elsewhere on the page
    told = [finding for finding in examine_run(run.path) if not (finding.fine and finding.what in plain)]
    return [Word("good" if one.fine else "bad", one.what, one.found) for one in told]


@dataclass
class Pictures:
    """The parts of a page that need images: gathered run by run, sets and thumbnails read once."""

    points: int
    seed: int
    device: torch.device
    sets: dict[str, ImageSet] = field(default_factory=dict)
    sheets: dict[str, int] = field(default_factory=dict)
    sprites: list[Sprite] = field(default_factory=list)
    atlases: list[Atlas] = field(default_factory=list)
    albums: list[Album] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def load(self, run: Run, split: str) -> tuple[str, ImageSet]:
        from prelax.data import load

        settings = run.settings.data
        key = split + json.dumps(settings.model_dump(mode="json", exclude=ELSEWHERE))
        if key not in self.sets:
            self.sets[key] = load(settings, split)
        return key, self.sets[key]

    def obstacle(self, run: Run) -> str:
        """Why a run cannot be measured by its own images, in a line; nothing where it can, as by any known dataset."""
        from prelax.data.folder import NothingHeldOut
        from prelax.evaluate.labels import obstacle

        if run.settings.data.source != "folder":
            return ""
        if only_shards(run.settings.data):
            return "they are in shards, which are only trained on"
        try:
            return obstacle(*(self.load(run, split)[1] for split in ("train", "test")))
        except NothingHeldOut:
            return "none of them were held out of training"
        except PrelaxError as error:
            return str(error)

    def add_map(self, run: Run, index: int) -> None:
        from prelax.evaluate.features import extract
        from prelax.loading import load

        loaded = load(run.path, self.device)
        key, mapped, whole, total = self.mapped(run)
        if len(mapped) == 0:
            raise PrelaxError(f"{mapped.name} has no test images")
        images = mapped.images
        features = extract(loaded.backbone, images, loaded.preprocess, device=self.device, batch_size=256, keep="cpu")
        near = embedding.nearest(features)
        labels = mapped.labels if mapped.labels is not None else torch.full((len(mapped),), -1)
        if key not in self.sheets:
            self.sheets[key] = len(self.sprites)
            self.sprites.append(sprite(images))
        self.atlases.append(
            Atlas(
                run=index,
                sprite=self.sheets[key],
                places=embedding.tsne(features, self.seed),
                labels=labels.tolist(),
                neighbours=near.numpy(),
                agreement=embedding.agreement(labels, near),
                floor=self.floor(run, loaded, images, labels),
                classes=mapped.classes,
                captions=captions(mapped, run.settings.data.root),
                whole=whole,
                total=total,
            )
        )

    def mapped(self, run: Run) -> tuple[str, ImageSet, bool, int]:
        """The images of a run's map, whether they are of all splits, and of how many they were drawn.

        Of a folder of one's own all images: they are what one wants to find. Of a known data set its test images.
        """
        from prelax.data import labels_of, picked
        from prelax.data.folder import NothingHeldOut

        sets, keys = [], []
        for split in ("train", "test") if run.settings.data.source == "folder" else ("test",):
            try:
                key, one = self.load(run, split)
            except NothingHeldOut:
                continue
            sets.append(one)
            keys.append(key)
        if len(sets) > 1 and sets[0].classes != sets[1].classes:  # a test set of its own
            sets, keys = sets[1:], keys[1:]
        total = sum(map(len, sets))
        rows = embedding.sample(labels_of(sets), total, self.points, self.seed)
        return " and ".join(keys), picked(sets, rows), keys[0].startswith("train"), total

    def floor(self, run: Run, loaded: Loaded, images: Tensor, labels: Tensor) -> float | None:
        """How many neighbours agree for random weights, measured as every other floor is."""
        if not bool((labels >= 0).any()):
            return None
        from prelax.evaluate.features import extract
        from prelax.evaluate.subject import Subject, settle_norms
        from prelax.loading import pipelines_of

        train = self.load(run, "train")[1]
        crops = pipelines_of(run.settings, loaded.channels, images.shape[-1])[0]
        task = Subject(loaded.backbone, loaded.preprocess, crops, train, train, self.device, self.seed)
        random = settle_norms(loaded.fresh(self.seed), task)
        features = extract(random, images, loaded.preprocess, device=self.device, batch_size=256, keep="cpu")
        return embedding.agreement(labels, embedding.nearest(features))

    def add_views(self, run: Run, index: int) -> None:
        from prelax.report.album import strips

        _, train = self.load(run, "train")
        ids = embedding.sample(None, len(train), STRIPS, self.seed)
        known = [int(train.labels[i]) if train.labels is not None else -1 for i in ids]
        labels = [train.classes[label] if 0 <= label < len(train.classes) else "" for label in known]
        self.albums.append(Album(index, strips(run.settings, train.images[ids], ids, labels)))


def captions(images: ImageSet, root: Path | None) -> list[str]:
    """A name for every image, as short as tells it from the others: its path below the root, or the file's name."""
    if images.paths is None:
        return []
    top = Path(printable(str(root.expanduser().resolve()))) if root is not None else None  # as the paths are
    found = []
    for path in images.paths:
        below = top is not None and Path(path).resolve().is_relative_to(top)
        found.append(str(Path(path).resolve().relative_to(top)) if below and top else Path(path).name)
    return found
