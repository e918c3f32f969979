"""Augmentations that record: parameters for every image of a batch, where the batch is, and the record of them."""

from prelax.augment.adjust import adjust, showing
from prelax.augment.colour import Grey, Invert, Jitter, Normalise, Solarise
from prelax.augment.filters import Blur, Erase, Noise
from prelax.augment.geometry import Crop, Flip, QuarterTurn, crops_of, recropped
from prelax.augment.host import batch_of, host_stage
from prelax.augment.operation import Maybe, Named, Operation, bare, targets_at
from prelax.augment.pipeline import Pipeline, relaxation, relaxed_pipelines, relaxed_view, show_relaxed
from prelax.augment.presets import as_set, operation, operations_of, preset, presets
from prelax.augment.rearrange import FreeRotation, Jigsaw
from prelax.augment.storage import load_record, save_record
from prelax.names import OPERATIONS, PRESETS

__all__ = [
    "OPERATIONS",
    "PRESETS",
    "Blur",
    "Crop",
    "Erase",
    "Flip",
    "FreeRotation",
    "Grey",
    "Invert",
    "Jigsaw",
    "Jitter",
    "Maybe",
    "Named",
    "Noise",
    "Normalise",
    "Operation",
    "Pipeline",
    "QuarterTurn",
    "Solarise",
    "adjust",
    "as_set",
    "bare",
    "batch_of",
    "crops_of",
    "host_stage",
    "load_record",
    "operation",
    "operations_of",
    "preset",
    "presets",
    "recropped",
    "relaxation",
    "relaxed_pipelines",
    "relaxed_view",
    "save_record",
    "show_relaxed",
    "showing",
    "targets_at",
]
