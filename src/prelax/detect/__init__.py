"""Boxes and outlines: a backbone fine-tuned as a detector on a dataset in COCO's format, and its scores."""

from __future__ import annotations

from prelax.detect.coco import CocoSet, read_coco
from prelax.detect.detect import detect
from prelax.detect.model import MODELS, Start, detector, read_start
from prelax.detect.score import average_precision
from prelax.detect.settings import DetectSettings

__all__ = [
    "MODELS",
    "CocoSet",
    "DetectSettings",
    "Start",
    "average_precision",
    "detect",
    "detector",
    "read_coco",
    "read_start",
]
