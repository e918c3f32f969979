"""COCO's format: what is read, what is left out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models.detection.transform import resize_boxes

from prelax.detect.batches import Samples, addresses, mirror
from prelax.detect.coco import LEAST, LEAST_SHARE, check_alike, corners, fault, mask_of, read_coco
from prelax.errors import PrelaxError


def rewrite(toy: Path, tree: dict[str, Any], *splits: str) -> None:
    for split in splits or ("train", "val"):
        (toy / f"instances_{split}.json").write_text(json.dumps(tree))


def test_labels_follow_the_category_ids_whatever_their_order_in_the_file(toy: Path) -> None:
    coco = read_coco(toy, "train", masks=True)
    assert coco.categories == {10: "red", 20: "blue"}
    assert coco.labels == {10: 1, 20: 2}
    assert len(coco) == 2
    assert coco.left_out == []


def test_the_official_layout_is_read_too(toy: Path) -> None:
    (toy / "annotations").mkdir()
    for split in ("train", "val"):
        (toy / f"instances_{split}.json").rename(toy / "annotations" / f"instances_{split}2017.json")
        (toy / split).rename(toy / f"{split}2017")
    assert len(read_coco(toy, "train")) == 2


def test_a_mask_covers_its_rectangle_and_a_mirrored_sample_is_the_mirror_image(toy: Path) -> None:
    samples = Samples(read_coco(toy, "train", masks=True), True, seed=0)
    plain, target = samples[(-1, 0)]
    assert target["boxes"][0].tolist() == [8, 10, 38, 34]
    assert target["masks"][0].sum() == 30 * 24
    assert target["masks"][0, 10:34, 8:38].all()
    turned = next(s for epoch in range(20) if not torch.equal((s := samples[(epoch, 0)])[0], plain))
    assert torch.equal(turned[0], plain.flip(-1))
    assert turned[1]["boxes"][0].tolist() == [96 - 38, 10, 96 - 8, 34]
    assert torch.equal(turned[1]["masks"], target["masks"].flip(-1))
    again = [torch.equal(samples[(epoch, 0)][0], plain) for epoch in range(20)]
    assert again == [torch.equal(samples[(epoch, 0)][0], plain) for epoch in range(20)]
    assert 4 < sum(again) < 16  # about half


def test_processes_share_a_batch_and_an_epoch_sees_no_image_twice() -> None:
    whole = list(addresses(10, 4, seed=3, steps=range(4)))
    parts = [list(addresses(10, 4, seed=3, steps=range(4), rank=rank, world=2)) for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == [sorted(batch) for batch in whole]
    first = [row for batch in whole[:2] for _, row in batch]
    assert len(set(first)) == 8
    assert {epoch for batch in whole[2:] for epoch, _ in batch} == {1}


def test_what_cannot_be_used_is_left_out_and_counted(toy: Path, tree: dict[str, Any]) -> None:
    good = tree["annotations"][0]
    for number, change in enumerate(
        [
            {"bbox": [5, 5, 0, 9]},
            {"bbox": [200, 5, 9, 9]},
            {"bbox": [5, 5, float("nan"), 9]},
            {"bbox": [5, 5]},
            {"category_id": 99},
            {"image_id": 12345},
            {"image_id": [7]},
            {"category_id": {"id": 10}},
            {"segmentation": [[1, 1, 2, 2]]},
            {"segmentation": []},
        ],
        start=100,
    ):
        tree["annotations"].append(good | change | {"id": number})
    tree["images"] += [
        {"id": 50, "file_name": "nowhere.png", "width": 96, "height": 72},
        {"id": 51, "file_name": "torn.jpg", "width": 96, "height": 72},
        {"id": 52, "file_name": "other.png", "width": 96, "height": 72},
        {"id": 53, "file_name": "empty.png", "width": 96, "height": 72},
    ]
    tree["annotations"].append(good | {"image_id": 50, "id": 200})
    rewrite(toy, tree)
    for name, size in (("other.png", (30, 20)), ("empty.png", (96, 72))):
        Image.new("RGB", size).save(toy / "train" / name)
    noise = np.random.default_rng(0).integers(0, 255, (72, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).save(toy / "train" / "torn.jpg")
    whole = (toy / "train" / "torn.jpg").read_bytes()
    (toy / "train" / "torn.jpg").write_bytes(whole[: len(whole) // 2])

    coco = read_coco(toy, "train", masks=True)
    assert coco.counts() == {
        "image file missing": 1,
        "image file cannot be read": 1,
        "image file of another size than its annotations": 1,
        "box of no size inside its image": 2,
        "box is not four numbers": 2,
        "unknown category": 1,
        "unknown image": 1,
        "annotation without image_id, category_id or bbox": 2,
        "no outline that can be drawn": 2,
    }
    assert sum(map(len, coco.objects)) == 4
    assert "no outline that can be drawn" not in read_coco(toy, "train", masks=False).counts()
    learnt = coco.with_objects()
    assert len(learnt) == 2
    assert learnt.counts()["image without objects"] == 1
    assert len(coco) == 3  # an image without objects stays where scores are made: what is found there is wrong


def test_a_box_over_the_edge_is_cut_to_the_image(toy: Path, tree: dict[str, Any]) -> None:
    tree["annotations"][0]["bbox"] = [-5, 60, 30, 40]
    rewrite(toy, tree)
    assert Samples(read_coco(toy, "train"), False, 0).target(0)["boxes"][0].tolist() == [0, 60, 25, 72]


def test_crowds_are_scored_around_but_not_learnt(toy: Path, tree: dict[str, Any]) -> None:
    runs = {"size": [72, 96], "counts": [0, 72 * 10, 72 * 86]}
    tree["annotations"][0] |= {"iscrowd": 1, "segmentation": runs}
    rewrite(toy, tree)
    coco = read_coco(toy, "train", masks=True)
    assert coco.objects[0][0]["iscrowd"] == 1
    assert len(Samples(coco, True, 0).target(0)["labels"]) == 1
    assert mask_of(runs, 96, 72)[:, :10].all()


def test_a_photo_stored_on_its_side_is_turned_where_the_annotations_were_drawn_upright(toy: Path) -> None:
    upright = np.zeros((72, 96, 3), np.uint8)
    upright[:, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    Image.fromarray(np.rot90(upright, 1).copy()).save(toy / "train" / "7.png", exif=exif)
    assert (read_coco(toy, "train").pixels(0) == upright).all()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "instances_train.json").unlink(), "holds no COCO train split"),
        (lambda root: (root / "instances_train.json").write_text("{"), "is not COCO's instances JSON"),
        (lambda root: (root / "instances_train.json").write_text('{"images": []}'), "is not COCO's instances JSON"),
        (lambda root: (root / "train").rename(root / "elsewhere"), "the folder of its images"),
        (lambda root: [path.unlink() for path in (root / "train").iterdir()], "2 x image file missing"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_refused_in_a_line(toy: Path, spoil: Any, said: str) -> None:
    spoil(toy)
    with pytest.raises(PrelaxError, match=said) as error:
        read_coco(toy, "train")
    assert "\n" not in str(error.value)


def test_a_file_name_that_is_none_is_refused(toy: Path, tree: dict[str, Any]) -> None:
    tree["images"][0]["file_name"] = 5
    rewrite(toy, tree)
    with pytest.raises(PrelaxError, match="an image needs id, file_name"):
        read_coco(toy, "train")


def test_an_outline_keeps_its_parts_that_are_polygons(toy: Path, tree: dict[str, Any]) -> None:
    whole = read_coco(toy, "train", masks=True)
    tree["annotations"][0]["segmentation"].append([9, 11, 12, 12])
    rewrite(toy, tree)
    coco = read_coco(toy, "train", masks=True)
    assert coco.counts() == {}
    assert coco.objects == whole.objects


def test_what_is_written_as_the_text_0_is_no_crowd(toy: Path, tree: dict[str, Any]) -> None:
    for thing, crowd in zip(tree["annotations"], ("0", "1", None, False), strict=True):
        thing["iscrowd"] = crowd
    rewrite(toy, tree)
    things = [thing for image in read_coco(toy, "train").objects for thing in image]
    assert [thing["iscrowd"] for thing in things] == [0, 1, 0, 0]


def test_an_image_id_given_twice_is_refused(toy: Path, tree: dict[str, Any]) -> None:
    tree["images"].append(tree["images"][0])
    rewrite(toy, tree)
    with pytest.raises(PrelaxError, match="two images have the id 7"):
        read_coco(toy, "train")


def test_splits_that_name_categories_differently_are_refused(toy: Path) -> None:
    other = json.loads((toy / "instances_val.json").read_text())
    other["categories"][0]["name"] = "green"
    rewrite(toy, other, "val")
    with pytest.raises(PrelaxError, match="category 20 is blue in toy/train and green in toy/val"):
        check_alike(read_coco(toy, "train"), read_coco(toy, "val"))


@pytest.mark.parametrize("left", [96 - 1e-5, 96 - 5e-7, 96 - 0.0099])
def test_a_box_too_thin_for_float32_is_left_out(toy: Path, tree: dict[str, Any], left: float) -> None:
    tree["annotations"][0]["bbox"] = [left, 10, 20, 30]
    rewrite(toy, tree)
    coco = read_coco(toy, "train")
    assert coco.counts() == {"box of no size inside its image": 1}
    assert len(Samples(coco, False, 0).target(0)["boxes"]) == 1


@pytest.mark.parametrize("width", [96, 5000, 60000])
def test_the_thinnest_box_survives_mirroring_and_resizing(width: int) -> None:
    thin = max(LEAST, LEAST_SHARE * width) * 1.001
    images = {1: {"width": width, "height": 40}}
    for left in torch.linspace(0, width - thin, 997, dtype=torch.float64).tolist():
        thing = {"image_id": 1, "category_id": 1, "bbox": [left, 3, thin, 30]}
        assert fault(thing, images, {1}, [1], False) is None
        box = torch.tensor([corners(thing["bbox"], width, 40)], dtype=torch.float32)
        _, mirrored = mirror(torch.empty(3, 1, width), {"boxes": box})
        for boxes in (box, mirrored["boxes"]):
            for small in (31, 320, 1333):
                resized = resize_boxes(boxes, [40, width], [32, small])
                assert bool((resized[:, 2:] > resized[:, :2]).all())


def test_sizes_written_as_text_are_read_as_numbers(toy: Path, tree: dict[str, Any]) -> None:
    plain = read_coco(toy, "train")
    for image in tree["images"]:
        image |= {"width": "96", "height": "72"}
    rewrite(toy, tree)
    coco = read_coco(toy, "train", masks=True)
    assert (coco.left_out, coco.digest) == ([], plain.digest)
    assert Samples(coco, True, 0)[(-1, 0)][0].shape == (3, 72, 96)


def test_an_infinite_size_is_refused(toy: Path, tree: dict[str, Any]) -> None:
    tree["images"][0]["width"] = float("inf")
    rewrite(toy, tree)
    with pytest.raises(PrelaxError, match="an image needs id, file_name, width and height"):
        read_coco(toy, "train")
