"""What can be known to be wrong before any work starts: names that do not exist, files that are not there."""

from __future__ import annotations

from collections.abc import Iterable

from prelax.config import Settings, nearest
from prelax.errors import PrelaxError


def check(settings: Settings) -> Settings:
    """The settings themselves, once every name in them is one there is; refuses with the nearest valid name.

    >>> from prelax.config import resolve
    >>> check(resolve("digits/simsiam", ["method.name=simsam"]))
    Traceback (most recent call last):
    prelax.errors.PrelaxError: method.name: no 'simsam'; did you mean simsiam?
    """
    from prelax.augment import operation
    from prelax.data.stored import ENDINGS
    from prelax.data.tars import expand
    from prelax.names import OPERATIONS, PRESETS, SOURCES
    from prelax.nets import check_backbone_name
    from prelax.objectives import METHODS, method, weighed

    if ":" in settings.method.name:
        method(settings.method.name)  # a user's own: refused here if it cannot be imported
    else:
        known(settings.method.name, METHODS, "method.name")
    if ":" in settings.method.relax:
        operation(settings.method.relax)  # a user's own: refused here if it cannot be imported
    else:
        known(settings.method.relax, [name for name in OPERATIONS if name != "normalise"], "method.relax")
    known(settings.data.source, SOURCES, "data.source")
    if ":" in settings.augment.preset:
        check_preset(settings)
    else:
        known(settings.augment.preset, [*PRESETS, "auto"], "augment.preset")
    check_backbone_name(settings.model.backbone)
    weighed(settings.method)
    if settings.method.asks is not None and "method.asks" not in idle(settings):
        check_asks(settings)
    root = settings.data.root
    if root is not None and not settings.data.download and not root.expanduser().exists():
        what = "file" if root.suffix.lower() in ENDINGS else "folder"
        raise PrelaxError(
            f"data.root: there is no {what} {root.expanduser().absolute()}; check the path (if the images were moved: "
            f"data.root={what.upper()} says where they are now)"
        )
    if settings.data.shards is not None:
        expand(settings.data.shards)
    elif settings.data.source == "folder" and root is None:
        raise PrelaxError("data.root is not set: say where the images are, for example data.root=./photos")
    return settings


def remarks(settings: Settings, changes: Iterable[str]) -> list[str]:
    """What was asked for and will do nothing, a line each.

    >>> from prelax.config import resolve
    >>> asked = ["method.eta=0.1", "method.beta=2"]
    >>> remarks(resolve("digits/prelax-rot", asked), asked)
    ['method.eta changes nothing: prelax-rot does not read it']

    Args:
        changes: the ``key=value`` that a user typed; what a recipe sets besides is not remarked on.
    """
    from prelax.objectives import method, terms_of
    from prelax.train.views import plain_pipelines

    asked = settings.method
    nothing = idle(settings)
    typed = dict.fromkeys(word.split("=", 1)[0] for word in changes)
    told = [f"{key} changes nothing: {asked.name} does not read it" for key in typed if key in nothing]
    if "train.turn" in typed and settings.train.optimizer != "muon":
        told.append("train.turn changes nothing: it is Muon's (train.optimizer=muon)")
    pretexts = [term.kind for term in terms_of(asked)]
    alone = "predict" in pretexts or ("relaxpl" in pretexts and asked.pl_anchor == "none")
    if alone and scrambled(settings):
        turns = asked.relax == "rotation"
        done, told_of = ("turns", "how it was turned") if turns else ("mirrors", "whether it was mirrored")
        instead = "method.name=simsiam" if turns or "predict" in pretexts else "method.pl_anchor=same"
        told.append(
            f"augment.preset={settings.augment.preset} {done} every view at random, so none can tell {told_of} "
            f"once more: take {instead}, or method.relax=NAME of another augmentation"
        )
    if settings.train.optimizer == "muon" and ":" in settings.model.backbone:
        told.append(
            f"train.optimizer=muon holds the length of every matrix of {settings.model.backbone} and decays none, "
            "which is right where a BatchNorm follows each (ResNets); of transformers it has not been tried: "
            "train.optimizer=adamw is the usual"
        )
    kept = [name for view in method(asked.name).views for name in view.shares if name != "relax"]
    if kept and not set(kept) & {op.name for op in plain_pipelines(settings, settings.data.channels or 3, 32)[0].ops}:
        told.append(
            f"{asked.name} keeps {' and '.join(kept)} in a space of its own, and these views have neither: that space "
            "learns nothing"
        )
    return told


def idle(settings: Settings) -> set[str]:
    """The settings that change nothing for the method that was chosen."""
    from prelax.objectives import method, unread

    nothing = {f"method.{name}" for name in unread(settings.method)}
    if not any(view.small for view in method(settings.method.name).views):
        nothing |= {"augment.small_size", "augment.small_area_from", "augment.small_area_to"}
    return nothing


def check_asks(settings: Settings) -> None:
    """Refuses a method.asks that names what neither colour nor grey images have drawn for them."""
    from prelax.record import asked_of
    from prelax.train.views import plain_pipelines

    refused: list[PrelaxError] = []
    for channels in (settings.data.channels,) if settings.data.channels else (3, 1):
        try:
            asked_of(plain_pipelines(settings, channels, 32)[0].specs_at((1, channels, 32, 32)), settings.method.asks)
        except PrelaxError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def check_preset(settings: Settings) -> None:
    """Refuses a user's own augment.preset that cannot be used, or that cannot be asked what the method asks."""
    from prelax.train.views import check_drawn, plain_pipelines

    data = settings.data
    check_drawn(settings, *plain_pipelines(settings, data.channels or 3, data.image_size or 32))


def scrambled(settings: Settings) -> bool:
    """Whether the views already have the relaxed augmentation, each of its values as likely: none can tell it alone."""
    from prelax.augment import Flip, QuarterTurn
    from prelax.train.views import plain_pipelines

    ops = [op for line in plain_pipelines(settings, 3, 32) for op in line.ops if op.name == settings.method.relax]
    return any(isinstance(op, QuarterTurn) or (isinstance(op, Flip) and op.p == 0.5) for op in ops)


def known(name: str, valid: Iterable[str], key: str) -> None:
    valid = list(valid)
    if name not in valid:
        raise PrelaxError(f"{key}: no {name!r}{nearest(name, valid)}")
