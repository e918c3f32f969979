"""Predictions in COCO's format, and what pycocotools makes of them."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from prelax.detect.batches import Samples, Stream
from prelax.detect.coco import CocoSet, pycocotools
from prelax.draws import Draws
from prelax.train.processes import Process

MEASURES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")  # the first six figures of COCOeval
RECALL = 8  # the ninth: of the objects, how many are among the 100 best boxes
REDRAWN = ("AP", "AP50", "AP75", "AR")  # those that have a standard error
SCORE_BATCH = 8


@torch.no_grad()
def predict(
    model: nn.Module, val: CocoSet, device: torch.device, workers: int = 0, process: Process | None = None
) -> list[dict[str, Any]]:
    """What a detector finds in every image of a set, as COCO results; over all processes, in the first."""
    process = process or Process()
    numbers = list(val.categories)
    rows = list(range(len(val)))[process.rank :: process.world]
    wanted = [[(-1, row) for row in rows[at : at + SCORE_BATCH]] for at in range(0, len(rows), SCORE_BATCH)]
    found: list[dict[str, Any]] = []
    model.eval()
    for addresses, (images, _) in zip(wanted, Stream(Samples(val, False, 0), wanted, workers, device), strict=True):
        for (_, row), output in zip(addresses, model(images), strict=True):
            found += as_results(output, val.images[row]["id"], numbers)
    if process.world == 1:
        return found
    gathered: list[Any] = [None] * process.world
    dist.all_gather_object(gathered, found)
    return [result for part in gathered for result in part]


def as_results(output: dict[str, Tensor], image: int, numbers: list[int]) -> list[dict[str, Any]]:
    """A detector's output on one image as COCO results: boxes as (left, top, width, height), masks as run lengths.

    >>> boxes, labels, scores = torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([2]), torch.tensor([0.5])
    >>> as_results({"boxes": boxes, "labels": labels, "scores": scores}, 7, [10, 20])
    [{'image_id': 7, 'category_id': 20, 'bbox': [1.0, 2.0, 3.0, 6.0], 'score': 0.5}]
    """
    boxes, labels, scores = (output[key].cpu().tolist() for key in ("boxes", "labels", "scores"))
    results: list[dict[str, Any]] = []
    for place, (box, label, score) in enumerate(zip(boxes, labels, scores, strict=True)):
        left, top, right, bottom = box
        if label == 0 or right <= left or bottom <= top:  # the background, which RetinaNet has an idle output for
            continue
        result = {"image_id": image, "category_id": numbers[label - 1], "bbox": [left, top, right - left, bottom - top]}
        if "masks" in output:
            mask = (output["masks"][place, 0] >= 0.5).to(torch.uint8).cpu().numpy()  # H x W
            runs = pycocotools().mask.encode(np.asfortranarray(mask))
            result["segmentation"] = {"size": runs["size"], "counts": runs["counts"].decode("ascii")}
        results.append(result | {"score": score})
    return results


def average_precision(
    val: CocoSet, results: list[dict[str, Any]], kind: str = "box", any_class: bool = False
) -> dict[str, float | None]:
    """AP, AP50, AP75, AP by size and AR of COCO results, in percent; None where there is nothing of a size.

    Args:
        kind: ``box`` or ``mask``.
        any_class: all categories are one: whether objects are found, not what they are called. A mean over categories
            of a few objects each says little; this has all objects in it.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints what it does
        judge = judged(val, results, kind, any_class)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    figures = dict(zip(MEASURES, judge.stats, strict=False)) | {"AR": judge.stats[RECALL]}
    return {name: round(100 * float(value), 3) if value >= 0 else None for name, value in figures.items()}


def standard_error(
    val: CocoSet, results: list[dict[str, Any]], kind: str = "box", draws: int = 100, any_class: bool = False
) -> dict[str, float]:
    """How far AP, AP50, AP75 and AR would move with other images of the same kind, in percent.

    The standard deviation over ``draws`` sets of as many images, drawn from these with replacement. What another
    training would change is not in it.
    """
    spread = np.std(redrawn(val, results, kind, draws, any_class), axis=0, ddof=1)
    return {name: round(float(value), 3) for name, value in zip(REDRAWN, spread, strict=True)}


def redrawn(
    val: CocoSet, results: list[dict[str, Any]], kind: str = "box", draws: int = 100, any_class: bool = False
) -> np.ndarray:
    """AP, AP50, AP75 and AR over sets of as many images drawn with replacement, in percent: a row a draw.

    The draws are the same for all results, so the difference of two detectors' figures has a spread of its own.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        judge = judged(val, results, kind, any_class)
        judge.params.areaRng, judge.params.areaRngLbl = judge.params.areaRng[:1], judge.params.areaRngLbl[:1]
        judge.params.maxDets = judge.params.maxDets[-1:]
        judge.evaluate()
        images = len(judge.params.imgIds)
        once = [judge.evalImgs[at : at + images] for at in range(0, len(judge.evalImgs), images)]  # by category
        figures = []
        for draw in range(draws):
            taken = Draws(0, images).at("detect", "images", draw).integers("taken", images).tolist()
            judge.evalImgs = [category[place] for category in once for place in taken]
            judge.accumulate()
            precision = judge.eval["precision"]  # thresholds x recalls x categories x 1 x 1
            parts = (precision, precision[0], precision[5], judge.eval["recall"])
            figures.append([100 * mean_of(part) for part in parts])
    return np.array(figures)


def mean_of(precision: np.ndarray) -> float:
    """The mean over categories that occur; 0 where none does."""
    known = precision[precision > -1]
    return float(known.mean()) if known.size else 0.0


def judged(val: CocoSet, results: list[dict[str, Any]], kind: str, any_class: bool = False) -> Any:
    """pycocotools' judge of some results."""
    coco, cocoeval = pycocotools().coco, pycocotools().cocoeval
    truth = index(coco.COCO(), val, [thing for things in val.objects for thing in things])
    if results:
        fields = ("image_id", "category_id", "score", "bbox" if kind == "box" else "segmentation")
        found = truth.loadRes([{key: result[key] for key in fields} for result in results])
    else:  # which loadRes does not take
        found = index(coco.COCO(), val, [])
    judge = cocoeval.COCOeval(truth, found, "bbox" if kind == "box" else "segm")
    judge.params.useCats = int(not any_class)
    return judge


def index(coco: Any, val: CocoSet, annotations: list[dict[str, Any]]) -> Any:
    """A pycocotools ``COCO`` of a set; annotations are numbered from 1, for it takes number 0 for no match."""
    coco.dataset = {
        "info": {},
        "images": val.images,
        "categories": [{"id": number, "name": name} for number, name in val.categories.items()],
        "annotations": [dict(thing, id=number) for number, thing in enumerate(annotations, start=1)],
    }
    coco.createIndex()
    return coco
