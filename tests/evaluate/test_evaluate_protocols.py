from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from prelax.augment import Crop, Pipeline
from prelax.cli import main
from prelax.config import DataSettings, EvaluateSettings
from prelax.data import load as load_data
from prelax.errors import PrelaxError
from prelax.evaluate import PROTOCOLS, evaluate, probe, protocols, subject
from prelax.evaluate.features import fingerprint
from prelax.evaluate.finetune import Tuning, finetune, tune
from prelax.evaluate.knn import knn_accuracy
from prelax.evaluate.labels import digest
from prelax.evaluate.linear import Protocol
from prelax.evaluate.probe import (
    backbone_knn,
    knn,
    knn_few,
    linear,
    linear_fast,
    linear_tta,
    logistic,
    sets_for,
    tta_views,
)
from prelax.evaluate.protocols import PROBES, notes
from prelax.evaluate.subject import probe_crops, random_subject, settle_norms
from prelax.evaluate.transfer import transfer
from prelax.loading import load

SHORT = Protocol(lr=0.5, epochs=4, batch_size=128)


@pytest.fixture(scope="module")
def loaded(trained):
    return load(trained.path)


@pytest.fixture(scope="module")
def judged(loaded):
    return subject.subject(loaded)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setitem(probe.LINEAR, "simsiam", SHORT)


@pytest.mark.parametrize("protocol", [linear, linear_fast])
def test_linear_probes_trained_on_narrow_crops_see_the_centre_of_a_test_image(judged, short, protocol):
    wide = protocol(judged, EvaluateSettings(), [0])  # crops of the digits keep most of an image
    assert wide.settings["test_images_seen"] == "whole"
    assert "centre" not in judged.kept
    ops = [replace(op, scale=(0.08, 1.0)) if isinstance(op, Crop) else op for op in judged.crops.ops]
    narrow = replace(judged, crops=Pipeline(ops), kept={})
    found = protocol(narrow, EvaluateSettings(), [0])
    assert found.settings["test_images_seen"] == "central 7/8"
    whole = protocol(narrow, EvaluateSettings(linear_view="whole"), [0])
    assert whole.settings["test_images_seen"] == "whole"
    assert not torch.equal(narrow.kept["centre"], narrow.kept["test"])
    assert found.score.accuracies != whole.score.accuracies
    larger = torch.nn.functional.interpolate(narrow.test.images, (32, 32))
    enlarged = replace(narrow, test=replace(narrow.test, images=larger), kept={})
    assert enlarged.for_linear("whole")[1] == "central 7/8"  # of images larger than a view, as everybody


def test_a_result_is_written_with_floor_settings_and_seconds(run):
    (result,) = evaluate(run, ["knn"], device="cpu")
    written = json.loads((run.path / "eval" / "knn.json").read_text())
    assert {key: written[key] for key in result} == json.loads(json.dumps(result))
    assert written["prelax"]
    assert written["date"]
    assert result["settings"]["k"] == 20
    assert result["settings"]["T"] == 0.1
    assert 0 < result["floor"] <= 100
    assert result["test_images"] == 500
    assert result["seconds"] > 0


def test_a_protocol_that_cannot_be_done_costs_no_other_its_figure(run, tmp_path, capsys):
    for number in range(24):  # of which one is a test image, with no other to be found
        folder = tmp_path / "set" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    words = ["evaluate", str(run.path), "--on", str(tmp_path / "set"), "-p", "retrieval,knn", "--device", "cpu"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert "\nknn " in told.out
    assert "\nretrieval " not in told.out
    assert told.err.splitlines()[-1] == "prelax: retrieval: retrieval needs at least two images"
    assert [path.stem.split("-set")[0] for path in (run.path / "eval").glob("*.json")] == ["knn"]


def test_the_knn_figure_is_that_of_the_plain_function(judged, loaded):
    train, test = load_data(DataSettings(), "train"), load_data(DataSettings(), "test")
    plain = knn_accuracy(loaded(train.images), train.labels, loaded(test.images), test.labels, 20, 0.1)
    assert knn(judged, loaded.settings.evaluate).score.mean == plain
    assert backbone_knn(loaded.backbone, loaded.settings, train, test, "cpu") == plain


def test_k_is_at_most_a_tenth_of_the_training_images_and_the_result_says_so(judged):
    told = knn(judged, EvaluateSettings(knn_k=100_000)).settings
    assert (told["k"], told["asked_k"]) == (129, 100_000)


def test_the_views_of_large_test_images_are_the_whole_and_boxes_of_seven_eighths(judged, loaded, monkeypatch):
    shape = (len(judged.test), 1, 32, 32)  # twice the backbone's size
    columns = torch.arange(32, dtype=torch.uint8).expand(shape).contiguous() * 8
    judged = replace(judged, test=replace(judged.test, images=columns))
    seen = []
    monkeypatch.setattr("prelax.evaluate.subject.extract", lambda net, images, prepare, **_: prepare(images[:1]))
    for view in tta_views(judged):
        left, right = view()[0, 0, 0, [0, -1]].tolist()
        seen.append((left, right))
    pre = loaded.preprocess
    values = [tuple(((v * pre.std[0] + pre.mean[0]) * 255 / 8) for v in pair) for pair in seen]
    whole, first, second = values[0], values[1], values[2]
    assert whole == pytest.approx((0.5, 30.5), abs=0.4)
    assert first == pytest.approx((0.5, 26.5), abs=0.6)  # columns 0 to 27
    assert second == pytest.approx((4.5, 30.5), abs=0.6)  # columns 4 to 31


@pytest.mark.parametrize("name", ["linear", "linear-fast", "linear-tta", "knn", "logistic", "retrieval"])
def test_no_probe_moves_the_backbone(judged, loaded, short, name):
    before = fingerprint(loaded.backbone)
    PROBES[name](judged, loaded.settings.evaluate, [0])
    assert fingerprint(loaded.backbone) == before
    assert not loaded.backbone.training


@pytest.mark.parametrize("probing", [linear, linear_fast])
def test_a_backbone_that_learns_during_a_probe_voids_the_figure(loaded, short, monkeypatch, probing):
    case = subject.subject(loaded)
    weight = loaded.backbone.layer3[0].conv1.weight
    kept = weight.detach().clone()
    cropped = subject.Subject.cropped

    def nudging(self, run, pixels, epoch):
        with torch.no_grad():
            weight[0, 0, 0, 0] += 1e-4
        return cropped(self, run, pixels, epoch)

    monkeypatch.setattr(subject.Subject, "cropped", nudging)
    try:
        with pytest.raises(PrelaxError, match="weights changed"):
            probing(case, loaded.settings.evaluate, [0])
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_a_probe_in_training_mode_voids_the_figure(loaded, short, monkeypatch):
    case = subject.subject(loaded)
    cropped = subject.Subject.cropped

    def waking(self, run, pixels, epoch):
        self.backbone.layer1.train()
        return cropped(self, run, pixels, epoch)

    monkeypatch.setattr(subject.Subject, "cropped", waking)
    before = {name: tensor.clone() for name, tensor in loaded.backbone.state_dict().items()}
    try:
        with pytest.raises(PrelaxError, match="training mode"):
            linear(case, loaded.settings.evaluate, [0])
    finally:
        loaded.backbone.load_state_dict(before)
        loaded.backbone.eval()


def test_the_fast_probe_with_a_set_of_crops_an_epoch_is_the_papers_probe(judged, loaded, short):
    settings = loaded.settings.evaluate
    slow, fast = linear(judged, settings, [0, 1]), linear_fast(judged, settings, [0, 1], sets=SHORT.epochs)
    assert fast.score.accuracies == slow.score.accuracies


def test_crops_differ_by_epoch_and_repeat(judged):
    banks = judged.cached_crops(2)
    assert not torch.allclose(banks[0], banks[1], atol=1e-2)
    judged.kept.pop("crops-2")
    assert torch.equal(judged.cached_crops(2), banks)


def test_digits_are_never_mirrored_in_a_probe_and_photos_are(loaded):
    assert [op.name for op in probe_crops(loaded).ops] == ["crop", "normalise"]
    assert probe_crops(loaded).ops[0].scale == (0.4, 1.0)
    photos = loaded.settings.model_copy(update={"data": DataSettings(source="cifar10")})
    from dataclasses import replace

    ops = probe_crops(replace(loaded, settings=photos, channels=3)).ops
    assert [op.name for op in ops] == ["crop", "flip", "normalise"]
    assert ops[0].scale == (0.08, 1.0)


def test_few_labels_are_averaged_over_draws(judged, loaded):
    told = knn_few(judged, loaded.settings.evaluate, [0, 1, 2], per_class=10)
    assert len(set(told.score.accuracies)) > 1
    assert told.settings["labels"] == 100
    assert told.settings["k"] == 10
    assert told.score.mean < knn(judged, loaded.settings.evaluate).score.mean


def test_test_time_views_are_averaged(judged, loaded, short):
    told = linear_tta(judged, loaded.settings.evaluate, [0])
    assert told.settings["test_views"] == 6  # whole and five boxes; digits are not mirrored


def test_more_labels_are_worth_more(judged, loaded):
    settings = loaded.settings.evaluate
    one = PROBES["linear-1pct"](judged, settings, [0, 1]).score.mean
    ten = PROBES["linear-10pct"](judged, settings, [0, 1]).score.mean
    assert one < ten < logistic(judged, settings).score.mean


def test_the_floor_is_the_same_probe_on_random_weights(judged, loaded):
    floor = random_subject(judged, loaded)
    assert fingerprint(floor.backbone) != fingerprint(judged.backbone)
    again = random_subject(judged, loaded)
    assert knn(floor, loaded.settings.evaluate).score.mean == knn(again, loaded.settings.evaluate).score.mean


def test_settled_norms_know_the_statistics_of_the_images(judged, loaded):
    net = settle_norms(loaded.fresh(0), judged, images=512)
    caught = []

    def catch(norm, args, out):  # what comes out has been through the ReLU
        caught.append(torch.nn.functional.batch_norm(args[0], norm.running_mean, norm.running_var))

    handle = net.bn1.register_forward_hook(catch)
    with torch.no_grad():
        net(judged.preprocess(judged.train.images))
    handle.remove()
    assert caught[0].mean((0, 2, 3)).abs().max() < 0.1
    assert (caught[0].std((0, 2, 3)) - 1).abs().max() < 0.1


def test_test_images_seen_in_pretraining_never_count(run, monkeypatch):
    real = subject.load

    def leaking(settings, split):
        images = real(settings, split)
        if split == "test":
            images.images[:7] = real(settings, "train").images[:7]
        return images

    monkeypatch.setattr(subject, "load", leaking)
    (result,) = evaluate(run, ["knn"], device="cpu")
    assert result["test_images_left_out_as_seen"] == 7
    assert result["test_images"] == 493


def test_a_run_evaluated_on_its_own_training_images_is_refused(run, monkeypatch):
    real = subject.load
    monkeypatch.setattr(subject, "load", lambda settings, split: real(settings, "train"))
    with pytest.raises(PrelaxError, match="were in pre-training"):
        evaluate(run, ["knn"], device="cpu")


def test_elsewhere_a_test_image_that_the_probe_is_trained_on_never_counts(run, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (72, 8, 8), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        for split in ("train", "test") if i < 20 else ("train",) if i < 40 else ("test",):
            path = tmp_path / "other" / split / "ab"[i % 2] / f"{split}{i}.png"  # by another name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    other = DataSettings(source="folder", root=tmp_path / "other", channels=1, image_size=8, cache=tmp_path / "cache")
    (result,) = evaluate(run, ["knn"], on=other, device="cpu")
    assert (result["test_images"], result["test_images_left_out_as_doubles"]) == (32, 20)
    assert "20 test images are left out: they are among the training images of the dataset, too." in notes(result)
    for path in (tmp_path / "other" / "test").glob("?/test[4-7]*"):
        path.unlink()
    with pytest.raises(PrelaxError, match=r"16 of the 16 test images of .* were among the training images"):
        evaluate(run, ["knn"], on=other, device="cpu")


@pytest.mark.parametrize("images", [513, 514, 1025])
def test_no_batch_of_two_weighs_as_much_as_one_of_many_in_a_floor(loaded, images):
    judged = subject.subject(loaded).only(torch.arange(images))
    sizes = []
    judged.preprocess = lambda part, take=judged.preprocess: sizes.append(len(part)) or take(part)
    settle_norms(loaded.fresh(0), judged)
    assert sum(sizes) == images
    assert max(sizes) - min(sizes) <= 1


def test_fine_tuning_is_a_function_of_its_seed_and_draws_of_nobody_elses(loaded):
    class Dropping(torch.nn.Module):
        features = loaded.backbone.features

        def __init__(self):
            super().__init__()
            self.net, self.drop = loaded.backbone, torch.nn.Dropout(0.5)

        def forward(self, images):
            return self.drop(self.net(images))

    judged = replace(subject.subject(loaded), backbone=Dropping()).only(torch.arange(64))
    once = Tuning(epochs=1, batch_size=32, least_steps=1)
    before = torch.get_rng_state()
    heads = [tune(judged, once, seed)[1].weight for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seen_image_is_found_at_another_image_size_too(loaded, monkeypatch):
    real = subject.load

    def leaking(settings, split):
        images = real(settings, split)
        if split == "test":
            images.images[:7] = real(settings, "train").images[:7]
        return images

    monkeypatch.setattr(subject, "load", leaking)
    assert subject.subject(loaded, DataSettings(image_size=24)).dropped == 7


def test_a_comparison_that_was_not_made_is_not_reported_as_none_seen(loaded, monkeypatch):
    real = subject.load
    monkeypatch.setattr(subject, "load", lambda settings, split: real(DataSettings(), split))
    elsewhere = subject.subject(loaded, DataSettings(source="cifar10"))  # two published datasets
    assert elsewhere.dropped is None
    assert subject.subject(loaded).dropped == 0


def test_a_split_that_changed_since_training_is_refused(run, monkeypatch):
    """Today's training images cannot show that today's test images were trained on yesterday."""
    real = subject.load
    run.write("data.json", json.dumps({"digest": digest(real(DataSettings(), "train").images)}))
    (result,) = evaluate(run, ["knn"], device="cpu")
    assert result["pretraining_images_verified"] is True

    def reshuffled(settings, split):  # the same images, held out otherwise; the two sets stay disjoint
        train, test = real(settings, "train"), real(settings, "test")
        train.images[:400], test.images[:400] = test.images[:400].clone(), train.images[:400].clone()
        return train if split == "train" else test

    monkeypatch.setattr(subject, "load", reshuffled)
    with pytest.raises(PrelaxError, match="not those"):
        evaluate(run, ["knn"], device="cpu")


def test_without_a_record_of_the_training_images_the_result_says_they_are_unverified(run):
    (run.path / "data.json").unlink(missing_ok=True)
    (result,) = evaluate(run, ["knn"], device="cpu")
    assert result["pretraining_images_verified"] is False


def test_a_damaged_record_of_the_training_images_is_refused(run):
    run.write("data.json", "{}")
    with pytest.raises(PrelaxError, match=r"data\.json cannot be read"):
        evaluate(run, ["knn"], device="cpu")


def test_cached_crops_are_fewer_when_memory_is_short_and_the_result_says_so(judged, loaded, short, monkeypatch):
    monkeypatch.setattr(subject, "CACHE", 3 * 4 * 1297 * 64)
    assert linear_fast(judged, loaded.settings.evaluate, [0]).settings["cached_sets"] == 3
    monkeypatch.setattr(subject, "CACHE", 1)
    assert linear_fast(judged, loaded.settings.evaluate, [0]).settings["cached_sets"] == 1
    monkeypatch.undo()
    monkeypatch.setattr(subject, "free_memory", lambda device: 4 * 4 * 1297 * 64)
    assert judged.sets_that_fit(8) == 2  # half of what is free
    assert replace(judged, shared=True).sets_that_fit(8) == 8  # processes that see different memory must not differ


def test_the_fewer_the_images_the_more_sets_of_crops():
    assert [sets_for(images) for images in (1_281_167, 50_000, 5_000, 100)] == [8, 8, 40, 40]


def test_fine_tuning_learns_and_leaves_the_backbone_as_it_was(judged, loaded):
    before = fingerprint(loaded.backbone)
    tuning = Tuning(epochs=3, batch_size=128, least_steps=1)
    told = finetune(judged, loaded.settings.evaluate, [0], share=1.0, tuning=tuning)
    assert fingerprint(loaded.backbone) == before
    assert told.score.mean > 50
    net, _ = tune(judged.only(torch.arange(64)), Tuning(epochs=1, batch_size=32, least_steps=1), 0)
    assert fingerprint(net) != before


def test_fine_tuning_on_few_labels_takes_more_epochs():
    assert Tuning().epochs_for(13) == 300
    assert Tuning().epochs_for(50_000) == 30


def other_digits(folder):
    """Digits as files: another dataset with labels of its own."""
    for split in ("train", "test"):
        images = load_data(DataSettings(), split)
        for row in range(0, 120):
            label = int(images.labels[row])
            if label < 3:
                path = folder / split / f"class{label}"
                path.mkdir(parents=True, exist_ok=True)
                Image.fromarray(255 - images.images[row, 0].numpy()).save(path / f"{row}.png")


def test_transfer_is_a_matrix_of_runs_by_datasets(run, tmp_path):
    other_digits(tmp_path / "negatives")
    target = DataSettings(source="folder", root=tmp_path / "negatives" / "train", image_size=16, channels=1,
                          test_root=tmp_path / "negatives" / "test", cache=tmp_path / "cache")  # fmt: skip
    matrix = transfer([run], [run.settings.data, target], protocol="knn", device="cpu")
    assert (len(matrix["accuracy"]), len(matrix["accuracy"][0])) == (1, 2)
    assert matrix["targets"] == ["digits", "train"]
    assert {"knn", "knn-train"} <= set(run.evals())
    assert run.evals()["knn-train"]["classes"] == 3


def test_the_transfer_command_prints_the_matrix_and_refuses_what_has_no_accuracy(run, tmp_path, capsys):
    other_digits(tmp_path / "negatives")
    words = ["transfer", str(run.path), "--on", "digits", "--on", str(tmp_path / "negatives" / "train"), "-p", "knn"]
    assert main([*words, "-o", str(tmp_path / "table.md"), "--device", "cpu"]) == 0
    shown, table = capsys.readouterr().out, (tmp_path / "table.md").read_text()
    cell = f"{run.evals()['knn-train']['accuracy']:.1f} ({run.evals()['knn-train']['floor']:.1f})"
    assert cell in shown
    assert f"| {cell} |" in table
    assert main([*words, "-o", str(tmp_path), "--device", "cpu"]) == 2  # a folder: the matrix is shown all the same
    assert cell in capsys.readouterr().out
    assert main(["transfer", str(run.path), "-p", "residual"]) == 2
    assert "probe-residual" in capsys.readouterr().err


def test_an_unknown_protocol_or_dataset_is_refused_before_any_work(run):
    with pytest.raises(PrelaxError, match="did you mean linear"):
        evaluate(run, ["liner"], device="cpu")
    with pytest.raises(PrelaxError, match="no dataset"):
        evaluate(run, ["knn"], on="cifar11", device="cpu")
    assert not run.evals()


def test_a_dataset_of_other_channels_is_refused(run, tmp_path):
    for split in ("train", "test"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (16, 16), (i * 40, 9, 7)).save(tmp_path / split / label / f"{i}.png")
    data = DataSettings(source="folder", root=tmp_path / "train", test_root=tmp_path / "test", image_size=16,
                        channels=3, cache=tmp_path / "cache")  # fmt: skip
    with pytest.raises(PrelaxError, match="channels=1"):
        evaluate(run, ["knn"], on=data, device="cpu")


def test_every_protocol_has_a_line_and_something_that_runs_it():
    assert set(PROBES) | {"residual"} == set(PROTOCOLS)
    assert set(protocols.FLOOR.values()) <= set(PROBES)


def test_a_few_test_images_of_a_folder_come_with_a_way_to_have_more():
    (named,), (own,) = (protocols.notes({"dataset": name, "test_images": 12}) for name in ("digits", "photos"))
    assert named == "12 test images are few: one more or less is 8.3 points."
    assert (
        own == f"{named} Without a test folder of its own, data.test_fraction=0.3 in training holds more of them out."
    )
