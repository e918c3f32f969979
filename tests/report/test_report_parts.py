"""The parts of a page: samples keep classes, neighbours are exact, thumbnails are where they should be."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prelax.config import resolve
from prelax.data import load
from prelax.loading import views_of
from prelax.record import Record
from prelax.report import embedding
from prelax.report.album import crop_box, steps, strips, unnormalised
from prelax.report.content import Cell
from prelax.report.gather import bars, charts, headline, mark_best, moves, results
from prelax.report.panels import strip
from prelax.report.render import to_json
from prelax.report.sections import number
from prelax.report.sprites import sprite


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=200), st.integers(1, 250), st.integers(0, 5))
def test_a_sample_holds_every_class_in_its_share(labels: list[int], points: int, seed: int) -> None:
    column = torch.tensor(labels)
    rows = embedding.sample(column, len(column), points, seed)
    assert len(rows) == min(points, len(column)) == len(rows.unique())
    for label in column.unique():
        share = float((column == label).sum()) / len(column)
        assert abs(int((column[rows] == label).sum()) - share * len(rows)) <= 3


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(1, 15), st.integers(0, 100))
def test_neighbours_are_those_of_plain_numpy(count: int, k: int, seed: int) -> None:
    features = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    expected = np.argsort(-cosine, axis=1)[:, : min(k, max(1, (count - 1) // 2))]  # all others are near to everyone
    assert np.array_equal(embedding.nearest(torch.from_numpy(features), k).numpy(), expected)


def test_agreement_counts_only_known_labels() -> None:
    labels = torch.tensor([0, 0, 1, -1])
    neighbours = torch.tensor([[1], [2], [0], [0]])
    assert embedding.agreement(labels, neighbours) == pytest.approx(100 / 3)
    assert embedding.agreement(torch.tensor([-1, -1]), torch.tensor([[1], [0]])) is None
    unknown = torch.tensor([[1, 3], [3, 0], [3, 3], [0, 1]])  # a neighbour without a label is neither right nor wrong
    assert embedding.agreement(torch.tensor([0, 0, 1, -1]), unknown) == 100.0


def test_of_one_class_there_is_nothing_to_agree_on() -> None:
    labels = torch.tensor([0, 0, 0, -1])  # a folder with one sub-folder
    assert embedding.agreement(labels, torch.tensor([[1], [2], [0], [0]])) is None


def test_tsne_keeps_far_groups_apart_and_inside_the_frame() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.eye(3).repeat_interleave(20, 0) @ torch.randn(3, 60, generator=generator)
    places = embedding.tsne(groups + 0.02 * torch.randn(60, 60, generator=generator), seed=0)
    assert places.min() >= 0
    assert places.max() <= 1
    centres = np.stack([places[i * 20 : i * 20 + 20].mean(0) for i in range(3)])
    spread = max(places[i * 20 : i * 20 + 20].std(0).max() for i in range(3))
    apart = min(np.linalg.norm(centres[i] - centres[j]) for i in range(3) for j in range(i))
    assert apart > 3 * spread


def test_a_collapsed_network_is_one_point() -> None:
    places = embedding.tsne(torch.ones(40, 8))
    assert np.allclose(places, 0.5)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_a_thumbnail_is_where_the_sheet_says(channels: int) -> None:
    images = torch.randint(256, (7, channels, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    packed = sprite(images)
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(packed.uri.split(",")[1]))).convert("RGB"))
    for index in range(7):
        row, column = divmod(index, packed.columns)
        cell = sheet[row * packed.side : (row + 1) * packed.side, column * packed.side : (column + 1) * packed.side]
        assert np.array_equal(cell[..., 0], images[index, 0].numpy())


def test_large_images_become_small_thumbnails() -> None:
    packed = sprite(torch.zeros(4, 3, 100, 160, dtype=torch.uint8))
    assert packed.side == 40


def test_steps_print_what_was_drawn() -> None:
    record = Record(
        {
            "crop.top": torch.tensor(2),
            "crop.left": torch.tensor(4),
            "crop.height": torch.tensor(8),
            "crop.width": torch.tensor(12),
            "crop.area": torch.tensor(0.375),
            "crop.aspect": torch.tensor(1.5),
            "jitter.applied": torch.tensor(False),
            "jitter.hue": torch.tensor(0.0),
            "jitter.order": torch.tensor([2, 0, 1, 3]),
            "blur.applied": torch.tensor(True),
            "blur.sigma": torch.tensor(1.25),
            "noise.seed": torch.tensor(123456789),
        }
    )
    assert steps(record) == [("crop", "area 0.38, aspect 1.50"), ("jitter", "no"), ("blur", "sigma 1.25")]
    assert crop_box(record, torch.Size((1, 3, 16, 16))) == (0.25, 0.125, 0.75, 0.5)


def test_a_jitter_tells_its_order_by_letters() -> None:
    factors = {f"jitter.{name}": torch.tensor(-0.001) for name in ("brightness", "contrast", "saturation", "hue")}
    record = Record({"jitter.applied": torch.tensor(True), **factors, "jitter.order": torch.tensor([3, 0, 2, 1])})
    assert steps(record)[0][1] == "brightness 0.00, contrast 0.00, saturation 0.00, hue 0.00, order h b s c"


def test_the_grid_shows_the_views_training_drew() -> None:
    settings = resolve("digits/prelax-rot", [])
    images = load(settings.data, "train").images[[5, 9]]
    ids = torch.tensor([5, 9])
    found = strips(settings, images, ids, ["a", "b"], epoch=3)
    views = views_of(settings, 1, 16)(images, ids, 3).images.view(3, 2, 1, 16, 16)
    pipeline = views_of(settings, 1, 16).pipelines[1]
    for view in range(3):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1].shots[view].uri.split(",")[1]))))
        assert np.array_equal(shown[..., 0], unnormalised(views[view, 1:], pipeline)[0, 0].numpy())
    assert [op for op, _ in found[0].shots[2].steps] == ["rotation", "all else"]


@pytest.mark.parametrize(("method", "views", "row"), [("prelax-rot", 3, "strip"), ("prelax-turns", 6, "strip many")])
def test_many_views_have_their_records_below_them(method: str, views: int, row: str) -> None:
    settings = resolve("digits/prelax-rot", [f"method.name={method}"])
    images = load(settings.data, "train").images[[5]]
    (one,) = strips(settings, images, torch.tensor([5]), ["a"], epoch=1)
    assert len(one.shots) == views
    assert strip(one).startswith(f'<div class="{row}">')


@pytest.mark.parametrize(
    ("method", "titles", "third", "fourth"),
    [
        ("prelax-rot", ["view 1", "view 2", "view 3: relaxed"], ["rotation", "as in view 1"], None),
        ("prelax-turns", ["view 2", "view 3: small, relaxed"], ["rotation", "as in view 1"], "as in view 1"),
        ("prelax-crops", ["view 2", "view 3: small, relaxed"], ["crop", "noise", "rotation"], "crop"),
        ("essl", ["view 2", "view 3: small, relaxed"], ["crop", "noise", "rotation"], "as in view 3"),
        ("simsiam-rotation-aug", ["view 1: relaxed", "view 2: relaxed"], None, None),
    ],
)
def test_a_view_on_top_of_another_tells_what_was_added_and_one_of_its_own_draw_tells_all(
    method: str, titles: list[str], third: list[str] | None, fourth: str | None
) -> None:
    settings = resolve("digits/prelax-rot", [f"method.name={method}"])
    (one,) = strips(settings, load(settings.data, "train").images[[5]], torch.tensor([5]), ["a"], epoch=1)
    said = [[text if op == "all else" else op for op, text in shot.steps] for shot in one.shots]
    assert set(titles) <= {shot.title for shot in one.shots}
    assert said[0][0] == "crop"
    assert third is None or said[2] == third
    assert fourth is None or fourth in said[3]


def test_results_keep_one_row_per_protocol_and_mark_the_best() -> None:
    knn = {"protocol": "knn", "dataset": "digits", "floor": 80.0}
    linear = {"protocol": "linear", "dataset": "digits"}
    rows = results(
        [{"a": {**knn, "accuracy": 90.0}}, {"b": {**knn, "accuracy": 91.0}, "c": {**linear, "accuracy": 95.0}}]
    )
    assert [row.protocol for row in rows] == ["linear", "knn"]
    assert [cell.best for cell in rows[1].cells if cell] == [False, True]
    assert rows[0].cells[0] is None
    assert (headline(rows, 0, "digits"), headline(rows, 1, "digits")) == (rows[1], rows[0])


def test_folders_of_one_name_are_rows_of_their_own() -> None:
    first, second = ({"protocol": "knn", "dataset": "photos", "root": f"/{name}/photos"} for name in "ab")
    rows = results([{"knn": {**first, "accuracy": 49.5}}, {"knn": {**second, "accuracy": 63.8}}])
    assert [(row.dataset, [cell.value if cell else None for cell in row.cells]) for row in rows] == [
        ("a/photos", [49.5, None]),
        ("b/photos", [None, 63.8]),
    ]
    assert headline(rows, 1, "photos") == rows[1]


def test_the_residual_is_shown_as_asked_on_the_runs_own_images() -> None:
    def found(value: float) -> dict:
        return {"protocol": "residual", "targets": {"crop.x": {"r2": value}}, "cosine_after": {"crop": value / 100}}

    evals = [{"residual": found(40.0), "residual-photos": found(7.0)}, {"residual-photos": found(9.0)}]
    (bar,), (move,) = bars(evals), moves(evals)
    assert [cell.value for cell in bar.cells if cell] == [40.0, 9.0]
    assert [cell.value for cell in move.cells if cell] == [0.4, 0.09]


def test_the_floor_of_the_knn_curve_is_that_of_the_runs_own_images() -> None:
    evals = {"knn-a": {"protocol": "knn", "floor": 10.0}, "knn": {"protocol": "knn", "floor": 80.0}}
    first, _ = charts([[{"epoch": 1, "knn": 90.0}]], [evals])
    assert [mark.value for chart in first for mark in chart.marks] == [80.0]


def test_a_tie_has_no_best() -> None:
    assert not any(cell.best for cell in mark_best([Cell(3.0), Cell(3.0)]) if cell)


def test_detection_scores_have_a_row_each() -> None:
    rows = results([{"coco": {"protocol": "detection", "dataset": "coco", "ap": 22.0, "ap50": 36.6, "seeds": [0]}}])
    assert {(row.measure, row.cells[0].value) for row in rows if row.cells[0]} == {("ap", 22.0), ("ap50", 36.6)}


@given(st.text(max_size=40))
def test_no_text_can_leave_its_script_element(text: str) -> None:
    import json

    packed = to_json({"text": text})
    assert not set("<>&\u2028\u2029") & set(packed)
    assert json.loads(packed)["text"] == text


def test_numbers_are_shown_to_a_tenth() -> None:
    said = [number(v) for v in (93.44, 0.1234, -9.5, -0.0, None, float("nan"))]
    assert said == ["93.4", "0.12", "−9.5", "0.0", "–", "–"]
