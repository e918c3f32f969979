"""What a run keeps: its settings with what images and first weights decide, a record of both, and what goes later."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prelax.config import Settings, left_open, with_values
from prelax.data import ImageSet, ShardSet
from prelax.data.tars import remote
from prelax.errors import PrelaxError
from prelax.evaluate.labels import digests_of
from prelax.loading import preprocess_of, to_keep
from prelax.run import START, Run
from prelax.train.views import described
from prelax.weights import PUBLISHED, Weights, read_weights


def with_whole_paths(settings: Settings) -> Settings:
    """The settings with the places of the data as they are from any folder: a run is looked at from others too."""
    data, here = settings.data, Path.cwd()
    found: dict[str, Any] = {
        key: here / value.expanduser()
        for key in ("root", "test_root", "labels", "cache")
        if (value := getattr(data, key)) is not None
    }
    if data.shards is not None:
        parts = data.shards.split("::")
        found["shards"] = "::".join(
            part if remote(part) or re.match(r"\{(.*,)?[/~]", part) else str(here / Path(part).expanduser())
            for part in parts
        )
    changed: dict[str, Any] = {"data": data.model_copy(update=found)}
    if (weights := settings.model.weights) not in (None, PUBLISHED):
        changed["model"] = settings.model.model_copy(update={"weights": str(here / Path(weights).expanduser())})
    return settings.model_copy(update=changed)


def with_weights(settings: Settings, run: Run) -> tuple[Settings, Weights | None]:
    """What the backbone of a run begins with, and the settings with the network it is of, where nobody said.

    None for random weights, and for a run whose checkpoint holds what became of them.
    """
    source = settings.model.weights
    if source is None or (run.path / "checkpoint.pt").exists():
        return settings, None
    kept = run.path / START
    open_ = left_open(settings, "model.backbone")
    weights = read_weights(str(kept) if kept.is_file() else source, None if open_ else settings.model.backbone)
    if weights.backbone is None and open_:
        first = next(iter(weights.state), "none")
        raise PrelaxError(
            f"{source}: these weights are of no network that is known by its names (the first is {first}); say which "
            "with model.backbone, for example model.backbone=timm:NAME"
        )
    wanted = settings.model.backbone
    own = ":" in wanted or str(weights.backbone).startswith("timm:")  # whose names may be torchvision's
    if not open_ and not own and weights.backbone not in (None, wanted):
        raise PrelaxError(
            f"{source} holds weights of a {weights.backbone}, and model.backbone is {wanted}: set "
            f"model.backbone={weights.backbone}, or take other weights"
        )
    told = {"model.backbone": weights.backbone if open_ else None}
    told["model.stem"] = weights.stem if left_open(settings, "model.stem") else None
    return with_values(settings, {key: value for key, value in told.items() if value is not None}), weights


def as_found(settings: Settings, images: ImageSet | ShardSet) -> Settings:
    """The settings with the size, channels and range that were chosen by what the images are."""
    found = {"image_size": images.shape[-1], "channels": images.shape[0], "range": images.range}
    wanted = {key: value for key, value in found.items() if getattr(settings.data, key) is None}
    return settings.model_copy(update={"data": settings.data.model_copy(update=wanted)})


def note_data(
    run: Run,
    settings: Settings,
    images: ImageSet | ShardSet,
    recorded: bool = False,
    weights: Weights | None = None,
) -> None:
    """What the run is trained on, to be recognised later (unless it is ``recorded``); what was left out, and why."""
    if not recorded:
        about: dict[str, Any] = {"images": len(images)}
        if isinstance(images, ShardSet):
            about["shards"], about["contents"] = images.digest, images.contents
        else:
            about["digest"], about["order"] = digests_of(images)
        if weights is not None:
            about["seen_before"] = weights.seen
        about["labelled"] = 0 if images.labels is None else int((images.labels >= 0).sum())
        about["first"] = images.paths[0] if images.paths else None
        if (views := described(settings)) is not None:
            about["views"] = views
            about["preprocess"] = to_keep(preprocess_of(settings, images.shape[0], images.shape[-1]))
        run.write("data.json", json.dumps(about) + "\n")
    elif images.paths:  # they may have been moved
        about = run.trained_on()
        if about.get("first") != images.paths[0]:
            run.write("data.json", json.dumps(about | {"first": images.paths[0]}) + "\n")
    for note in images.notes:
        run.log(note)
    for path, reason in images.skipped:
        run.log(f"skipped {path}: {reason}")


def forget(run: Run, say: Callable[[str], None]) -> None:
    """Removes what was measured of a network that learns on, and the page about it, and says what that was."""
    gone = [f"eval/{name}.json" for name, result in run.evals().items() if result.get("unfinished")]
    gone += ["report.html"] if (run.path / "report.html").exists() else []
    run.drop_unfinished()
    if gone:
        line = f"removed, being of the run before it was finished: {', '.join(gone)}"
        run.log(line)
        say(line)
