"""Tar shards: every image once an epoch, and an order that can be taken up anywhere."""

from __future__ import annotations

import io
import itertools
import shutil
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("webdataset")

from prelax.data.decode import Plan
from prelax.data.shards import ShardSet, ShardStore, open_shards
from prelax.data.tars import cut_short, expand, samples
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
                add(tar, {f"{number:06d}.png": data, f"{number:06d}.cls": str(number % 3).encode()})
                number += 1
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def add(tar: tarfile.TarFile, members: dict[str, bytes]) -> None:
    for name, content in members.items():
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def store(tmp_path: Path):
    expected = write(tmp_path)
    shards = open_shards(str(tmp_path / "train-{000..004}.tar"), image_size=16, cache=tmp_path / "cache", mix=2)
    opened = ShardStore(shards, "cpu", workers=0)
    yield opened, expected
    opened.close()


def test_every_image_comes_under_its_own_number_and_once_an_epoch(store):
    opened, expected = store
    walked = opened.shards.walk(0, 1, 4)
    assert walked.shape == (7, 4)
    assert torch.equal(walked.flatten().sort().values, torch.arange(sum(COUNTS)))
    seen = list(opened.batches(walked.flatten(), 4))
    assert torch.equal(torch.stack([ids for ids, _ in seen]), walked)
    assert torch.equal(torch.cat([images for _, images in seen]), expected[walked.flatten()])
    assert opened.shards.labels.tolist() == [i % 3 for i in range(sum(COUNTS))]
    assert opened.shards.classes == ["0", "1", "2"]


def test_a_run_taken_up_in_the_middle_sees_what_the_whole_run_saw(store):
    opened, _ = store
    walked = opened.shards.walk(5, 2, 4)
    whole = torch.stack([images for _, images in opened.batches(walked.flatten(), 4)])
    for done in (1, 3, 5):
        rest = torch.stack([images for _, images in opened.batches(walked[done:].flatten(), 4)])
        assert torch.equal(rest, whole[done:])


@pytest.mark.parametrize(("batch", "mix", "lanes"), [(8, 8, 8), (12, 8, 6), (7, 8, 7), (11, 8, 1), (4, 8, 4)])
def test_a_batch_is_cut_into_as_many_lanes_as_divide_it(batch: int, mix: int, lanes: int):
    many = ShardSet("shards", ["x"] * 40, [30] * 40, Plan(8, 3), None, [], mix=mix)
    assert many.lanes(batch) == lanes
    walked = many.walk(0, 1, batch)
    assert walked.shape == (1200 // batch, batch)
    assert len(walked.unique()) == walked.numel()


def test_a_process_reads_its_own_shards_and_few_of_them_at_a_time():
    many = ShardSet("shards", ["x"] * 40, [30] * 40, Plan(8, 3), None, [], mix=4)
    walked = many.walk(0, 1, 32)
    halves = [set((walked[:, cut].flatten() // 30).tolist()) for cut in (slice(0, 16), slice(16, 32))]
    assert len(halves[0] & halves[1]) <= 1  # the shard the line of shards was cut in
    for rows in walked:  # four lanes, each in one shard or on its way to the next
        assert len((rows // 30).unique()) <= 8
    steps = [(walked == image).nonzero()[:, 0] for image in range(1200)]
    for shard in range(40):  # from a shard's first image to its last pass about 30 / 8 steps
        used = torch.cat(steps[30 * shard : 30 * shard + 30])
        assert int(used.max() - used.min()) <= 5


def test_an_order_differs_by_epoch_and_by_seed(store):
    walks = [store[0].shards.walk(seed, epoch, 4) for seed, epoch in ((0, 1), (0, 2), (1, 1))]
    assert not any(torch.equal(one, two) for one, two in itertools.combinations(walks, 2))


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


def test_a_truncated_shard_is_told_once(tmp_path: Path):
    write(tmp_path)
    shard = tmp_path / "train-001.tar"
    shard.write_bytes(shard.read_bytes()[:700])
    with pytest.raises(PrelaxError) as caught:
        list(samples(str(shard)))
    assert str(caught.value).count("cannot be read") == 1
    assert "\n" not in str(caught.value)
    assert "<" not in str(caught.value)  # no object of Python's


def test_a_shard_whose_last_header_is_cut_is_named(tmp_path: Path):
    write(tmp_path)
    shard = tmp_path / "train-001.tar"
    with tarfile.open(shard) as tar:
        third = tar.getmembers()[4]  # the third image: tarfile takes half a header for the end
    shard.write_bytes(shard.read_bytes()[: third.offset + 100])
    shards = open_shards(str(tmp_path / "train-00{0,1}.tar"), cache=tmp_path / "cache")
    assert shards.counts == [5, 2]
    assert any(note.startswith(f"{shard} does not end as a tar ends") for note in shards.notes)
    assert cut_short([str(tmp_path / f"train-00{n}.tar") for n in range(5)]) == [str(shard)]


def test_of_a_sample_the_plain_image_is_taken_and_what_is_left_out_is_counted(tmp_path: Path):
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        add(tar, {"a.mask.png": b"mask", "a.npy": b"array", "a.png": b"image", "shot 10.11.png": b"first"})
        add(tar, {"shot 10.12.png": b"second", "shot 10.13.png": b"third"})
    assert [image for image, _ in samples(str(tmp_path / "s.tar"))] == [b"image", b"first"]
    for _ in range(2):  # counted, and from the cache
        notes = open_shards(str(tmp_path / "s.tar"), cache=tmp_path / "cache").notes
        assert any(note.startswith("3 images left out, a.mask.png among them") for note in notes)


def test_an_image_that_is_there_twice_is_named(tmp_path: Path):
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        add(tar, {"a.JPG": b"", "a.jpg": b""})
    with pytest.raises(PrelaxError, match=r"s\.tar cannot be read: it holds a\.jpg twice"):
        list(samples(str(tmp_path / "s.tar")))


def test_a_remote_shard_that_failed_once_is_counted_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path)
    monkeypatch.setattr("prelax.data.tars.time.sleep", lambda seconds: None)
    once = f"mkdir {tmp_path}/failed || cat {tmp_path}/train-001.tar"
    assert open_shards(f"pipe:{once}", image_size=16, cache=tmp_path / "cache").counts == [9]


def test_a_remote_shard_that_has_changed_is_counted_again_by_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path)
    monkeypatch.setattr("prelax.data.tars.time.sleep", lambda seconds: None)
    url = f"pipe:cat {tmp_path}/train-001.tar"
    opened = ShardStore(open_shards(url, image_size=16, cache=tmp_path / "cache"), "cpu", workers=0)
    shutil.copy(tmp_path / "train-000.tar", tmp_path / "train-001.tar")
    with pytest.raises(PrelaxError, match="it had 9 images and has 5; bring back what it held"):
        opened.batch(torch.arange(2))
    opened.close()
    assert open_shards(url, image_size=16, cache=tmp_path / "cache").counts == [5]


@pytest.mark.parametrize("pattern", ["s-{0..3.tar", "s-0..3}.tar"])
def test_a_brace_too_many_is_named(pattern: str, tmp_path: Path):
    with pytest.raises(PrelaxError, match="a brace too many; write train-"):
        expand(str(tmp_path / pattern))


def test_a_pattern_of_more_shards_than_anybody_has_is_refused_before_it_is_written_out() -> None:
    with pytest.raises(PrelaxError, match="names 1,000,000,000,000 shards; 10,000,000 are the most"):
        expand("s-{000000..999999}-{000000..999999}.tar")


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/train-{000..001}.tar::~/train-*2.tar") == [str(tmp_path / f"train-00{n}.tar") for n in range(3)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="webdataset reads http through curl")
def test_shards_come_from_a_server_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = write(tmp_path)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *words: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        shards = open_shards(address + "/train-{000..004}.tar", image_size=16, cache=tmp_path / "cache")
        opened = ShardStore(shards, "cpu", workers=0)
        assert torch.equal(opened.batch(torch.arange(28)), expected)
        opened.close()
        monkeypatch.setattr("prelax.data.tars.TRIES", 1)
        with pytest.raises(
            PrelaxError, match=r"shard http://.*/none\.tar cannot be read: (empty file|.*failed \(exit 22\))$"
        ):
            open_shards(address + "/none.tar", image_size=16, cache=tmp_path / "cache")
        server.shutdown()


def test_processes_decode_what_a_thread_decodes(tmp_path: Path):
    expected = write(tmp_path)
    shards = open_shards(str(tmp_path / "train-*.tar"), image_size=16, cache=tmp_path / "cache")
    opened = ShardStore(shards, "cpu", workers=1)
    walked = shards.walk(0, 1, 8).flatten()
    assert torch.equal(torch.cat([images for _, images in opened.batches(walked, 8)]), expected[walked])
    opened.close()


def test_hidden_files_of_a_shard_are_no_images(tmp_path: Path) -> None:
    write(tmp_path)
    with tarfile.open(tmp_path / "train-001.tar") as tar:
        held = [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(tmp_path / "mac.tar", "w") as tar:
        for name, content in held:
            add(tar, {f"train/._{name}": b"AppleDouble", f"train/{name}": content})
        add(tar, {"x/.hidden.png": held[0][1], "__MACOSX/1.png": held[0][1]})
    assert list(samples(str(tmp_path / "mac.tar"))) == list(samples(str(tmp_path / "train-001.tar")))
    assert open_shards(str(tmp_path / "mac.tar"), image_size=16, cache=tmp_path / "cache").counts == [COUNTS[1]]


def test_a_command_that_gives_nothing_is_said_so() -> None:
    with pytest.raises(PrelaxError, match=r"pipe:true cannot be read: the command that fetches it gave nothing"):
        list(samples("pipe:true"))
