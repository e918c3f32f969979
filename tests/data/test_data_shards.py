"""Tar shards: every image once an epoch, and an order that can be taken up anywhere."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("webdataset")

from prelax.data.shards import ShardStore, expand, open_shards, samples
from prelax.errors import PrelaxError

COUNTS = (5, 9, 1, 7, 6)


def write(folder: Path, broken: tuple[int, ...] = ()) -> torch.Tensor:
    """Shards of small images; gives their pixels in order."""
    rng = np.random.default_rng(0)
    pixels, number = [], 0
    for shard, count in enumerate(COUNTS):
        with tarfile.open(folder / f"train-{shard:03d}.tar", "w") as tar:
            for _ in range(count):
                image = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                pixels.append(image)
                held = io.BytesIO()
                Image.fromarray(image).save(held, "PNG")
                data = held.getvalue() if number not in broken else b"no image"
                for name, content in ((f"{number:06d}.png", data), (f"{number:06d}.cls", str(number % 3).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
                number += 1
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


@pytest.fixture
def store(tmp_path: Path):
    expected = write(tmp_path)
    shards = open_shards(str(tmp_path / "train-{000..004}.tar"), image_size=16, cache=tmp_path / "cache")
    opened = ShardStore(shards, "cpu", workers=0, group=2)
    yield opened, expected
    opened.close()


def test_every_image_comes_once_an_epoch_under_its_own_number(store):
    opened, expected = store
    walked = opened.shards.order(0, 1, group=2)
    assert torch.equal(walked.sort().values, torch.arange(sum(COUNTS)))
    seen = list(opened.batches(walked, 4))
    assert torch.equal(torch.cat([ids for ids, _ in seen]), walked)
    assert torch.equal(torch.cat([images for _, images in seen]), expected[walked])
    assert opened.shards.labels.tolist() == [i % 3 for i in range(sum(COUNTS))]
    assert opened.shards.classes == ["0", "1", "2"]


def test_a_run_taken_up_in_the_middle_sees_what_the_whole_run_saw(store):
    opened, _ = store
    walked = opened.shards.order(5, 2, group=2)
    whole = torch.cat([images for _, images in opened.batches(walked, 4)])
    for done in (4, 12, 20):
        assert torch.equal(torch.cat([images for _, images in opened.batches(walked[done:], 4)]), whole[done:])


def test_an_order_keeps_few_shards_open_and_differs_by_epoch(store):
    opened, _ = store
    starts = np.cumsum((0, *COUNTS))
    one, two = (opened.shards.order(0, epoch, group=2) for epoch in (1, 2))
    assert not torch.equal(one, two)
    at = 0
    for first in range(0, len(COUNTS), 2):
        rest = one[at:].numpy()
        shards = list(dict.fromkeys((np.searchsorted(starts, rest, side="right") - 1).tolist()))[:2]
        size = sum(COUNTS[shard] for shard in (shards if first + 1 < len(COUNTS) else shards[:1]))
        assert set(np.searchsorted(starts, one[at : at + size].numpy(), side="right") - 1) <= set(shards)
        at += size
    assert at == len(one)


def test_a_broken_image_keeps_its_number_and_is_named(tmp_path: Path):
    expected = write(tmp_path, broken=(5, 8))  # the first of a shard, and one within
    shards = open_shards(str(tmp_path / "train-*.tar"), image_size=16, cache=tmp_path / "cache")
    opened = ShardStore(shards, "cpu", workers=0)
    images = torch.cat([images for _, images in opened.batches(torch.arange(28), 28)])
    expected[5], expected[8] = expected[6], expected[7]
    assert torch.equal(images, expected)
    assert len(opened.broken) == 2
    assert all("not an image" in line for line in opened.broken)
    opened.close()


def test_counting_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path)
    seen: list[int] = []
    for _ in range(2):
        shards = open_shards(
            str(tmp_path / "train-*.tar"), cache=tmp_path / "cache", progress=lambda done, total: seen.append(done)
        )
        assert shards.counts == list(COUNTS)
    assert seen == [1, 2, 3, 4, 5]
    assert shards.plan.side == 32


def test_missing_and_damaged_shards_are_refused_in_one_line(tmp_path: Path):
    with pytest.raises(PrelaxError, match="no shard"):
        expand(str(tmp_path / "none-{0..3}.tar"))
    with pytest.raises(PrelaxError, match="no shard"):
        expand(str(tmp_path / "*.tar"))
    write(tmp_path)
    whole = (tmp_path / "train-001.tar").read_bytes()
    (tmp_path / "train-001.tar").write_bytes(whole[:700])
    with pytest.raises(PrelaxError, match=r"train-001\.tar cannot be read"):
        list(samples(str(tmp_path / "train-001.tar")))


def test_processes_decode_what_a_thread_decodes(tmp_path: Path):
    expected = write(tmp_path)
    shards = open_shards(str(tmp_path / "train-*.tar"), image_size=16, cache=tmp_path / "cache")
    opened = ShardStore(shards, "cpu", workers=1)
    walked = shards.order(0, 1)
    assert torch.equal(torch.cat([images for _, images in opened.batches(walked, 8)]), expected[walked])
    opened.close()
