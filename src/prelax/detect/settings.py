"""What a detection run is made of, checked at the door."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from prelax.config import nearest
from prelax.errors import PrelaxError

MODELS = {
    "retinanet": "RetinaNet with a feature pyramid: boxes",
    "maskrcnn": "Mask R-CNN with a feature pyramid: boxes and outlines",
}
LR = {"retinanet": 0.01, "maskrcnn": 0.02}  # of the usual schedules, for 16 images
NORMS = {
    "auto": "trained from random weights, frozen from any others",
    "trained": "BatchNorm goes on learning, over all processes on CUDA",
    "frozen": "BatchNorm keeps the statistics, scale and shift of the weights",
}
PRECISIONS = {
    "auto": "bfloat16 on CUDA, float32 elsewhere",
    "bfloat16": "the backbone and its pyramid in bfloat16 (CUDA); heads and boxes, which need the digits, in float32",
    "float32": "everything in float32",
}
MANY = 8  # processes that decode, where there are so many cores: more find nothing to do


@dataclass(frozen=True)
class DetectSettings:
    """Settings of a detection run.

    Args:
        model: a name of ``MODELS``.
        epochs: passes over the training images; the rate falls tenfold after 8/12 and again after 11/12 of them.
        batch: images a step, over all processes.
        lr: the highest rate for a batch of 16, scaled with the batch; None is the model's own.
        size: the shorter side images are brought to, in pixels; the longer side stays within 5/3 of it.
        norm: a name of ``NORMS``. Frozen statistics do not depend on how small the batch is, but random weights have
            none worth freezing.
        score: predictions below it are not made.
        draws: sets of validation images drawn with replacement, for the standard errors; 0 makes none.
        clip: gradients are scaled down to this norm; Mask R-CNN from random weights begins with norms of 20 to 50 and
            can diverge without it, RetinaNet's are near 1.
        proposals: regions of an image that Mask R-CNN's heads are trained on at a step.
        device: auto, cpu, cuda or cuda:N.
        workers: processes that decode images; 0 decodes in this one, None is one a core, up to eight.
        precision: a name of ``PRECISIONS``.

    >>> DetectSettings(model="maskrcnn", batch=8).peak_lr
    0.01
    """

    model: str = "retinanet"
    epochs: int = 12
    batch: int = 16
    lr: float | None = None
    size: int = 320
    norm: str = "auto"
    score: float = 0.05
    draws: int = 100
    proposals: int = 512
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float = 10.0
    warmup_steps: int = 500  # a tenth of the run where that is less
    seed: int = 0
    device: str = "auto"
    workers: int | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name, known in (("model", MODELS), ("norm", NORMS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in known:
                raise PrelaxError(f"no {name} {value!r}{nearest(value, known)}")
        least = {"epochs": 1, "batch": 1, "size": 32, "proposals": 1, "seed": 0, "warmup_steps": 0}
        least |= {"workers": 0} if self.workers is not None else {}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise PrelaxError(f"{name}={getattr(self, name)}: it must be {low} or more")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise PrelaxError(f"lr={self.lr}: it must be above 0")
        if not self.clip > 0:
            raise PrelaxError(f"clip={self.clip}: it must be above 0")
        if self.draws == 1 or self.draws < 0:
            raise PrelaxError(f"draws={self.draws}: a standard error needs two or more, 0 for none")
        if not 0 <= self.score < 1:
            raise PrelaxError(f"score={self.score}: it must be from 0 up to 1")

    @property
    def masks(self) -> bool:
        """Whether outlines are learnt and scored."""
        return self.model == "maskrcnn"

    def decoders(self, world: int = 1) -> int:
        """The processes that decode for each of ``world`` that train."""
        if self.workers is not None:
            return self.workers
        return max(1, min(MANY, len(os.sched_getaffinity(0)) // world if hasattr(os, "sched_getaffinity") else 2))

    @property
    def base_lr(self) -> float:
        """The rate for 16 images."""
        return LR[self.model] if self.lr is None else self.lr

    @property
    def peak_lr(self) -> float:
        """The rate after warm-up."""
        return self.base_lr * self.batch / 16

    def rate(self, step: int, total: int) -> float:
        """The rate of a step of the run: linear warm-up, then two falls.

        >>> s = DetectSettings(lr=1.0, warmup_steps=2)
        >>> [round(s.rate(step, 24), 3) for step in (0, 1, 2, 15, 16, 21, 22)]
        [0.5, 1.0, 1.0, 1.0, 0.1, 0.1, 0.01]
        """
        warm = min(self.warmup_steps, total // 10)
        if step < warm:
            return self.peak_lr * (step + 1) / warm
        return self.peak_lr * 0.1 ** sum(step >= total * part / 12 for part in (8, 11))
