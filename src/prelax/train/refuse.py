"""What is refused before anything is trained or written, in words that say what to do."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from prelax.config import DataSettings, Settings
from prelax.data import ImageSet, ShardSet
from prelax.data.listing import scan
from prelax.errors import PrelaxError
from prelax.evaluate.labels import digests_of
from prelax.nets.backbones import asked_side, tried, width_of
from prelax.run import Run
from prelax.train.step import Objective
from prelax.train.views import ViewMaker, described


def batch_of(settings: Settings, images: ImageSet | ShardSet, processes: int) -> int:
    """Images a step, over all processes: what the settings say, or all there are; two at least for each process."""
    batch = min(settings.train.batch_size, len(images) // processes * processes)
    if settings.train.batch_size < 2 * processes <= len(images):
        raise PrelaxError(
            f"train.batch_size={settings.train.batch_size} is under two images for each of {processes} processes; "
            f"use {2 * processes} or more"
        )
    check_enough(settings, images, processes)
    if batch % processes:
        less = batch // processes * processes
        raise PrelaxError(
            f"train.batch_size={batch} does not divide among {processes} processes; use {less} or {less + processes}, "
            "or another number of processes (a run that was begun keeps its batch)"
        )
    return batch


def check_enough(settings: Settings, images: ImageSet | ShardSet, processes: int) -> None:
    """Refuses fewer images than two for each process."""
    if len(images) >= 2 * processes:
        return
    count = f"{len(images)} image{'' if len(images) == 1 else 's'}"
    limit = f" under data.limit={settings.data.limit}" if settings.data.limit is not None else ""
    each = f" for each of {processes} processes" if processes > 1 else ""
    held = isinstance(images, ImageSet) and any("(data.test_fraction)" in note for note in images.notes)
    hint = "; data.test_fraction=0 holds none of them out" if held and settings.data.limit is None else ""
    raise PrelaxError(f"{settings.data.label} has {count} to train on{limit}: training needs at least two{each}{hint}")


def check_labels(images: ImageSet | ShardSet, settings: Settings) -> None:
    """Refuses images that cannot be trained on with labels, and says how many have none."""
    name, source = settings.method.name, settings.data.source
    if images.labels is None:
        raise PrelaxError(f"method {name} needs labels, and {source} has none; choose another method.name")
    missing = int((images.labels < 0).sum())
    if missing:
        raise PrelaxError(
            f"method {name} needs a label for every image, and {missing} of {len(images)} have none; "
            "label them, take them away, or choose another method.name"
        )


def check_backbone(objective: Objective, channels: int, settings: Settings, maker: ViewMaker) -> None:
    """Refuses views of a side that the backbone does not take, and a backbone of others that gives no vectors."""
    name, net = settings.model.backbone, objective.network.backbone
    sides = {"augment.size": maker.size} | ({"augment.small_size": maker.small_size} if objective.copies else {})
    for key, side in sides.items():
        asked = asked_side(net, channels, side)
        if asked != side:
            raise PrelaxError(f"backbone {name} takes views of {asked} px, not of {side}: set {key}={asked}")
        if ":" not in name:
            continue
        try:
            given = tried(net, channels, side)
        except PrelaxError as error:
            own = "" if name.startswith("timm:") else ", or mend the network"
            raise PrelaxError(f"backbone {name} {error}: set {key} to what it takes{own}") from error
        shape = tuple(given.shape) if isinstance(given, Tensor) else ()
        if shape != (2, width_of(net)):
            what = " x ".join(map(str, shape)) or f"a {type(given).__name__}"
            raise PrelaxError(
                f"backbone {name} gives {what} for two images, where 2 x {width_of(net)} is asked: a vector for each, "
                "as wide as its features says"
            )


def check_apart(out: Path, data: DataSettings) -> None:
    """Refuses a run folder that holds images, these or others: what lies in a run folder is not read as images."""
    out = out.resolve()
    places = [place.resolve() for place in (data.root, data.test_root) if place is not None]
    if out.is_dir() and ((data.source == "folder" and out in places) or scan(out).names):
        raise PrelaxError(f"{out} holds images, and a run is a folder of its own; choose another --out")


def check_views(run: Run, settings: Settings) -> None:
    """Refuses to go on with another augment.preset=MODULE:NAME than the run began with: it may have been edited."""
    before, now = run.trained_on().get("views"), described(settings)
    if now is None or not isinstance(before, list):
        return
    for number, (was, is_now) in enumerate(zip(before, now, strict=False), start=1):
        if was != is_now:
            raise PrelaxError(
                f"{settings.augment.preset} is not what {run.path} began with: view {number} was {was}; bring that "
                "back, or begin a new run"
            )


def check_data(run: Run, images: ImageSet | ShardSet) -> bool:
    """Refuses to go on with other images than the run began with: their numbers decide every draw.

    Gives whether the run has a record of them.
    """
    before = run.trained_on()
    if (count := before.get("images")) is None:
        return False
    if count != len(images):
        raise PrelaxError(
            f"{run.path} was trained on {count} images and there are {len(images)} now: bring back those it began "
            "with, or begin a new run"
        )
    if isinstance(images, ShardSet):
        if before.get("shards") != images.digest or before.get("contents", images.contents) != images.contents:
            raise PrelaxError(f"the shards are not those {run.path} began with; bring those back, or begin a new run")
    else:
        known = before.get("digest"), before.get("order")
        for was, now, what in zip(known, digests_of(images), ("not those", "not in the order"), strict=True):
            if was is not None and was != now:
                raise PrelaxError(
                    f"the images are {what} {run.path} began with: bring back what it had, or begin a new run; "
                    "to go on with these all the same, remove its data.json"
                )
    return True
