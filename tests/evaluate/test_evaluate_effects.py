"""What each augmentation alone does: measured against plain loops, and ranked for relaxing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from prelax import augment
from prelax.cli import main
from prelax.config import resolve
from prelax.data import load as load_data
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.evaluate.alone import always, features_under, similarity_of_others, under
from prelax.evaluate.effects import chosen, classifier, effects, every_name, examples, own_operations
from prelax.evaluate.features import fingerprint
from prelax.evaluate.relaxing import candidates
from prelax.loading import load
from prelax.run import Run
from prelax.train.pretrain import pretrain

SMALL = ["train.epochs=6", "model.head_hidden=32", "model.projector_hidden=16", "model.projector_dim=16"]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = resolve("digits/supervised", [*SMALL, "augment.preset=none"])
    return pretrain(settings, tmp_path_factory.mktemp("effects") / "supervised", progress=False)


def by_name(result):
    return {row["augmentation"]: row for row in result["rows"]}


def test_an_operation_that_is_always_done_keeps_its_strength():
    jitter = augment.Jitter(0.4, 0.3, 0.2, 0.1, p=0.8)
    assert always(jitter) == replace(jitter, p=1.0)
    assert always(augment.Named(augment.Flip(), "second")).name == "second"
    assert always(augment.QuarterTurn()) == augment.QuarterTurn()


def test_without_an_effect_an_image_is_what_an_evaluation_sees(run):
    loaded = load(run.path)
    images = torch.randint(0, 256, (5, 1, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = under(augment.Flip(p=0.0), images, loaded.preprocess, Draws(0, rows=5))
    normalised = augment.Normalise(loaded.preprocess.mean, loaded.preprocess.std).transform(seen, {})
    torch.testing.assert_close(normalised, loaded.preprocess(images), atol=1e-5, rtol=1e-5)


def test_the_cosine_of_different_images_is_the_mean_over_all_pairs():
    features = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    pairs = [float(F.cosine_similarity(features[i], features[j], dim=0)) for i in range(7) for j in range(7) if i != j]
    assert similarity_of_others(features) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


def test_an_image_meets_the_same_draw_in_any_batch_and_the_backbone_does_not_move(run, monkeypatch):
    loaded = load(run.path)
    before = fingerprint(loaded.backbone)
    images = load_data(loaded.settings.data, "test").images[:30]
    (whole,) = features_under(loaded, images, [augment.QuarterTurn()], [3])
    monkeypatch.setattr("prelax.evaluate.alone.BATCH", 7)
    (parts,) = features_under(loaded, images, [augment.QuarterTurn()], [3])
    torch.testing.assert_close(whole[2], parts[2], atol=1e-4, rtol=1e-4)
    assert fingerprint(loaded.backbone) == before


def test_an_augmentation_of_ones_own_is_measured_under_the_name_that_relaxes_it(run, tmp_path, monkeypatch, capsys):
    lines = ["from prelax.augment import Flip", "class Mirror(Flip):", "    pass"]
    (tmp_path / "own_mirror.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    words = ["--operation", "own_mirror:Mirror", "--operation", "flip", "--draws", "1", "--images", "50"]
    assert main(["augmentations", str(run.path), *words, "--json"]) == 0
    rows = by_name({"rows": json.loads(capsys.readouterr().out)["candidates"]})
    assert set(rows) == {"own_mirror:Mirror", "flip"}
    assert rows["own_mirror:Mirror"]["moved"] == rows["flip"]["moved"]


def test_a_supervised_run_is_judged_by_its_own_classifier(supervised):
    loaded = load(supervised.path)
    test = load_data(loaded.settings.data, "test")
    head = classifier(supervised, loaded)
    by_hand = 100 * float((head(loaded(test.images)).argmax(1) == test.labels).double().mean())
    result = effects(supervised, draws=2)
    assert "own classifier" in result["settings"]["read_by"]
    assert by_name(result)["none"]["accuracy"] == pytest.approx(by_hand, abs=1e-3)
    assert by_hand > 80


def test_accuracy_under_rotation_is_that_of_images_turned_one_by_one(supervised):
    loaded = load(supervised.path)
    test = load_data(loaded.settings.data, "test")
    seed = 4
    turns = Draws(seed, rows=len(test)).at("alone").at("rotation").integers("turns", 4)
    turned = torch.stack([torch.rot90(x, -int(k), (1, 2)) for x, k in zip(test.images, turns, strict=True)])
    said = classifier(supervised, loaded)(loaded(turned)).argmax(1)
    row = by_name(effects(supervised, seed=seed, draws=1, operations=["rotation"]))["rotation"]
    assert row["accuracy"] == pytest.approx(100 * float((said == test.labels).double().mean()), abs=0.21)
    assert row["std"] is None  # of one draw


def test_rotation_harms_digits_and_noise_does_not(supervised):
    rows = by_name(effects(supervised, draws=3))
    # trained without augmentations: asked about the digits' own, SimSiam's that grey images can have, and rotation
    assert set(rows) == {"none", "crop", "noise", "flip", "rotation"}
    assert rows["rotation"]["drop"] > 20
    assert abs(rows["noise"]["drop"]) < 5
    assert rows["rotation"]["moved"] > rows["noise"]["moved"]
    assert not any(row["trained_with"] for row in rows.values())
    assert rows["rotation"]["drop"] == pytest.approx(rows["none"]["accuracy"] - rows["rotation"]["accuracy"], abs=1e-3)


def test_any_other_run_is_judged_by_a_probe_and_the_result_is_kept(run):
    result = effects(run, draws=2)
    assert "logistic" in result["settings"]["read_by"]
    rows = by_name(result)
    assert rows["rotation"]["relaxed"]
    assert rows["crop"]["trained_with"]
    assert not rows["flip"]["trained_with"]
    assert json.loads((run.path / "eval" / "effects.json").read_text())["rows"] == result["rows"]


def test_a_backbone_that_says_the_same_of_all_images_is_told_so(run):
    run.save_backbone({name: torch.zeros_like(tensor) for name, tensor in run.load_backbone().items()})
    with pytest.raises(PrelaxError, match=r"the backbone says the same of all 500 images, .* `prelax doctor"):
        effects(run, draws=1)


def test_a_probability_is_the_presets_unless_everything_is_always_done(run):
    drawn, done = (by_name(effects(run, draws=1, operations=["flip"], always=a))["flip"] for a in (False, True))
    assert "p=0.5" in drawn["settings"]
    assert "p=1.0" in done["settings"]
    assert done["moved"] == pytest.approx(2 * drawn["moved"], rel=0.3)  # half the images stay as they are


def test_operations_that_differ_between_the_views_are_asked_about_where_they_happen():
    ops = {op.name: op for op in own_operations(resolve("imagenette/byol"), 3, 160)}
    assert ops["blur"].p == 1.0  # of view 1
    assert ops["solarise"].p == 0.2  # of view 2; view 1 never does it


def test_what_grey_images_cannot_have_is_left_out_unless_it_is_asked_for(run):
    loaded = load(run.path)
    images = load_data(loaded.settings.data, "test").images
    assert not {"jitter", "grey", "normalise"} & set(every_name(1))
    assert {"jitter", "grey"} < set(every_name(3))
    with pytest.raises(PrelaxError, match="RGB"):
        chosen(loaded, images, ["jitter"])
    with pytest.raises(PrelaxError, match="did you mean 'rotation'"):
        chosen(loaded, images, ["rotatoin"])


@pytest.mark.parametrize("classes", [".", "all of one class"])
def test_images_without_labels_to_go_by_are_told_how_far_they_move(run, tmp_path, monkeypatch, classes):
    from PIL import Image

    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pictures" / classes).mkdir(parents=True)
    for number, image in enumerate(load_data(run.settings.data, "test").images[:40]):
        Image.fromarray(image[0].numpy()).save(tmp_path / "pictures" / classes / f"{number}.png")
    own = run.settings.data
    on = own.model_copy(update={"source": "folder", "root": tmp_path / "pictures", "channels": 1, "image_size": 16})
    result = effects(run, on, draws=1, operations=["rotation", "noise"])
    assert (result["dataset"], result["root"]) == ("pictures", str(tmp_path / "pictures"))
    assert result["rows"] in [told["rows"] for name, told in run.evals().items() if name.startswith("effects-pictures")]
    rows = by_name(result)
    assert rows["rotation"]["accuracy"] is None
    assert rows["rotation"]["moved"] > rows["noise"]["moved"] > 0
    assert candidates(result)[0]["augmentation"] == "rotation"
    assert "points" not in candidates(result)[0]["why"]


def test_where_nothing_is_held_out_the_training_images_are_looked_at(run, tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    for number, image in enumerate(load_data(run.settings.data, "test").images[:12]):
        (folder := tmp_path / "photos" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{number}.png")
    changes = [f"data.root={tmp_path / 'photos'}", "data.test_fraction=0", "train.epochs=1", "model.backbone=resnet8"]
    pretrain(resolve("folder", changes), tmp_path / "whole", progress=False)
    assert main(["augmentations", str(tmp_path / "whole"), "--draws", "1", "--operation", "rotation"]) == 0
    assert "12 images of photos" in capsys.readouterr().out
    assert (tmp_path / "whole" / "augmentations.png").is_file()
    (tmp_path / "folder.png").mkdir()  # what was measured is shown before it is said that nothing can be drawn there
    undrawn = ["--out", str(tmp_path / "folder.png")]
    assert main(["augmentations", str(tmp_path / "whole"), "--draws", "1", "--operation", "rotation", *undrawn]) == 2
    told = capsys.readouterr()
    assert "12 images of photos" in told.out
    assert "cannot write" in told.err


def test_examples_are_the_images_under_each_operation(run):
    loaded = load(run.path)
    images = load_data(loaded.settings.data, "test").images[:4]
    made = dict(examples(loaded, images, [{"augmentation": name} for name in ("none", "flip", "invert")]))
    assert torch.equal(made["none"], images)
    assert torch.equal(made["flip"], images.flip(-1))
    assert torch.equal(made["invert"], 255 - images)


def row(name, drop, moved, **more):
    return {"augmentation": name, "accuracy": None if drop is None else 90 - drop, "drop": drop, "moved": moved, **more}


def test_what_costs_most_is_relaxed_first_and_what_costs_nothing_is_kept():
    rows = [row("none", 0, 0), row("flip", 0.1, 40), row("crop", 20, 30), row("rotation", 50, 60), row("blur", 3, 5)]
    found = candidates({"rows": [*rows, row("invert", 80, 130)]})
    assert [one["augmentation"] for one in found] == ["rotation", "crop", "invert", "blur", "flip"]
    assert [one["advice"] for one in found] == ["relax", "relax", "strong", "try", "keep"]
    assert "50.0 points" in found[0]["why"]


@pytest.mark.parametrize(("labels", "harmful", "harmless"), [(True, 5.0, 1.0), (False, 30.0, 10.0)])
def test_advice_goes_by_points_or_without_labels_by_the_way_to_another_image(labels, harmful, harmless):
    def said(strength, moved=20):
        told = row("crop", strength, moved) if labels else row("crop", None, strength)
        return candidates({"rows": [told]})[0]["advice"]

    assert [said(harmful), said(harmful - 0.01), said(harmless + 0.01), said(harmless)] == [
        "relax",
        "try",
        "try",
        "keep",
    ]
    if labels:
        assert [said(50, 99.9), said(50, 100.0), said(4, 130)] == ["relax", "strong", "try"]


def test_the_sentence_says_what_the_run_was_trained_to_do():
    told = candidates({"rows": [row("crop", 20, 30, trained_with=True), row("rotation", 50, 60, relaxed=True)]})
    assert told[0]["why"].endswith("this run relaxes it")
    assert "trained to ignore it" in told[1]["why"]
    assert "this run relaxes it" not in told[1]["why"]


def test_the_sentence_has_a_beginning_when_accuracy_is_not_used():
    rows = [row("crop", 20, 40, trained_with=True), row("flip", 20, 40)]
    one, two = candidates({"rows": rows, "test_images": 9})
    assert one["why"].startswith("moves an image 40 % of the way to another, though the run was trained to ignore it: ")
    assert two["why"].startswith("moves an image 40 % of the way to another: ")
    one, two = candidates({"rows": rows, "test_images": 900})
    assert one["why"].startswith("costs 20.0 points though the run was trained to ignore it, and moves an image 40 %")
    assert two["why"].startswith("costs 20.0 points and moves an image 40 %")


def test_a_picture_shows_every_operation_with_its_numbers(run, tmp_path: Path):
    from prelax.report.gallery import draw_gallery

    rows = [row("rotation", 50.4, 61), row("noise", -0.2, 1)]
    images = torch.zeros(3, 1, 16, 16, dtype=torch.uint8)
    written = draw_gallery(rows, dict.fromkeys(("none", "rotation", "noise"), images), tmp_path / "gallery.png")
    text = written[1].read_text()
    for said in ("rotation", "noise", "50", "61", "points lost"):
        assert said in text
    assert written[0].read_bytes().startswith(b"\x89PNG")


def test_on_few_images_the_features_decide_and_not_the_accuracy() -> None:
    rows = [row("solarise", 0, 74), row("jigsaw", 6, 5)]
    assert [one["augmentation"] for one in candidates({"rows": rows, "test_images": 500})] == ["jigsaw", "solarise"]
    few = candidates({"rows": rows, "test_images": 32})
    assert [one["augmentation"] for one in few] == ["solarise", "jigsaw"]
    assert "points" not in few[0]["why"]
    assert few[1]["drop"] == 6  # still told
