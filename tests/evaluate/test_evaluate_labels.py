from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prelax.data import ImageSet
from prelax.errors import PrelaxError
from prelax.evaluate.labels import digest, digests_of, few, labelled, obstacle, unseen


def some(n, seed, labels=None):
    images = torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return ImageSet("some", images, torch.zeros(n, dtype=torch.int64) if labels is None else labels, ["a"])


def test_test_images_seen_in_pretraining_are_left_out_and_counted():
    pretraining, test = some(20, 0), some(12, 1)
    test.images[[2, 7]] = pretraining.images[[5, 11]]
    kept, dropped = unseen(test, pretraining)
    assert dropped == 2
    assert torch.equal(kept.images, test.images[[i for i in range(12) if i not in (2, 7)]])


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        ([0, 1, -1], [0, -1], ""),
        ([-1, -1, -1], [0, 1], "none of the 3 training images has a label"),
        ([0, 1, 1], [-1, -1], "none of the 2 test images has a label"),
        (
            [0, 1],
            [2, -1],
            "the test images are of other classes (c) than the training images (a, b): none can be right",
        ),
        ([1, -1, 1], [0, 1], "all labelled images are of one class (b), and measuring needs two"),
    ],
)
def test_what_labels_cannot_measure_is_said(train, test, says):
    sets = [some(len(labels), 0, torch.tensor(labels)) for labels in (train, test)]
    for one in sets:
        one.classes[:] = ["a", "b", "c"]
    assert obstacle(*sets) == says


def test_a_test_set_that_is_the_training_set_is_refused():
    pretraining = some(20, 0)
    with pytest.raises(PrelaxError, match="20 of the 20 test images"):
        unseen(pretraining, pretraining)


def test_a_clean_test_set_is_untouched():
    test = some(12, 1)
    kept, dropped = unseen(test, some(20, 0))
    assert kept is test
    assert dropped == 0


def test_images_of_different_sizes_are_not_called_unseen():
    large = some(5, 1)
    large.images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(PrelaxError, match="different sizes"):
        unseen(large, some(20, 0))


def test_unknown_labels_are_left_out_and_a_set_without_any_is_refused():
    known = labelled(some(4, 0, torch.tensor([0, -1, 0, -1])))
    assert len(known) == 2
    with pytest.raises(PrelaxError, match="has a label"):
        labelled(some(4, 0, torch.full((4,), -1)))
    bare = some(4, 0)
    bare.labels = None
    with pytest.raises(PrelaxError, match="has a label"):
        labelled(bare)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.01, 0.1, 0.5]))
def test_few_labels_are_stratified_and_belong_to_the_seed(seed, share):
    labels = torch.randint(0, 5, (300,), generator=torch.Generator().manual_seed(seed))
    rows = few(labels, share=share, seed=seed)
    for label in range(5):
        members = int((labels == label).sum())
        assert int((labels[rows] == label).sum()) == max(1, round(share * members))
    assert torch.equal(rows, few(labels, share=share, seed=seed))
    assert len(rows.unique()) == len(rows)


def test_another_seed_draws_other_images():
    labels = torch.arange(100) % 5
    assert not torch.equal(few(labels, per_class=3, seed=0), few(labels, per_class=3, seed=1))
    assert labels[few(labels, per_class=3)].bincount().tolist() == [3] * 5


@pytest.mark.parametrize(
    "asked", [{}, {"share": 0.0}, {"share": 2.0}, {"per_class": 0}, {"share": 0.1, "per_class": 1}]
)
def test_a_few_that_makes_no_sense_is_refused(asked):
    with pytest.raises(PrelaxError):
        few(torch.arange(10), **asked)


def test_the_digest_of_a_cached_set_is_kept_beside_its_pixels(tmp_path: Path) -> None:
    pixels = torch.arange(96, dtype=torch.uint8).view(6, 1, 4, 4)
    np.save(tmp_path / "pixels.npy", pixels.numpy())
    cached = ImageSet("x", pixels, None, [], file=tmp_path / "pixels.npy")
    fresh = digests_of(ImageSet("x", pixels, None, []))
    assert fresh == digests_of(cached)
    assert fresh[0] == digest(pixels)
    turned = digests_of(ImageSet("x", pixels.flip(0), None, []))
    assert turned[0] == fresh[0]
    assert turned[1] != fresh[1]
    since = str((tmp_path / "pixels.npy").stat().st_mtime_ns)
    assert (tmp_path / "digest.txt").read_text() == " ".join((since, "6", *fresh))
    zeros = f"{'0' * 32} {'1' * 32}"
    for torn in ("", f"{since} 5 {zeros}", f"{since} 6 nonsense", f"{since} 6 {'0' * 32}", f"6 {zeros}"):
        (tmp_path / "digest.txt").write_text(torn)
        assert digests_of(cached) == fresh
    (tmp_path / "digest.txt").write_text(f"{since} 6 {zeros}")
    assert digests_of(cached) == ("0" * 32, "1" * 32)  # found, not computed again
    os.utime(tmp_path / "pixels.npy", ns=(0, int(since) + 1))  # written anew since
    assert digests_of(cached) == fresh
