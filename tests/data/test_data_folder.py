"""Trees of images: splits, labels, the size and channels of a set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prelax.config import DataSettings
from prelax.data import bar, choose_image_size, disjoint, load
from prelax.data.listing import held_out
from prelax.errors import PrelaxError


def names(found) -> list[str]:
    return [Path(path).name for path in found.paths]


def test_class_sub_folders_are_the_labels(tmp_path: Path, photo, read):
    for name in ("dog/a.jpg", "dog/deep/er/b.png", "cat/c.webp", "cat/.hidden.jpg", "cat/notes.txt"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        photo(tmp_path / "set" / name) if not name.endswith("txt") else (tmp_path / "set" / name).write_text("x")
    found = read(tmp_path / "set")
    assert found.classes == ["cat", "dog"]
    assert dict(zip(names(found), found.labels.tolist(), strict=True)) == {"c.webp": 0, "a.jpg": 1, "b.png": 1}
    assert found.images.shape == (3, 3, 32, 32)
    assert any("1 .txt" in note for note in found.notes)


def test_what_a_run_drew_among_the_images_is_none_of_them(tmp_path: Path, photo, read):
    for name in ("a/1.png", "b/2.png", "runs/first/search.png", "runs/first/deep/3.png", "runs/4.png"):
        photo(tmp_path / "set" / name)
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / "set" / "runs" / "first" / name).write_text("")
    assert names(read(tmp_path / "set")) == ["1.png", "2.png", "4.png"]


def test_pixels_kept_among_the_images_are_none_of_them(tmp_path: Path, photo, read):
    for name in ("a/1.png", "b/2.png"):
        photo(tmp_path / "set" / name)
    for _ in range(2):  # the second time the first one's cache is there
        assert names(read(tmp_path / "set", cache=tmp_path / "set" / "cache")) == ["1.png", "2.png"]
    assert list((tmp_path / "set" / "cache").rglob("pixels.npy"))


def test_classes_whose_names_are_no_text_are_readable(tmp_path: Path, photo, read):
    for name in (b"caf\xe9", b"dog"):
        os.makedirs(os.fsencode(tmp_path) + b"/set/" + name)
        shutil.copy(photo(tmp_path / "plain.png"), os.fsencode(tmp_path) + b"/set/" + name + b"/1.png")
    assert read(tmp_path / "set").classes == ["caf\\xe9", "dog"]


def test_a_set_that_is_not_decoded_anew_prints_nothing(capsys: pytest.CaptureFixture[str]):
    with bar():
        pass
    assert capsys.readouterr().err == ""


def test_a_pipe_gets_no_bar_and_no_empty_line_in_its_place(capsys: pytest.CaptureFixture[str]):
    with bar() as progress:
        progress(1, 2)
        progress(2, 2)
    assert capsys.readouterr().err == ""


def test_a_set_is_called_by_the_name_of_its_folder(tmp_path: Path, photo, read):
    photo(tmp_path / "holiday" / "1.png")
    assert read(tmp_path / "holiday").name == "holiday"


def test_a_flat_folder_has_no_labels(tmp_path: Path, photo, read):
    for i in range(4):
        photo(tmp_path / "set" / f"{i}.png")
    found = read(tmp_path / "set")
    assert found.labels is None
    assert found.classes == []
    assert len(found) == 4


def test_images_outside_the_class_folders_have_label_minus_one(tmp_path: Path, photo, read):
    photo(tmp_path / "set" / "loose.png")
    photo(tmp_path / "set" / "cat" / "a.png")
    found = read(tmp_path / "set")
    assert dict(zip(names(found), found.labels.tolist(), strict=True)) == {"loose.png": -1, "a.png": 0}


def test_one_image_and_one_class_are_a_set(tmp_path: Path, photo, read):
    photo(tmp_path / "set" / "only" / "a.png")
    found = read(tmp_path / "set", test_fraction=0.5)
    assert (len(found), found.classes, found.labels.tolist()) == (1, ["only"], [0])
    with pytest.raises(PrelaxError, match=r"none of the images in .* is held out .* \(--on FOLDER\)"):
        read(tmp_path / "set", "test", test_fraction=0.5)


@pytest.mark.parametrize("test_name", ["test", "val", "valid"])
def test_train_and_test_folders_are_the_split(tmp_path: Path, photo, read, test_name):
    for i in range(3):
        photo(tmp_path / "set" / "train" / "b" / f"{i}.png")
    photo(tmp_path / "set" / test_name / "b" / "t.png")
    photo(tmp_path / "set" / test_name / "a" / "u.png")
    train, test = read(tmp_path / "set"), read(tmp_path / "set", "test")
    assert (len(train), train.classes) == (3, ["b"])
    assert test.classes == ["b", "a"]  # numbers of the training classes stand; a new class comes after them
    assert dict(zip(names(test), test.labels.tolist(), strict=True)) == {"t.png": 0, "u.png": 1}


def test_a_class_called_train_is_not_a_split(tmp_path: Path, photo, read):
    for name in ("car", "plane", "train"):
        photo(tmp_path / "set" / name / "a.png")
    assert read(tmp_path / "set").classes == ["car", "plane", "train"]


def test_test_root_is_a_tree_of_its_own(tmp_path: Path, photo, read):
    photo(tmp_path / "one" / "a" / "1.png")
    photo(tmp_path / "two" / "a" / "2.png")
    assert names(read(tmp_path / "one", "test", test_root=tmp_path / "two")) == ["2.png"]
    with pytest.raises(PrelaxError, match=r"data\.test_root: .* is not there"):
        read(tmp_path / "one", test_root=tmp_path / "three")


def test_a_hold_out_shares_no_file_and_covers_all(tmp_path: Path, photo, read):
    for i in range(60):
        photo(tmp_path / "set" / f"{i}.png", (8, 8), seed=i)
    train = read(tmp_path / "set", test_fraction=0.25)
    test = read(tmp_path / "set", "test", test_fraction=0.25)
    assert set(names(train)).isdisjoint(names(test))
    assert len(train) + len(test) == 60
    assert disjoint(train, test) == 0
    assert disjoint(train, train) == len(train)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text(min_size=1), min_size=2, max_size=40), st.floats(0.01, 0.99), st.data())
def test_a_new_file_moves_no_old_one_between_the_splits(files, fraction, data):
    files = sorted(files)
    test = dict(zip(files, held_out(files, fraction), strict=True))
    assert 0 < sum(test.values()) < len(files)
    more = [*files, *(f"{name}+" for name in files)]
    if sum(held_out(more, fraction)) > 0 and len(files) > 20:  # away from the one-file corners
        grown = dict(zip(more, held_out(more, fraction), strict=True))
        assert sum(grown[name] != test[name] for name in files) <= 1


def test_the_share_held_out_is_the_one_asked_for():
    share = sum(held_out([f"img_{i:06d}.jpg" for i in range(20000)], 0.1)) / 20000
    assert abs(share - 0.1) < 0.01


def test_limit_takes_that_many_files_over_all_classes_and_decodes_no_more(tmp_path: Path, photo, read):
    for i in range(30):
        photo(tmp_path / "set" / "abc"[i // 10] / f"{i}.png", (8, 8))
    found = read(tmp_path / "set", limit=12)
    assert len(found) == 12
    assert len(found.labels.unique()) == 3


@pytest.mark.parametrize(
    ("sides", "chosen"), [([28], 32), ([8], 32), ([64, 64, 500], 64), ([100] * 3, 96), ([233], 256)]
)
def test_the_image_size_follows_the_median_side(sides, chosen):
    assert choose_image_size(sides) == chosen


def test_size_and_channels_of_the_test_set_are_the_training_sets(tmp_path: Path, photo, read):
    for i in range(3):
        photo(tmp_path / "set" / "train" / f"{i}.png", (70, 64), "L")
        photo(tmp_path / "set" / "test" / f"{i}.png", (300, 300), "RGB")
    train, test = read(tmp_path / "set"), read(tmp_path / "set", "test")
    assert train.images.shape == test.images.shape == (3, 1, 64, 64)
    assert any("decoded to 64 px" in note for note in train.notes)


def test_channels_are_the_majoritys_and_others_are_converted_or_skipped_with_the_reason(tmp_path: Path, photo, read):
    for i in range(3):
        photo(tmp_path / "set" / f"{i}.png")
    photo(tmp_path / "set" / "grey.png", mode="L")
    np.save(tmp_path / "set" / "many.npy", np.zeros((40, 40, 7), np.uint8))
    found = read(tmp_path / "set")
    assert found.images.shape[:2] == (4, 3)
    assert [(Path(path).name, why) for path, why in found.skipped] == [("many.npy", "7 channels where the set has 3")]
    said = "images have 3 channels, as most: of 5 sampled files 3 have 3, 1 has 1, 1 has 7; others are converted"
    assert said in found.notes


def test_what_is_to_be_converted_is_named_among_what_is_left_out(tmp_path: Path, photo, read):
    photo(tmp_path / "set" / "1.png")
    pictures = [".cr2", ".dcm", ".dng", ".heic", ".nef", ".pdf", ".psd"]
    for kind in (*pictures, ".txt", ".md"):
        (tmp_path / "set" / f"a{kind}").touch()
    (tmp_path / "set" / "b.txt").touch()
    (note,) = (note for note in read(tmp_path / "set").notes if "left out" in note)
    named, _, wanted = note.partition("; convert ")
    assert all(f"1 {kind}" in named and kind in wanted for kind in pictures)
    assert named.endswith(", 3 others")


def test_files_that_cannot_be_read_are_counted_of_those_to_train_on(tmp_path: Path, photo, read):
    for i in range(60):
        photo(tmp_path / "set" / f"{i}.png", (8, 8), seed=i)
    for i in range(6):
        (tmp_path / "set" / f"bad{i}.png").write_text("no image")
    test = dict(
        zip(files := sorted(path.name for path in (tmp_path / "set").iterdir()), held_out(files, 0.5), strict=True)
    )
    lost = sum(not test[f"bad{i}.png"] for i in range(6))
    notes = read(tmp_path / "set", test_fraction=0.5).notes
    assert 1 < lost < 6
    assert any(
        f"{lost} files skipped of the {sum(not held for held in test.values())} to train on: " in note for note in notes
    )


def test_twelve_bits_in_sixteen_use_the_whole_range_and_it_is_said(tmp_path: Path, read):
    (tmp_path / "set").mkdir()
    for i, top in enumerate((4000, 2000, 1000)):
        Image.fromarray(np.full((32, 32), top, np.uint16)).save(tmp_path / "set" / f"{i}.png")
    found = read(tmp_path / "set")
    assert found.images[:, 0, 0, 0].tolist() == [round(v * 255 / 4095) for v in (4000, 2000, 1000)]
    assert any("0 to 4095 becomes 0 to 255" in note for note in found.notes)


def test_the_largest_number_of_sixty_four_bits_is_white(tmp_path: Path, read):
    (tmp_path / "set").mkdir()
    for i, top in enumerate((0, 2**64 - 1)):
        np.save(tmp_path / "set" / f"{i}.npy", np.full((32, 32), top, np.uint64))
    assert read(tmp_path / "set").images[:, 0, 0, 0].tolist() == [0, 255]


def test_classes_that_are_one_number_have_the_same_order_in_every_process():
    names = [f"{'0' * zeros}1" for zeros in range(8)]
    code = f"from prelax.data.listing import class_names; print(class_names({names}))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2)
    }
    assert told == {f"{sorted(names)}\n"}


def test_a_second_start_maps_the_same_pixels_without_decoding(tmp_path: Path, photo, read):
    for i in range(5):
        photo(tmp_path / "set" / "c" / f"{i}.jpg", (64, 50))
    seen: list[tuple[int, int]] = []
    given = DataSettings(source="folder", root=tmp_path / "set", cache=tmp_path / "cache", workers=0, test_fraction=0)
    first = load(given, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (5, 5)
    seen.clear()
    again = load(given, progress=lambda done, total: seen.append((done, total)))
    assert not seen
    assert torch.equal(first.images, again.images)
    assert (again.paths, again.labels.tolist()) == (first.paths, first.labels.tolist())
    assert np.array_equal(np.load(again.file), again.images.numpy())


def test_a_changed_file_is_decoded_again(tmp_path: Path, photo, read):
    path = photo(tmp_path / "set" / "a.png", seed=0)
    before = read(tmp_path / "set").images.clone()
    time.sleep(0.01)
    photo(path, seed=1)
    assert not torch.equal(read(tmp_path / "set").images, before)


def test_processes_decode_the_same_pixels_from_a_script_without_a_main_guard(tmp_path: Path, photo, read):
    for i in range(70):
        photo(tmp_path / "set" / "c" / f"{i}.jpg", (60, 44), seed=i)
    (tmp_path / "set" / "c" / "bad.jpg").write_text("no image")
    alone = read(tmp_path / "set", image_size=32)
    script = tmp_path / "script.py"
    script.write_text(
        "from prelax.config import DataSettings\nfrom prelax.data import load\nprint('once')\n"
        f"found = load(DataSettings(source='folder', root={str(tmp_path / 'set')!r}, cache={str(tmp_path / 'two')!r}, "
        "image_size=32, workers=2, test_fraction=0))\nprint(found.file)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    once, file = done.stdout.splitlines()
    assert once == "once"
    assert np.array_equal(np.load(file), alone.images.numpy())


def test_a_folder_of_shards_is_told_how_to_name_them(tmp_path: Path, read):
    (tmp_path / "photos-0.tar").touch()
    with pytest.raises(PrelaxError, match=r"found 1 \.tar.*data\.shards='.*/\*\.tar'"):
        read(tmp_path)


def test_a_folder_that_cannot_be_opened_is_not_one_file(tmp_path: Path, photo, read, monkeypatch: pytest.MonkeyPatch):
    for name in ("a/0.png", "a/1.png", "shut/2.png"):
        photo(tmp_path / "set" / name)
    scan = os.scandir

    def refusing(path):
        if str(path).endswith("shut/"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = read(tmp_path / "set")
    assert "1 folder cannot be opened, and nothing in there is read" in found.notes
    assert not any("skipped" in note for note in found.notes)
    assert found.skipped[0][1] == "permission denied"
