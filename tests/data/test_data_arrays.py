"""All images in one NumPy file: the pixels, labels and splits that are in it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.random import default_rng

from prelax.check import check
from prelax.cli import main
from prelax.config import DataSettings, resolve
from prelax.data import ImageSet, disjoint, load
from prelax.data.arrays import is_arrays, told
from prelax.errors import PrelaxError
from prelax.evaluate.labels import labelled
from prelax.run import Run
from prelax.train import pretrain

PIXELS = default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(60) % 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))


def of(root: Path, split: str = "train", **changes: Any) -> ImageSet:
    return load(DataSettings(source="folder", root=root, **changes), split)


def saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def medmnist(path: Path, labels: np.ndarray = LABELS[:, None]) -> Path:
    """A file with the names and shapes of MedMNIST's."""
    arrays = {}
    for name, rows in (("train", slice(0, 40)), ("val", slice(40, 50)), ("test", slice(50, 60))):
        arrays |= {f"{name}_images": PIXELS[rows], f"{name}_labels": labels[rows]}
    np.savez_compressed(path, **arrays)
    return path


def test_an_array_gives_its_pixels_whichever_axis_holds_the_channels(tmp_path: Path) -> None:
    last = of(saved(tmp_path / "last.npy", PIXELS), test_fraction=0.0)
    first = of(saved(tmp_path / "first.npy", PIXELS.transpose(0, 3, 1, 2)), test_fraction=0.0)
    assert last.shape == (3, 32, 32)
    assert torch.equal(last.images, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert torch.equal(first.images, last.images)
    grey = of(saved(tmp_path / "grey.npy", PIXELS[..., 0]), test_fraction=0.0)
    assert torch.equal(grey.images[:, 0], torch.from_numpy(PIXELS[..., 0].copy()))
    assert last.paths is not None
    assert Path(last.paths[7]).name == "last.npy[7]"


def test_an_array_is_decoded_as_a_folder_of_its_images_is(tmp_path: Path) -> None:
    deep = default_rng(1).normal(size=(5, 20, 26)).astype(np.float32)
    (tmp_path / "photos").mkdir()
    for row, image in enumerate(deep):
        saved(tmp_path / "photos" / f"{row}.npy", image)
    one = of(saved(tmp_path / "deep.npy", deep), test_fraction=0.0, image_size=16)
    many = of(tmp_path / "photos", test_fraction=0.0, image_size=16)
    assert torch.equal(one.images, many.images)
    assert one.plan == many.plan


def test_what_is_held_out_is_nobody_elses_and_more_images_move_none(tmp_path: Path) -> None:
    parts = {split: of(saved(tmp_path / "all.npy", PIXELS), split) for split in ("train", "test")}
    assert len(parts["train"]) + len(parts["test"]) == 60
    assert disjoint(parts["train"], parts["test"]) == 0
    fewer = of(saved(tmp_path / "few.npy", PIXELS[:50]), "test")
    names = [[Path(path).name.partition("[")[2] for path in one.paths or []] for one in (fewer, parts["test"])]
    assert names[0] == [name for name in names[1] if int(name[:-1]) < 50]


def test_the_splits_and_labels_of_a_medmnist_file_are_its_own(tmp_path: Path) -> None:
    file = medmnist(tmp_path / "tissue.npz")
    train, test = of(file), of(file, "test")
    assert (len(train), len(test)) == (40, 10)  # and not the ten that are val
    assert torch.equal(test.images, torch.from_numpy(PIXELS[50:]).permute(0, 3, 1, 2))
    assert train.classes == ["0", "1", "2"]
    assert train.labels is not None
    assert train.labels.tolist() == LABELS[:40].tolist()
    assert len(of(file, limit=7)) == 7
    np.savez(tmp_path / "plain.npz", x=PIXELS, y=np.array(["cat", "dog", ""])[LABELS])
    plain = of(tmp_path / "plain.npz", test_fraction=0.0)
    assert plain.classes == ["cat", "dog"]
    assert plain.labels is not None
    assert plain.labels[:3].tolist() == [0, 1, -1]


def test_labels_may_be_a_file_of_their_own_or_one_of_so_many(tmp_path: Path) -> None:
    file = saved(tmp_path / "cells.npy", PIXELS)
    assert of(file).labels is None
    for labels in (LABELS, LABELS.astype(np.float32), np.eye(3)[LABELS], LABELS[:, None]):
        found = of(file, labels=saved(tmp_path / "labels.npy", labels), test_fraction=0.0)
        assert found.labels is not None
        assert found.labels.tolist() == LABELS.tolist()
    assert of(file, labels=saved(tmp_path / "none.npy", LABELS - 1), test_fraction=0.0).classes == ["0", "1"]
    many = of(file, labels=saved(tmp_path / "many.npy", np.ones((60, 4))))
    assert many.labels is None
    assert any("several labels an image" in note for note in many.notes)
    heights = of(file, labels=saved(tmp_path / "heights.npy", LABELS / 7))
    assert any("measurements, not classes" in note for note in heights.notes)


def test_what_cannot_be_images_is_refused_in_a_line_that_says_why(tmp_path: Path) -> None:
    for array, why in (
        (PIXELS[0], "that of one image"),
        (np.zeros((4, 5)), "images are N x H x W"),
        (np.zeros((9, 70, 32, 70)), "at most 64 channels"),
        (np.array([["a"]]), "holds no numbers"),
        (PIXELS[:0], "images are N x H x W"),
    ):
        with pytest.raises(PrelaxError, match=why):
            of(saved(tmp_path / "odd.npy", array))
    (tmp_path / "torn.npy").write_bytes((saved(tmp_path / "whole.npy", PIXELS)).read_bytes()[:90])
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 and no more")
    saved(tmp_path / "objects.npy", np.array([{}, []], dtype=object))
    for name, shape in (("less.npy", "(-6, 4, 4, 3)"), ("vast.npy", f"({10**30}, 4, 4, 3)")):
        header = repr({"descr": "|u1", "fortran_order": False, "shape": "SHAPE"}).replace("'SHAPE'", shape)
        text = header.encode() + b" " * (117 - len(header)) + b"\n"
        (tmp_path / name).write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(300))
    for name in ("torn.npy", "torn.npz", "less.npy", "vast.npy"):
        with pytest.raises(PrelaxError, match=f"{name} cannot be read as a NumPy file"):
            of(tmp_path / name)
    with pytest.raises(PrelaxError, match=r"objects\.npy holds no numbers but object"):
        of(tmp_path / "objects.npy")
    whole = medmnist(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "flipped.npz").write_bytes(whole[:2000] + bytes(byte ^ 255 for byte in whole[2000:2400]) + whole[2400:])
    with pytest.raises(PrelaxError, match=r"flipped\.npz:train_images cannot be read"):
        of(tmp_path / "flipped.npz")
    np.savez(tmp_path / "other.npz", weights=PIXELS, bias=LABELS)
    with pytest.raises(PrelaxError, match=r"no array of images among weights .*train_images"):
        of(tmp_path / "other.npz")
    np.savez(tmp_path / "short.npz", images=PIXELS, labels=LABELS[:5])
    with pytest.raises(PrelaxError, match="no label for each of the 60 images"):
        of(tmp_path / "short.npz")
    np.savez(tmp_path / "test.npz", test_images=PIXELS)
    with pytest.raises(PrelaxError, match="no training images"):
        of(tmp_path / "test.npz")
    (tmp_path / "labels.csv").write_text("0,cat\n")
    with pytest.raises(PrelaxError, match=r"a \.npy file too"):
        of(tmp_path / "whole.npy", labels=tmp_path / "labels.csv")
    with pytest.raises(PrelaxError, match="are an array in it"):
        of(medmnist(tmp_path / "m.npz"), labels=tmp_path / "whole.npy")
    np.savez(tmp_path / "two.npz", images=PIXELS, x=PIXELS)
    with pytest.raises(PrelaxError, match="two arrays of train images"):
        of(tmp_path / "two.npz")


def test_hdf5_holds_images_and_labels_as_a_npz_does(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "galaxies.h5", "w") as file:  # as Galaxy10 has them
        file.create_dataset("images", data=PIXELS, chunks=(7, 32, 32, 3), compression="gzip")
        file["ans"], file["redshift"] = LABELS, LABELS / 7
    found = of(tmp_path / "galaxies.h5", test_fraction=0.0)
    assert torch.equal(found.images, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert found.labels is not None
    assert found.labels.tolist() == LABELS.tolist()
    with h5py.File(tmp_path / "x.h5", "w") as file, h5py.File(tmp_path / "y.h5", "w") as other:  # as PCam has them
        file["x"], other["y"] = PIXELS[:40], LABELS[:40].reshape(-1, 1, 1, 1)
    apart = of(tmp_path / "x.h5", labels=tmp_path / "y.h5", test_fraction=0.0)
    assert apart.labels is not None
    assert apart.labels.tolist() == LABELS[:40].tolist()
    with h5py.File(tmp_path / "groups.hdf5", "w") as file:
        file["train/images"], file["test/images"] = PIXELS[:40], PIXELS[40:]
        file["train/labels"] = ["cat", "dog", "eel", "cat"] * 10
        file["test/labels"] = ["dog"] * 20
    groups = of(tmp_path / "groups.hdf5", "test")
    assert (len(groups), groups.classes) == (20, ["cat", "dog", "eel"])
    assert groups.labels is not None
    assert set(groups.labels.tolist()) == {1}
    (tmp_path / "torn.h5").write_bytes((tmp_path / "galaxies.h5").read_bytes()[:3000])
    with pytest.raises(PrelaxError, match=r"torn\.h5 cannot be read as an HDF5 file"):
        of(tmp_path / "torn.h5")


def test_a_damaged_part_of_an_hdf5_file_is_told_in_a_line(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", data=PIXELS, chunks=(60, 32, 32, 3), compression="gzip")
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[:90_000] + bytes(4000) + whole[94_000:])
    with pytest.raises(PrelaxError, match=r"a\.h5:images cannot be read"):
        of(tmp_path / "a.h5")


def test_a_missing_file_is_called_a_file() -> None:
    with pytest.raises(PrelaxError, match=r"there is no file .*nowhere\.npz"):
        check(resolve("folder", ["data.root=nowhere.npz"]))


def test_another_file_may_hold_the_test_images(tmp_path: Path) -> None:
    file, other = saved(tmp_path / "a.npy", PIXELS[:40]), medmnist(tmp_path / "b.npz")
    assert len(of(file, "train", test_root=other)) == 40
    test = of(file, "test", test_root=other)
    assert (len(test), test.classes) == (10, ["0", "1", "2"])
    with pytest.raises(PrelaxError, match="no file of arrays"):
        of(file, "test", test_root=tmp_path)


def test_a_changed_file_is_decoded_anew(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.npy", PIXELS)
    before = of(file).images.clone()
    saved(file, 255 - PIXELS)
    assert torch.equal(of(file).images, 255 - before)


def test_names_tell_what_an_array_is() -> None:
    assert told("train_images") == ("train", "images")
    assert told("images-test") == ("test", "images")
    assert told("y_valid") == ("val", "labels")
    assert told("arr_0") == ("train", "images")
    assert told("train") == ("train", "images")
    assert told("train_weights") == ("train", "")
    assert not is_arrays(Path("nowhere.npz"))


def test_a_file_of_images_is_trained_on_measured_and_embedded_as_a_folder_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = medmnist(tmp_path / "tissue.npz"), tmp_path / "run"
    small = {
        "model.projector_hidden": 16,
        "model.projector_dim": 8,
        "model.predictor_hidden": 8,
        "train.batch_size": 20,
    }
    changes = [f"data.root={file}", "train.epochs=1", *(f"{key}={value}" for key, value in small.items())]
    run = pretrain(resolve("folder", changes), out, progress=False)
    assert run.trained_on()["images"] == 40
    assert main(["evaluate", str(out), "--protocol", "knn", "--json", "--quiet"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["dataset"], result["test_images"]) == ("tissue.npz", 10)
    other = saved(tmp_path / "other.npy", 255 - PIXELS)  # the same ones are told, and left out
    labels = saved(tmp_path / "words.npy", np.array(["a", "b"])[np.arange(60) % 2])
    assert main(["evaluate", str(out), "--on", str(other), "--protocol", "knn", "--quiet"]) == 2
    assert "--labels FILE.npy" in capsys.readouterr().err
    told = ["evaluate", str(out), "--on", str(other), "--labels", str(labels), "--protocol", "knn", "--quiet"]
    assert main(told) == 0
    assert main(["embed", str(out), "-o", str(tmp_path / "v.npz"), "--quiet"]) == 0
    vectors = np.load(tmp_path / "v.npz")
    assert len(vectors["embedding"]) == 50
    assert vectors["path"][0].endswith("tissue.npz:train_images[0]")
    assert Run.open(out).settings.data.root == file


def test_labels_that_cannot_be_taken_say_why(tmp_path: Path) -> None:
    images = default_rng(0).integers(0, 256, (60, 32, 32), dtype=np.uint8)
    file = saved(tmp_path / "set.npy", images)
    objects = np.array([f"c{label}" for label in LABELS], object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    with pytest.raises(PrelaxError, match=r"objects\.npy holds Python objects: save labels as words"):
        of(file, labels=tmp_path / "objects.npy")
    np.savez(tmp_path / "set.npz", images=images, labels=objects)
    with pytest.raises(PrelaxError, match=r"labels holds Python objects: save labels as words, labels\.astype\(str\)"):
        of(tmp_path / "set.npz")
    (tmp_path / "text.npy").write_text("not an array")
    with pytest.raises(PrelaxError, match=r"text\.npy cannot be read as a NumPy file: the magic string is not correct"):
        of(tmp_path / "text.npy")
    unknown = np.where(LABELS > 0, LABELS, np.nan)
    found = of(file, labels=saved(tmp_path / "unknown.npy", unknown))
    with pytest.raises(
        PrelaxError, match=r"to evaluate with: .* has measurements, not classes \(no label is -1, not NaN\)"
    ):
        labelled(found, "training")
