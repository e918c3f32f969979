"""What is said of small, odd or oddly named sets of images, and by which rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from prelax.config import DataSettings, EvaluateSettings
from prelax.data import subset
from prelax.evaluate import subject
from prelax.evaluate.finetune import Tuning, tune
from prelax.evaluate.linear import Protocol
from prelax.evaluate.probe import knn, train_linear
from prelax.evaluate.protocols import PROBES, dataset, evaluate, made_as_now, notes, only_in, place
from prelax.evaluate.retrieval import precision
from prelax.loading import load


@pytest.fixture(scope="module")
def judged(trained):
    return subject.subject(load(trained.path))


def test_a_small_set_of_unequal_classes_is_not_judged_by_the_largest(judged, monkeypatch):
    """Three classes that lie apart, 120, 40 and 30 images: every one is told, though 200 neighbours were asked."""
    labels = torch.tensor([0] * 120 + [1] * 40 + [2] * 30)
    features = 3.0 + torch.eye(3)[labels]
    train = replace(judged.train, images=judged.train.images[:190], labels=labels, classes=["a", "b", "c"], paths=None)
    small = replace(judged, train=train, test=train)
    monkeypatch.setattr(type(small), "features", lambda self, split: features)
    assert knn(small, EvaluateSettings()).score.mean == 100.0


def test_a_class_without_a_test_image_is_named(judged):
    some = replace(judged, test=subset(judged.test, (judged.test.labels != 3).nonzero()[:, 0]))
    assert only_in(judged, "train", "test") == only_in(judged, "test", "train") == []
    assert (only_in(some, "train", "test"), only_in(some, "test", "train")) == (["3"], [])


def test_retrieval_among_few_images_looks_at_fewer(judged):
    nine = replace(judged, test=subset(judged.test, torch.arange(9)), kept={})
    assert precision(nine, EvaluateSettings()).settings["k"] == 4


def test_the_runs_own_folder_by_another_path_is_not_another_dataset(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    places = {place(DataSettings(source="folder", root=Path(root))) for root in ("photos", "link", tmp_path / "photos")}
    assert len(places) == 1


def test_a_named_dataset_is_not_looked_for_among_the_photos_of_a_run():
    own = DataSettings(source="folder", root=Path("photos"), image_size=32)
    assert dataset("cifar10", own, 3).root is None
    few = DataSettings(source="cifar10", root=Path("data"), limit=64)
    other = dataset("cifar100", few, 3)
    assert (other.root, other.limit, other.channels) == (Path("data"), None, 3)  # the run's few images are not theirs
    assert dataset("cifar10", few, 3) == few


def test_a_knn_figure_by_another_rule_is_not_one_of_today():
    wanted = EvaluateSettings(knn_k=200)
    found = {
        "protocol": "knn",
        "settings": {"k": 100},
        "train_images": 1000,
        "seed": 0,
        "evaluate": wanted.model_dump(),
    }
    assert made_as_now(found, wanted)
    assert not made_as_now(found | {"settings": {"k": 200}}, wanted)
    assert not made_as_now(found, EvaluateSettings(knn_k=20))


def test_what_the_reader_of_a_figure_should_know_is_said():
    found = {"settings": {"k": 16, "asked_k": 200}, "test_images": 9, "test_images_left_out_as_seen": 1}
    lacking = {"classes_without_test_images": ["a", "b"], "classes_without_training_images": ["c"]}
    told = " ".join(notes({**found, **lacking}))
    for part in (
        "16 nearest images vote (a tenth of all), not the 200",
        "11.1 points",
        "1 test image is left out",
        "No test image is of a, b.",
    ):
        assert part in told
    assert "No training image is of c." in told
    told = " ".join(notes({"settings": {"k": 1, "asked_k": 200}, "test_images": 1}))
    assert told.startswith(
        "The nearest image alone votes (a tenth of all), not the 200 that evaluate.knn_k asks for. 1 test"
    )
    assert (
        notes({"settings": {"k": 200, "asked_k": 200}, "test_images": 10_000, "test_images_left_out_as_seen": 0}) == []
    )


def test_what_is_measured_is_told_as_it_begins(run):
    told: list[str] = []
    evaluate(run, ["knn", "retrieval"], tell=told.append)
    assert told == ["measuring knn (1 of 2)", "measuring retrieval (2 of 2)"]


def test_a_probe_that_takes_minutes_tells_how_far_it_is(judged):
    told: list[str] = []
    few = replace(judged.only(torch.arange(64)), tell=told.append)
    few.cached_crops(3)
    tune(few, Tuning(epochs=2, least_steps=1), 0)
    train_linear(few, Protocol(lr=0.1, epochs=2), [0])
    epochs = ["epoch 1 of 2", "epoch 2 of 2"]
    assert told == ["crops 1 of 3", "crops 2 of 3", "crops 3 of 3", *epochs, *epochs]


def test_how_far_a_probe_is_stands_behind_its_name(run, monkeypatch):
    def half(subject, settings, seeds):
        subject.tell("half")
        return knn(subject, settings)

    told: list[str] = []
    monkeypatch.setitem(PROBES, "knn", half)
    evaluate(run, ["knn"], tell=told.append)
    doing = "measuring knn (1 of 1)"
    assert told == [doing, f"{doing}: half", f"{doing}, random weights: half"]


def test_a_floor_is_settled_as_it_is_asked_without_dropout():
    batches = [torch.randn(64, 12, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    net = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    before = torch.random.get_rng_state()
    norm = subject.settled(net, batches)[2]
    assert torch.equal(before, torch.random.get_rng_state())
    with torch.no_grad():
        wanted = torch.stack([net[0](batch).var(0) for batch in batches]).mean(0)
    torch.testing.assert_close(norm.running_var, wanted)
    assert not any(part.training for part in net.modules())


def test_features_of_a_few_images_are_not_computed_again(judged):
    for split in ("train", "test"):
        judged.features(split)
    part = judged.only(torch.tensor([3, 1, 4]))
    assert torch.equal(part.kept["train"], judged.kept["train"][[3, 1, 4]])
    assert part.kept["test"] is judged.kept["test"]
    assert not any(name.startswith("crops") for name in part.kept)
    assert torch.equal(part.labels("train"), judged.labels("train")[[3, 1, 4]])
