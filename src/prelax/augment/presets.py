"""Pipelines and operations by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prelax.augment.colour import Grey, Invert, Jitter, Normalise, Solarise
from prelax.augment.filters import Blur, Erase, Noise
from prelax.augment.geometry import Crop, Flip, QuarterTurn, crops_of, recropped
from prelax.augment.operation import Maybe, Operation, trait
from prelax.augment.pipeline import Pipeline
from prelax.augment.rearrange import FreeRotation, Jigsaw
from prelax.errors import PrelaxError
from prelax.names import OPERATIONS, PRESETS
from prelax.own import find_own, make_own

CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIGITS = ((0.3053,), (0.3189,))  # scikit-learn's digits, enlarged from 8 to 16 pixels

_BUILDERS: dict[str, Callable[..., Operation]] = {
    "crop": Crop,
    "flip": Flip,
    "vertical-flip": lambda **options: Flip(vertical=True, **options),
    "rotation": QuarterTurn,
    "free-rotation": FreeRotation,
    "jigsaw": Jigsaw,
    "jitter": Jitter,
    "grey": Grey,
    "solarise": Solarise,
    "invert": Invert,
    "blur": Blur,
    "erase": Erase,
    "noise": Noise,
    "normalise": Normalise,
}


def _none(size: int) -> tuple[list[Operation], ...]:
    return ([Crop(size, (1.0, 1.0), (1.0, 1.0)), Normalise(*IMAGENET)],)


def _simsiam_32(size: int) -> tuple[list[Operation], ...]:
    return ([Crop(size, (0.2, 1.0)), Flip(), Jitter(0.4, 0.4, 0.4, 0.1, p=0.8), Grey(0.2), Normalise(*CIFAR)],)


def _simsiam_224(size: int) -> tuple[list[Operation], ...]:
    # SimSiam's ImageNet script blurs before it flips; the blur of a mirror image is the mirror of the blur.
    ops: list[Operation] = [
        Crop(size, (0.2, 1.0)),
        Flip(),
        Jitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        Grey(0.2),
        Blur(p=0.5),
        Normalise(*IMAGENET),
    ]
    return (ops,)


def _byol(size: int) -> tuple[list[Operation], ...]:
    def view(blur: float, solarise: float) -> list[Operation]:
        return [
            Crop(size, (0.08, 1.0), interpolation="bicubic"),
            Flip(),
            Jitter(0.4, 0.4, 0.2, 0.1, p=0.8),
            Grey(0.2),
            Blur(p=blur),
            Solarise(p=solarise),
            Normalise(*IMAGENET),
        ]

    return view(1.0, 0.0), view(0.1, 0.2)


def _digits(size: int) -> tuple[list[Operation], ...]:
    return ([Crop(size, (0.4, 1.0)), Noise((0.0, 0.1)), Normalise(*DIGITS)],)


def _medical(size: int) -> tuple[list[Operation], ...]:
    ops: list[Operation] = [
        Crop(size, (0.6, 1.0)),
        Flip(),
        Maybe(FreeRotation(10.0), 0.5),
        Jitter(0.2, 0.2, 0.0, 0.0, p=0.5),
        Blur(sigma=(0.1, 1.0), p=0.2),
        Noise((0.0, 0.03)),
        Normalise(*IMAGENET),
    ]
    return (ops,)


def _satellite(size: int) -> tuple[list[Operation], ...]:
    ops: list[Operation] = [
        Crop(size, (0.4, 1.0)),
        Flip(),
        Flip(vertical=True),
        QuarterTurn(),
        Jitter(0.2, 0.2, 0.2, 0.02, p=0.5),
        Blur(sigma=(0.1, 1.0), p=0.1),
        Normalise(*IMAGENET),
    ]
    return (ops,)


_VIEWS: dict[str, tuple[Callable[[int], tuple[list[Operation], ...]], int]] = {
    "none": (_none, 224),
    "simsiam-32": (_simsiam_32, 32),
    "simsiam-224": (_simsiam_224, 224),
    "byol-128": (_byol, 128),
    "byol-224": (_byol, 224),
    "digits": (_digits, 16),
    "medical": (_medical, 224),
    "satellite": (_satellite, 224),
}


def _unknown(name: str, known: dict[str, Any], what: str) -> PrelaxError:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
    return PrelaxError(f"no {what} is called {name!r}: {hint}")


def presets(name: str, size: int | None = None, channels: int = 3) -> tuple[Pipeline, Pipeline]:
    """The pipelines of view 1 and view 2; the same one twice where the preset is symmetric.

    >>> one, two = presets("byol-128")
    >>> one.ops[4].p, two.ops[4].p
    (1.0, 0.1)

    Args:
        name: a name of ``PRESETS``, or ``MODULE:NAME`` of a user's own pipeline or pair of them.
        size: side of the views, if not the preset's own.
        channels: of the images; operations that need RGB are left out for other than 3, but not of a user's own.
    """
    if ":" in name:
        return own_presets(name, size)
    if name not in _VIEWS:
        raise _unknown(name, PRESETS, "preset")
    build, own_size = _VIEWS[name]
    views = [
        Pipeline([_fit(op, channels) for op in ops if channels == 3 or not trait(op, "needs_rgb")])
        for ops in build(size or own_size)
    ]
    return views[0], views[-1]


def own_presets(name: str, size: int | None = None) -> tuple[Pipeline, Pipeline]:
    """A user's own pipelines, ``MODULE:NAME``: a ``Pipeline`` for both views, or a pair; refused if they cannot be."""
    found = find_own(name, "augment.preset")
    one, two = found if isinstance(found, tuple | list) and len(found) == 2 else (found, found)
    for view in (one, two):
        if not isinstance(view, Pipeline):
            raise PrelaxError(
                f"augment.preset {name} is of type {type(view).__name__}; make it a prelax.augment.Pipeline, or a "
                "pair of them for views 1 and 2"
            )
    if size is not None:
        same = two is one
        one = _sized(one, size, name)
        two = one if same else _sized(two, size, name)
    for side in (96, 160):  # where one view is cropped and the other is not, one of these tells
        shapes = {view.output_shape((1, 3, side, side))[2:] for view in (one, two)}
        if len(shapes) > 1 or any(height != width for height, width in shapes):
            said = " and ".join(f"{height} x {width}" for height, width in sorted(shapes))
            raise PrelaxError(
                f"augment.preset {name}: views of images of {side} px are {said} px; make them squares of one size"
            )
    return one, two


def _sized(pipeline: Pipeline, size: int, name: str) -> Pipeline:
    """A user's own pipeline with its last crop to this size."""
    ops = list(pipeline.ops)
    last = max((n for n, op in enumerate(ops) if crops_of([op])), default=None)
    if last is None:
        raise PrelaxError(f"augment.size={size} is the side of a crop, and {name} has none: augment.size=none")
    ops[last] = recropped(ops[last], lambda crop: replace(crop, size=size))
    sized = Pipeline(ops)
    if sized.output_shape((1, 3, 96, 96))[2:] != (size, size):
        raise PrelaxError(f"augment.size={size}: {name} changes the size behind its last crop: augment.size=none")
    return sized


def preset(name: str, size: int | None = None, channels: int = 3) -> Pipeline:
    """The one pipeline of a symmetric preset."""
    one, two = presets(name, size, channels)
    if one is not two:
        raise PrelaxError(f"{name} has a pipeline for each view: use `one, two = presets({name!r})`")
    return one


def operation(name: str, **options: Any) -> Operation:
    """An operation by name, for example ``operation("jigsaw", grid=3)``, or a user's own as ``module:Class``.

    >>> operation("rotation").targets[0].classes
    4
    """
    if ":" in name:
        return _own(name, options)
    if name not in _BUILDERS:
        raise _unknown(name, OPERATIONS, "augmentation")
    try:
        return _BUILDERS[name](**options)
    except TypeError as error:
        raise PrelaxError(f"augmentation {name}: {str(error).split('()')[-1].strip()}") from None


def operations_of(*pipelines: Pipeline) -> dict[str, Operation]:
    """What pipelines do to an image by name, each as the one that does it most often; whole crops are left out.

    >>> operations_of(*presets("byol-128"))["solarise"].p
    0.2
    """
    found: dict[str, Operation] = {}
    for pipeline in pipelines:
        for op in pipeline.ops:
            if isinstance(op, Normalise) or any(crop.scale[0] == 1.0 for crop in crops_of([op])):
                continue
            before = found.get(op.name)
            found[op.name] = op if before is None or trait(op, "p", 1.0) > trait(before, "p", 1.0) else before
    return found


def as_set(name: str, pipelines: Sequence[Pipeline], size: int, channels: int = 3) -> Operation:
    """An operation by name as the pipelines set it; what they do not do, as SimSiam does it, or as by default.

    >>> as_set("crop", presets("medical"), 32).scale, as_set("crop", presets("none"), 32).scale
    ((0.6, 1.0), (0.2, 1.0))
    """
    known = operations_of(*presets("simsiam-32", size, channels)) | operations_of(*pipelines)
    op = known.get(name) or operation(name)
    return recropped(op, lambda crop: replace(crop, size=size))


def _own(name: str, options: dict[str, Any]) -> Operation:
    """An operation of a user's class."""
    made: Operation = make_own(name, "augmentation", **options)
    missing = [part for part in ("name", "targets", "make_params", "transform") if not hasattr(made, part)]
    if missing:
        raise PrelaxError(f"augmentation {name} lacks {', '.join(missing)}: see docs/augmentations.md")
    return made


def _fit(op: Operation, channels: int) -> Operation:
    """Normalise with as many channels as the images have."""
    if isinstance(op, Normalise) and len(op.mean) != channels:
        return Normalise((sum(op.mean) / len(op.mean),), (sum(op.std) / len(op.std),))
    return op
