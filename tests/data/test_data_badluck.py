"""Bad luck: broken files, odd trees, full disks, two processes at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prelax.config import DataSettings
from prelax.data import cache, load, memory
from prelax.data.decode import MAX_PIXELS
from prelax.data.pool import main_hidden, process_pool
from prelax.errors import PrelaxError


def reasons(found) -> dict[str, str]:
    return {Path(path).name: why for path, why in found.skipped}


def bomb(path: Path, side: int) -> None:
    """A PNG whose header promises far more pixels than the file has bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))


def test_broken_files_are_skipped_and_named_and_the_rest_is_read(tmp_path: Path, photo, read):
    root = tmp_path / "set"
    for i in range(4):
        photo(root / "c" / f"good{i}.jpg", seed=i)
    whole = photo(root / "c" / "whole.jpg", (200, 200)).read_bytes()
    (root / "c" / "whole.jpg").unlink()
    (root / "c" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "c" / "zero.png").touch()
    (root / "c" / "text.jpg").write_text("I am no image")
    photo(root / "c" / "x.png").rename(root / "c" / "really_png.jpg")
    bomb(root / "c" / "bomb.png", 20_000)
    bomb(root / "c" / "big_bomb.png", 60_000)
    (root / "c" / "cut.npy").write_bytes(b"\x93NUMPY")
    os.mkfifo(root / "c" / "pipe.jpg")
    (root / "c" / "dangling.jpg").symlink_to(root / "nowhere.jpg")
    found = read(root)
    assert sorted(Path(path).name for path in found.paths) == [*(f"good{i}.jpg" for i in range(4)), "really_png.jpg"]
    assert len(found) == len(found.labels) == 5
    why = reasons(found)
    assert set(why) == {"truncated.jpg", "zero.png", "text.jpg", "bomb.png", "big_bomb.png", "cut.npy", "pipe.jpg"} | {
        "dangling.jpg"
    }
    assert "truncated" in why["truncated.jpg"]
    assert why["zero.png"] == "empty file"
    assert why["text.jpg"] == "not an image"
    assert f"{MAX_PIXELS:,}" in why["bomb.png"]
    assert why["pipe.jpg"] == "not a regular file"
    assert why["dangling.jpg"] == "no such file or directory"
    assert any("8 files skipped of 13: log.txt in the run folder says which" in note for note in found.notes)
    assert reasons(read(root)) == why  # the cache remembers


def test_pixels_stay_beside_their_paths_when_files_between_are_skipped(tmp_path: Path, photo, read):
    root = tmp_path / "set"
    for i in range(100):
        if i % 3:
            photo(root / f"{i:03d}.png", (32, 32), seed=i)
        else:
            (root / f"{i:03d}.png").parent.mkdir(exist_ok=True)
            (root / f"{i:03d}.png").write_bytes(b"broken")
    found = read(root)
    for row in (1, 30, 65):
        assert np.array_equal(np.asarray(Image.open(found.paths[row])).transpose(2, 0, 1), found.images[row].numpy())


def test_a_set_with_nothing_left_is_refused_with_the_first_reason(tmp_path: Path, read):
    root = tmp_path / "set"
    root.mkdir()
    with pytest.raises(PrelaxError, match="no images under"):
        read(root)
    (root / "a.heic").write_text("x")
    with pytest.raises(PrelaxError, match=r"found 1 \.heic.*; convert \.heic files to jpg, png or tif first$"):
        read(root)
    (root / "a.jpg").touch()
    for _ in range(2):  # from the cache too
        with pytest.raises(PrelaxError, match=r"none of 1 file under .*a\.jpg: empty file"):
            read(root)
    with pytest.raises(PrelaxError, match="is not there"):
        read(tmp_path / "nowhere")
    with pytest.raises(PrelaxError, match="is not a folder"):
        read(root / "a.jpg")


def test_a_phones_picture_under_another_name_is_told(tmp_path: Path, photo, read):
    root = tmp_path / "set"
    photo(root / "a.png", (32, 32))
    (root / "IMG_1.jpg").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    assert reasons(read(root)) == {"IMG_1.jpg": "a HEIC picture, whatever its name says: convert it to jpg first"}


def test_a_loop_of_links_ends_and_each_folder_is_read_once(tmp_path: Path, photo, read):
    root = tmp_path / "set"
    photo(root / "b" / "1.png")
    photo(tmp_path / "elsewhere" / "2.png")
    (root / "b" / "loop").symlink_to(root)
    (root / "b" / "self").symlink_to(root / "b")
    (root / "a").symlink_to(root / "b")  # sorts first, but the real folder is the class
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    found = read(root)
    assert [Path(path).relative_to(root).as_posix() for path in found.paths] == ["b/1.png", "linked/2.png"]


def test_names_in_any_script_and_of_no_script_are_read(tmp_path: Path, photo, read):
    root = tmp_path / "набор 画像"
    odd = ["кот/фото.png", "猫/写真 1.png", "قط/صورة.png", "emoji 🐈/x.png", "c/new\nline.png", "c/q'\"$.png"]
    for name in odd:
        photo(root / name, (32, 32))
    raw = os.fsencode(root) + b"/c/\xff\xfe.png"  # bytes that are no UTF-8
    shutil.copy(photo(tmp_path / "plain.png"), raw)
    found = read(root)
    assert len(found) == 7
    assert set(found.classes) == {"кот", "猫", "قط", "emoji 🐈", "c"}
    "\n".join(found.paths).encode("utf-8")  # any log can hold them
    assert all(path.isprintable() for path in found.paths)


@contextlib.contextmanager
def ordinary_user():
    """Permissions bind: root reads everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder any user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_unreadable_files_and_folders_are_skipped_until_they_can_be_read(open_folder: Path, photo, read):
    root = open_folder / "set"
    photo(root / "a" / "1.png")
    photo(root / "a" / "locked.png").chmod(0)
    photo(root / "shut" / "2.png").parent.chmod(0)
    with ordinary_user():
        found = read(root, cache=open_folder / "cache")
        assert [Path(path).name for path in found.paths] == ["1.png"]
        assert reasons(found) == {"locked.png": "permission denied", "shut": "permission denied"}
    (root / "shut").chmod(0o755)
    (root / "shut" / "2.png").unlink()
    (root / "a" / "locked.png").chmod(0o644)  # changes neither size nor time
    with ordinary_user():
        assert len(read(root, cache=open_folder / "cache")) == 2


def test_an_unwritable_cache_is_said_and_done_without(open_folder: Path, photo, read):
    photo(open_folder / "set" / "1.png")
    (open_folder / "cache").mkdir(mode=0o555)
    with ordinary_user():
        found = read(open_folder / "set", cache=open_folder / "cache")
    assert len(found) == 1
    assert found.file is None
    assert any("cache not written (Permission denied" in note for note in found.notes)


@pytest.mark.parametrize("room", [150_000, 50])  # half of the set, or not even the header: a quota used up
def test_a_disk_that_fills_up_while_decoding_loses_no_pixel(tmp_path: Path, photo, read, room):
    for i in range(100):
        photo(tmp_path / "set" / f"{i}.png", (32, 32), seed=i)
    expected = read(tmp_path / "set", cache=tmp_path / "roomy")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        found = read(tmp_path / "set", cache=tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.equal(found.images, expected.images)
    assert found.file is None
    assert any("cache not written (File too large" in note for note in found.notes)
    assert not [path for path in (tmp_path / "full" / "images").iterdir() if path.suffix != ".lock"]


def test_a_container_has_the_memory_and_the_cores_it_is_allowed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    every = memory.core_count()
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("4000000\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 2500000\nactive_file 500000\n")
    assert memory.available_memory() == 3_500_000  # pages of files that were read once are no loss
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert memory.core_count() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert memory.core_count() == every


def test_pixels_that_fit_nowhere_are_refused_in_one_line(tmp_path: Path, photo, read, monkeypatch):
    photo(tmp_path / "set" / "1.png")
    (tmp_path / "file").touch()  # a cache folder cannot be made below a file
    monkeypatch.setattr(cache, "available_memory", lambda: 1000)
    with pytest.raises(PrelaxError, match=r"fit neither the cache nor memory"):
        read(tmp_path / "set", cache=tmp_path / "file" / "cache")


def test_a_damaged_cache_entry_is_made_again(tmp_path: Path, photo, read):
    for i in range(3):
        photo(tmp_path / "set" / f"{i}.png", (32, 32), seed=i)
    first = read(tmp_path / "set")
    expected, file = first.images.clone(), first.file
    del first
    os.truncate(file, 500)
    assert torch.equal(read(tmp_path / "set").images, expected)
    (file.parent / "index.json").write_text("{}")
    assert torch.equal(read(tmp_path / "set").images, expected)


def test_a_killed_process_leaves_nothing_that_is_taken_for_a_cache(tmp_path: Path, photo, read):
    photo(tmp_path / "set" / "1.png", (32, 32))
    expected = read(tmp_path / "set")
    key = expected.file.parent.name
    shutil.rmtree(expected.file.parent)
    left = tmp_path / "cache" / "images" / f".{key}-99999"
    left.mkdir()
    (left / "pixels.npy").write_bytes(b"half")
    assert len(read(tmp_path / "set")) == 1
    assert not left.exists()


def test_a_process_that_decodes_does_not_hear_ctrl_c():
    pool = process_pool(1)
    try:
        with main_hidden():
            worker = pool.submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        assert pool.submit(os.getpid).result() == worker
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # this one does
    finally:
        pool.shutdown()


def test_two_processes_at_once_make_one_entry(tmp_path: Path, photo):
    for i in range(200):
        photo(tmp_path / "set" / f"{i}.png", (64, 64), seed=i)

    def work(said) -> None:
        found = load(settings)
        said.put((len(found), str(found.file), int(found.images.numpy().sum())))

    settings = DataSettings(
        source="folder", root=tmp_path / "set", cache=tmp_path / "cache", workers=0, test_fraction=0
    )
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    both = [context.Process(target=work, args=(said,)) for _ in range(2)]
    for process in both:
        process.start()
    answers = {said.get(timeout=60) for _ in both}
    for process in both:
        process.join()
    assert len(answers) == 1
    assert answers.pop()[0] == 200
    assert len([path for path in (tmp_path / "cache" / "images").iterdir() if path.is_dir()]) == 1
