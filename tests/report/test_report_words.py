"""What a page says of its figures: how many images, over what, whose tick it is, and what cannot be told."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from html import unescape
from pathlib import Path

import pytest
from PIL import Image

from prelax.cli import main
from prelax.cli.training import next_commands
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.evaluate.relaxing import FEW
from prelax.report import figures, report
from prelax.report.content import Cell
from prelax.report.gather import attempt, bars, charts, effects, mark_best, results
from prelax.report.knowing import tick_name
from prelax.report.page import gather
from prelax.report.render import read, render
from prelax.report.sections import gauge, prose, repeated
from prelax.run import Run


def text_of(html: str) -> str:
    """The words of a page, without its scripts."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def without_results(run: Run, labelled: int | None) -> Run:
    for path in (run.path / "eval").glob("*.json"):
        path.unlink()
    if labelled is not None:
        run.write("data.json", json.dumps({"images": 30, "labelled": labelled}))
    return run


# -- the residual ------------------------------------------------------------------------------------------------------


def probe(**told: float) -> dict:
    return {"residual": {"protocol": "residual", "targets": {"rotation.turns": {"accuracy": 90.0, **told}}}}


def test_the_tick_is_called_what_it_is() -> None:
    random, guess = probe(random=60.0, floor=25.0), probe(floor=25.0)
    assert tick_name(bars([random])) == "black tick: random weights"
    assert tick_name(bars([guess])) == "black tick: a guess"
    assert tick_name(bars([random, guess])) == "black tick: random weights or a guess"
    assert tick_name(bars([probe()])) == ""
    assert [cell.floor for cell in bars([random, guess])[0].cells if cell] == [60.0, 25.0]


def test_the_axis_and_the_page_name_the_tick(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    run.write_eval("residual", probe(random=60.0, floor=25.0)["residual"])
    assert "random weights" in figures.draw_residual_probe([run], tmp_path / "one")[1].read_text()
    assert 'title="random weights: 60.0"' in render(gather([run], points=0))
    run.write_eval("residual", probe(floor=25.0)["residual"])
    assert "a guess" in figures.draw_residual_probe([run], tmp_path / "two")[1].read_text()
    assert 'title="a guess: 25.0"' in render(gather([run], points=0))


def test_the_command_that_makes_a_probe_can_be_pasted(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "my run", epochs=2)
    with pytest.raises(PrelaxError) as error:
        figures.draw_residual_probe([run], tmp_path / "probe")
    words = shlex.split(str(error.value).split("`")[1])
    assert words == ["prelax", "evaluate", str(run.path), "--protocol", "residual"]


# -- no labels ---------------------------------------------------------------------------------------------------------


def test_images_without_labels_are_not_told_to_be_evaluated(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = without_results(run_folder(tmp_path / "flat", epochs=2), labelled=0)
    text = text_of(render(gather([run], points=0)))
    assert "no labels, so there is nothing to measure by" in text
    assert "sub-folders named after classes" in text
    assert f"prelax evaluate {run.path} --labels FILE.csv" in text
    assert f"prelax evaluate {run.path} --on FOLDER" in text
    assert "No evaluation yet" not in text
    assert "Not evaluated yet" not in text


@pytest.mark.parametrize("labelled", [30, None])
def test_a_run_with_labels_is_told_how_to_be_evaluated(
    labelled: int | None, run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    run = without_results(run_folder(tmp_path / "my run", epochs=2), labelled)
    flat = without_results(run_folder(tmp_path / "flat", epochs=2), labelled=0)
    text = text_of(render(gather([flat, run], points=0)))
    assert f"No evaluation yet: prelax evaluate '{run.path}' makes one." in text


LABELS = {"one class": ["cat"] * 12, "two": ["cat", "dog"] * 6}


@pytest.mark.parametrize(
    ("kind", "held_out", "says"),
    [
        ("one class", 0.2, "all labelled images are of one class (cat), and measuring needs two."),
        ("two", 0.0, "none of them were held out of training."),
        ("two", 0.2, None),
    ],
)
def test_an_evaluation_is_proposed_only_where_it_can_work(
    kind: str, held_out: float, says: str | None, run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    for number, label in enumerate(LABELS[kind]):
        (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), number * 20).save(tmp_path / "set" / label / f"{number}.png")
    data = ("data.source=folder", f"data.root={tmp_path / 'set'}", f"data.cache={tmp_path / 'cache'}")
    run = run_folder(tmp_path / "run", epochs=2, pairs=(*data, f"data.test_fraction={held_out}"))
    text = text_of(render(gather([without_results(run, labelled=None)], points=0)))
    if says is None:
        assert f"No evaluation yet: prelax evaluate {run.path} makes one." in text
    else:
        assert f"It cannot be measured by its own images: {says}" in text
        assert re.findall(r"prelax evaluate \S+( \S+ \S+)", text) == [" --on FOLDER"]
    assert (main(["evaluate", str(run.path), "-p", "knn", "--quiet"]) == 0) == (says is None)


def test_of_shards_alone_there_is_nothing_to_show_and_one_line_says_so(
    run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    data = ("data.source=folder", "data.shards=photos-{000..003}.tar")
    run = run_folder(tmp_path / "run", epochs=2, pairs=data)
    page = gather([without_results(run, labelled=None)], points=20)
    assert len(page.left_out) == 1
    assert "data.root=FOLDER beside data.shards names images to show" in page.left_out[0]
    assert "by its own images: they are in shards, which are only trained on. Measure" in text_of(render(page))
    (run.path / "data.json").write_text('{"shards": 4}')
    assert next_commands(run)[0] == f"prelax evaluate {run.path} --on FOLDER"
    beside = run_folder(tmp_path / "beside", epochs=2, pairs=(*data, f"data.root={tmp_path}"))
    (beside.path / "data.json").write_text('{"shards": 4}')
    assert next_commands(beside)[0] == f"prelax evaluate {beside.path}"


# -- what augmentations do ---------------------------------------------------------------------------------------------


def effect(images: int, accuracy: float | None, root: str | None = None) -> dict:
    rows = [
        {"augmentation": "none", "accuracy": accuracy, "moved": 0.0},
        {"augmentation": "blur", "accuracy": accuracy, "moved": 2.0},
        {"augmentation": "rotation", "accuracy": accuracy and accuracy / 2, "moved": 120.0},
    ]
    told = {"protocol": "augmentations", "dataset": "photos", "rows": rows, "test_images": images}
    return {"augmentations": told | ({"root": root} if root else {})}


def test_without_labels_the_page_shows_how_far_augmentations_move(
    run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    run = without_results(run_folder(tmp_path / "run", epochs=2), labelled=0)
    run.write_eval("augmentations", effect(300, None)["augmentations"])
    page = gather([run], points=0)
    assert not page.effects.accuracy
    assert not page.effects.remarks
    moved = [(bar.name, bar.cells[0].value) for bar in page.effects.moved if bar.cells[0]]
    assert moved == [("rotation", 120.0), ("blur", 2.0)]
    html = render(page)
    assert 'id="augmentations"' in html
    assert "120.0" in text_of(html)


def test_on_few_images_the_page_goes_by_how_far_they_move_and_says_so() -> None:
    found = effects([effect(9, 66.7)])
    assert not found.accuracy
    assert [bar.name for bar in found.moved] == ["rotation", "blur"]
    assert found.remarks == ["9 images of photos: too few to go by accuracy, so by how far they move."]
    enough = effects([effect(FEW, 66.7)])
    assert [bar.name for bar in enough.accuracy] == ["blur", "rotation"]
    assert not enough.moved
    assert not enough.remarks


def test_the_remark_on_few_images_is_on_the_page(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    run.write_eval("augmentations", effect(9, 66.7)["augmentations"])
    assert "9 images of photos: too few to go by accuracy" in text_of(render(gather([run], points=0)))


def test_a_dataset_has_one_name_in_every_room() -> None:
    knn = {"protocol": "knn", "dataset": "photos", "accuracy": 50.0}
    evals = [{"knn": {**knn, "root": f"/{name}/photos"}, **effect(9, 50.0, f"/{name}/photos")} for name in "ab"]
    assert {row.dataset for row in results(evals)} == {"a/photos", "b/photos"}
    assert {bar.unit.split(",")[0] for bar in effects(evals).moved} == {"a/photos", "b/photos"}


# -- results -----------------------------------------------------------------------------------------------------------


def measured(accuracy: float, images: int, **more: object) -> dict:
    return {"protocol": "knn", "dataset": "digits", "accuracy": accuracy, "test_images": images, **more}


def page_of(runs: list[Run], *told: dict) -> str:
    for run, one in zip(runs, told, strict=True):
        without_results(run, None).write_eval("knn", one)
    return text_of(render(gather(runs, points=0)))


def test_an_accuracy_is_shown_with_its_number_of_test_images(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    text = page_of([run], measured(66.7, 9))
    assert "kNN on digits (9 test images)" in text
    assert "digits, n = 9" in text
    assert "digits: 9 test images are few: one more or less is 11.1 points." in text
    assert "are few" not in page_of([run], measured(66.7, 500))


def test_runs_with_other_numbers_of_test_images_have_them_each(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / name, epochs=2) for name in "ab"]
    text = page_of(runs, measured(66.7, 1000), measured(70.0, 997, test_images_left_out_as_seen=3))
    assert "66.7 n = 1,000" in text
    assert "n = 997" in text
    assert "digits (b): 3 test images are left out: they were trained on." in text


def test_classes_without_test_images_are_named(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    told = measured(66.7, 500, classes_without_test_images=["cat", "dog"])
    assert "digits: No test image is of cat, dog." in page_of([run_folder(tmp_path / "run", epochs=2)], told)


def test_a_star_is_for_what_was_learnt_and_is_ahead() -> None:
    def stars(*cells: Cell) -> list[bool]:
        return [cell.best for cell in mark_best(list(cells)) if cell]

    assert stars(Cell(90.0, 80.0), Cell(91.0, 80.0)) == [False, True]
    assert stars(Cell(90.0, 92.0), Cell(91.0, 92.0)) == [False, False]  # random weights are better
    assert stars(Cell(90.0, 91.0), Cell(91.0, 91.0)) == [False, False]  # and as good
    assert stars(Cell(90.0, 80.0), Cell(91.0, 80.0, std=1.5)) == [False, False]
    assert stars(Cell(90.0, 80.0, std=1.5), Cell(91.0, 80.0, std=0.1)) == [False, False]
    assert stars(Cell(80.0, 70.0), Cell(90.0, 70.0, std=1.5)) == [False, True]
    assert stars(Cell(33.3, images=9), Cell(44.4, images=9)) == [False, False]
    assert stars(Cell(90.0), Cell(91.0, images=FEW - 1)) == [False, False]
    assert stars(Cell(80.0, images=FEW), Cell(91.0, images=FEW)) == [False, True]
    assert stars(Cell(90.0, images=500), Cell(91.0, images=500)) == [False, False]  # five images: kNN draws no seeds
    assert stars(Cell(90.0, images=10_000), Cell(91.0, images=10_000)) == [False, True]
    assert stars(Cell(91.0)) == [False]


def test_the_page_says_what_a_star_means_and_who_is_highest(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / name, epochs=2) for name in "ab"]
    ahead = page_of(runs, measured(60.0, 500, floor=50.0), measured(70.0, 500, floor=50.0))
    assert "Highest: b, 70.0 %" in ahead
    assert "★ marks the highest of its kind, where it is above its floor" in ahead
    below = page_of(runs, measured(60.0, 500, floor=80.0), measured(70.0, 500, floor=80.0))
    assert "★" not in below
    assert "Highest" not in below


def test_a_deviation_says_over_what() -> None:
    assert repeated("knn-10-per-class") == repeated("linear-1pct") == repeated("finetune-10pct") == "draws of labels"
    assert repeated("linear") == repeated("linear-fast") == "seeds of the probe"
    assert repeated("finetune") == "seeds of fine-tuning"


def test_the_deviation_on_the_page_is_not_taken_for_one_of_training(
    run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    few = {"protocol": "knn-10-per-class", "dataset": "digits", "accuracy": 80.0, "std": 2.03, "seeds": [0, 1, 2, 3, 4]}
    run.write_eval("few", few)
    text = text_of(render(gather([run], points=0)))
    assert "± 2.0 over 5 draws of labels" in text
    assert "± 0.21 over 3 seeds of the probe" in text
    assert "Each network was trained once." in text


def test_the_page_says_when_a_floor_was_measured_in_another_way(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    for protocol, said in (("linear-fast", "measured the same way."), ("linear", "linear probe by its fast form")):
        assert said in page_of([run], measured(60.0, 500, floor=50.0, protocol=protocol))


def test_a_figure_just_under_its_floor_is_level_with_it() -> None:
    assert "random backbone 65.1, +0.0" in gauge(Cell(65.08, 65.1), True)


# -- curves, code, and what sticks out ---------------------------------------------------------------------------------


def test_only_runs_with_a_curve_have_a_line_of_random_weights() -> None:
    evals = [{"knn": {"protocol": "knn", "floor": floor}} for floor in (10.0, 20.0, 30.0)]
    metrics = [[{"epoch": 1, "knn": 90.0}], [{"epoch": 1, "loss": 1.0}], [{"epoch": 1, "knn": None}]]
    first, _ = charts(metrics, evals)
    assert [(mark.run, mark.value) for chart in first for mark in chart.marks] == [(0, 10.0)]


def test_code_in_words_is_shown_as_code(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    assert prose("a `b <c>` d ` e") == "a <code>b &lt;c&gt;</code> d ` e"
    run = run_folder(tmp_path / "run", epochs=2)
    run.write("metrics.jsonl", "")
    (run.path / "backbone.safetensors").unlink()
    html = report([run.path], points=20).read_text()
    assert f"<code>prelax pretrain {run.path} --resume</code>" in html  # of the health list
    assert "Left out of this page" in html
    body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.S)
    assert "`" not in body


def test_neighbours_shrink_to_their_panel() -> None:
    assert "grid-template-columns: repeat(5, minmax(0, 1fr))" in re.search(r"\.near \{[^}]*\}", read("page.css"))[0]  # type: ignore[index]


def test_the_command_and_the_page_call_a_folder_the_same(
    run_folder: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from prelax.config import DataSettings
    from prelax.data import load

    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    run = run_folder(tmp_path / "run", epochs=2)
    for place in ("one", "two"):
        (tmp_path / place / "pictures").mkdir(parents=True)
        for number, image in enumerate(load(DataSettings(), "test").images[:20]):
            Image.fromarray(image[0].numpy()).save(tmp_path / place / "pictures" / f"{number}.png")
        words = ["augmentations", str(run.path), "--on", str(tmp_path / place / "pictures"), "--operation", "flip"]
        assert main([*words, "--draws", "1", "-o", str(tmp_path / "own.png"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["dataset"] == "pictures"
    assert {"augmentations-pictures", "augmentations-pictures-2"} <= set(run.evals())
    units = {bar.unit.split(",")[0] for bar in effects([run.evals()]).moved}
    assert units == {"one/pictures", "two/pictures"}


def test_runs_that_lack_the_same_for_the_same_reason_share_a_line() -> None:
    def fails(why: str) -> None:
        raise PrelaxError(why)

    left_out: list[str] = []
    for name, why in (("a", "no images"), ("b", "no weights"), ("c", "no images"), ("d", "no images")):
        attempt("The views", name, partial(fails, why), left_out)
    attempt("The map", "a", partial(fails, "no images"), left_out)
    assert left_out == ["The views of a, c, d: no images", "The views of b: no weights", "The map of a: no images"]


def test_what_is_left_out_is_said_where_the_page_is_made(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "gone", "simsiam")
    (run.path / "backbone.safetensors").unlink()
    with pytest.warns(PrelaxWarning, match="left out of the page: The map"):
        report([run.path])
