"""Stores: the same batches wherever the pixels are."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prelax.data import ImageSet, Store, order
from prelax.data.store import choose_store
from prelax.errors import PrelaxError

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (57, 3, 8, 8), dtype=np.uint8))


def on_disk(folder: Path) -> ImageSet:
    np.save(folder / "pixels.npy", IMAGES.numpy())
    mapped = torch.from_numpy(np.load(folder / "pixels.npy", mmap_mode="c"))
    return ImageSet("x", mapped, None, [], file=folder / "pixels.npy")


@pytest.mark.parametrize("where", ["auto", "device", "host", "disk"])
@pytest.mark.parametrize("mapped", [False, True])
def test_batches_are_the_images_at_the_indices_wherever_they_are(tmp_path: Path, where, mapped):
    store = Store(on_disk(tmp_path) if mapped else IMAGES, "cpu", where)
    assert store.where == ("disk" if where == "disk" else "host")
    walked = order(0, 1, len(store))
    got = list(store.batches(walked, 10))
    assert [len(indices) for indices, _ in got] == [10] * 5 + [7]
    assert torch.equal(torch.cat([indices for indices, _ in got]), walked)
    assert torch.equal(torch.cat([images for _, images in got]), IMAGES[walked])
    assert torch.equal(store.batch(torch.tensor([5, 5, 0])), IMAGES[[5, 5, 0]])


def test_leaving_an_iteration_early_ends_its_thread(tmp_path: Path):
    store = Store(on_disk(tmp_path), "cpu", "disk")
    for _ in store.batches(torch.arange(57), 2):
        break
    assert not [thread for thread in threading.enumerate() if thread.name == "prelax-ahead"]


def test_an_error_of_the_reading_thread_reaches_the_caller(tmp_path: Path):
    store = Store(on_disk(tmp_path), "cpu", "disk")
    with pytest.raises(IndexError, match="store of 57 images"):
        list(store.batches(torch.tensor([1, 99]), 1))
    (tmp_path / "pixels.npy").write_bytes(b"")
    with pytest.raises(PrelaxError, match="cut short"):
        store.batch(torch.tensor([3]))


def test_auto_on_the_cpu_is_the_host_unless_half_the_memory_is_not_enough(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr("prelax.data.store.available_memory", lambda: 1000)
    assert choose_store(499, cpu, on_disk=True) == "host"
    assert choose_store(500, cpu, on_disk=True) == "disk"
    assert choose_store(500, cpu, on_disk=False) == "host"


def test_a_wrong_place_or_dtype_is_refused():
    with pytest.raises(PrelaxError, match=r"data\.store=cloud"):
        Store(IMAGES, "cpu", "cloud")
    with pytest.raises(ValueError, match="uint8"):
        Store(IMAGES.float(), "cpu")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(0, 1000), st.integers(1, 300))
def test_an_order_is_a_permutation_that_only_depends_on_its_address(seed, epoch, n):
    one = order(seed, epoch, n)
    assert torch.equal(one.sort().values, torch.arange(n))
    torch.manual_seed(epoch)
    assert torch.equal(one, order(seed, epoch, n))
    if n > 20:
        assert not torch.equal(one, order(seed, epoch + 1, n))
        assert not torch.equal(one, order(seed + 1, epoch, n))
