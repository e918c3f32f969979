from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from prelax.config import DataSettings
from prelax.data import load as load_data
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.evaluate import embed
from prelax.loading import load


@pytest.fixture(scope="module")
def loaded(trained):
    return load(trained.path)


def test_parquet_holds_a_row_an_image_with_path_label_and_vector(loaded, tmp_path):
    told = embed(loaded, DataSettings(), tmp_path / "digits.parquet", thumbnails=True)
    digits = load_data(DataSettings(), "test")
    table = pd.read_parquet(tmp_path / "digits.parquet")
    assert told["images"] == len(table) == len(digits)
    assert table["label"].tolist() == [digits.classes[i] for i in digits.labels]
    np.testing.assert_allclose(np.stack(table["embedding"])[:9], loaded(digits.images[:9]), rtol=1e-4, atol=1e-5)
    assert table["path"].is_unique
    picture = Image.open(io.BytesIO(table["image"][4]["bytes"]))
    np.testing.assert_array_equal(np.array(picture), digits.images[4, 0])


def test_npz_holds_the_same_as_arrays(loaded, tmp_path):
    embed(loaded, DataSettings(), tmp_path / "digits.npz", split="all")
    arrays = np.load(tmp_path / "digits.npz")
    assert arrays["embedding"].shape == (1797, 64)
    assert arrays["embedding"].dtype == np.float32
    assert (arrays["split"] == "test").sum() == 500
    assert arrays["label"][0] == str(arrays["label_id"][0])


def test_csv_has_a_column_a_number_for_those_who_use_r_or_a_spreadsheet(loaded, tmp_path):
    embed(loaded, DataSettings(), tmp_path / "digits.csv")
    table = pd.read_csv(tmp_path / "digits.csv")
    digits = load_data(DataSettings(), "test")
    assert list(table)[:5] == ["path", "label", "label_id", "split", "embedding_0"]
    assert table["label_id"].tolist() == digits.labels.tolist()
    vectors = table.filter(like="embedding_").to_numpy()
    np.testing.assert_allclose(vectors[:9], loaded(digits.images[:9]), rtol=1e-4, atol=1e-5)


def test_files_of_a_folder_keep_their_paths_and_unknown_labels_are_empty(loaded, tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(6):
        Image.new("L", (20, 24), i * 30).save(tmp_path / "photos" / f"p{i}.png")
    data = DataSettings(source="folder", root=tmp_path / "photos", image_size=16, channels=1, test_fraction=0.0,
                        cache=tmp_path / "cache")  # fmt: skip
    embed(loaded, data, tmp_path / "photos.parquet", split="train")
    table = pd.read_parquet(tmp_path / "photos.parquet")
    assert [path.rsplit("/", 1)[-1] for path in table["path"]] == [f"p{i}.png" for i in range(6)]
    assert table["label"].isna().all()


def test_images_that_the_run_never_saw_are_of_no_split_unless_their_folder_has_its_own(loaded, tmp_path, monkeypatch):
    for name in ("others/a.png", "others/b.png", "parted/train/a.png", "parted/test/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), ord(name[-5]) % 250).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for name, splits in (("others", ["", ""]), ("parted", ["train", "test"])):
        data = DataSettings(source="folder", root=Path(name), image_size=16, channels=1, cache=tmp_path / "cache")
        embed(loaded, data, tmp_path / "v.npz", split="all")
        table = np.load(tmp_path / "v.npz")
        assert table["split"].tolist() == splits
        assert {Path(path).parts[0] for path in table["path"]} == {"/"}  # they open from any folder


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_a_path_opens_its_file_whatever_the_name_unless_it_is_no_text(loaded, tmp_path, ending):
    root = tmp_path / "new\nroot"
    odd = ["a\nb.png", "3.04\u202fPM.png", "tab\t.png", "back\\slash.png", "plain.png", "a\tfolder/ü.png"]
    for number, name in enumerate(odd):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), number * 30).save(root / name)
    os.mkdir(os.fsencode(root) + b"/\xfe")
    shutil.copy(root / "plain.png", os.fsencode(root) + b"/\xfe/\xff.png")
    data = DataSettings(source="folder", root=root, image_size=16, channels=1, test_fraction=0.0, cache=tmp_path)
    out = tmp_path / f"photos.{ending}"
    embed(loaded, data, out, split="all")
    paths = pd.read_parquet(out)["path"].tolist() if ending == "parquet" else np.load(out)["path"].tolist()
    there = [path for path in paths if os.path.isfile(path)]
    assert sorted(there) == sorted(str(root / name) for name in odd)
    assert [path for path in paths if path not in there] == [f"{tmp_path}/new\\nroot/\\xfe/\\xff.png"]
    labels = pd.read_parquet(out)["label"] if ending == "parquet" else np.load(out)["label"]
    assert {"a\tfolder", "\\xfe"} <= set(labels)


def test_files_that_cannot_be_read_have_no_row_and_are_told(loaded, tmp_path):
    for number in range(4):
        Image.new("L", (16, 16), number * 30).save(tmp_path / f"{number}.png")
    for name in ("empty.png", "hollow.png"):
        (tmp_path / name).write_bytes(b"")
    data = DataSettings(source="folder", root=tmp_path, image_size=16, channels=1, cache=tmp_path / "cache")
    with pytest.warns(PrelaxWarning, match=r"2 files cannot be read and have no vector; .*empty\.png \(empty file\)"):
        embed(loaded, data, tmp_path / "rows.npz", split="all")
    assert len(np.load(tmp_path / "rows.npz")["path"]) == 4


def test_another_ending_or_split_is_refused_before_any_work(loaded, tmp_path):
    with pytest.raises(PrelaxError, match="must end in"):
        embed(loaded, DataSettings(), tmp_path / "digits.txt")
    with pytest.raises(PrelaxError, match="valid: train, test, all"):
        embed(loaded, DataSettings(), tmp_path / "digits.npz", split="val")
    with pytest.raises(PrelaxError, match="parquet"):
        embed(loaded, DataSettings(), tmp_path / "digits.npz", thumbnails=True)


def test_without_pyarrow_the_extra_is_named(loaded, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PrelaxError, match=r"prelax\[tables\]"):
        embed(loaded, DataSettings(), tmp_path / "digits.parquet")


def test_features_that_stayed_on_the_gpu_are_written_too(loaded, tmp_path, monkeypatch):
    class OnGpu:
        """Like a tensor on a GPU: what a process without rows of its own gets from the others."""

        def cpu(self):
            return torch.ones(500, 64)

        def numpy(self):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(sys.modules["prelax.evaluate.embed"], "extract", lambda *args, **options: OnGpu())
    assert embed(loaded, DataSettings(), tmp_path / "digits.npz")["features"] == 64
