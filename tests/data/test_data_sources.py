"""Named sources: digits, CIFAR, and folders with a layout of their own."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import datasets

from prelax.config import DataSettings
from prelax.data import SOURCES, cifar, disjoint, load
from prelax.data.cache import cache_folder
from prelax.errors import PrelaxError


def test_digits_are_split_fifty_a_class_and_share_no_image():
    train, test = load(DataSettings(), "train"), load(DataSettings(), "test")
    assert (len(train), len(test)) == (1297, 500)
    assert test.labels.bincount().tolist() == [50] * 10
    assert train.classes == [str(i) for i in range(10)]
    assert disjoint(train, test) == 0


def test_digits_at_their_own_size_are_scikit_learns_pixels():
    both = [load(DataSettings(image_size=8), split) for split in ("train", "test")]
    found = {row.tobytes() for part in both for row in part.images.numpy()}
    expected = np.rint(datasets.load_digits().images * 255 / 16).astype(np.uint8)
    assert found == {row.tobytes() for row in expected}


def test_digits_take_three_channels_and_refuse_five():
    images = load(DataSettings(channels=3)).images
    assert images.shape == (1297, 3, 16, 16)
    assert torch.equal(images[:, 0], images[:, 2])
    with pytest.raises(PrelaxError, match=r"data\.channels=5"):
        load(DataSettings(channels=5))


def test_a_user_without_a_home_has_a_cache_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PRELAX_CACHE", raising=False)
    assert cache_folder(None) == Path("~/.cache/prelax").expanduser()
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does where there is none
    assert cache_folder(None) == Path(tempfile.gettempdir()) / f"prelax-{os.getuid()}"
    assert cache_folder(Path("/given")) == Path("/given")


def test_limit_takes_that_many_training_images_of_several_classes_and_leaves_the_test_set_whole():
    few = load(DataSettings(limit=40), "train")
    assert len(few) == len(few.labels) == 40
    assert len(few.labels.unique()) > 5
    assert len(load(DataSettings(limit=40), "test")) == 500


def test_an_unknown_source_is_answered_with_the_nearest():
    with pytest.raises(PrelaxError, match="did you mean cifar10"):
        load(DataSettings(source="cifar-10"))
    with pytest.raises(PrelaxError, match="no split"):
        load(DataSettings(), "dev")
    assert "digits" in SOURCES


# -- CIFAR -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files made as CIFAR's are, with fewer rows, and a description that has their md5."""
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def write(name: str, contents: dict[str, object]) -> tuple[str, str]:
        data = pickle.dumps(contents, protocol=4)
        (folder / name).write_bytes(data)
        return name, hashlib.md5(data).hexdigest()

    def batch(name: str, n: int) -> tuple[str, str]:
        pixels = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
        return write(name, {"data": pixels, "labels": rng.integers(0, 10, n).tolist()})

    meta, meta_md5 = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    kind = SimpleNamespace(
        base_folder=folder.name,
        url="https://example.org/cifar.tar.gz",
        filename="cifar.tar.gz",
        tgz_md5="",
        train_list=[batch("data_batch_1", 12), batch("data_batch_2", 8)],
        test_list=[batch("test_batch", 5)],
        meta={"filename": meta, "key": "label_names", "md5": meta_md5},
    )
    monkeypatch.setattr(cifar, "describe", {"cifar10": kind}.__getitem__)
    return tmp_path / "data"


def test_cifar_rows_come_in_order_as_channel_planes(little_cifar: Path):
    train = load(DataSettings(source="cifar10", root=little_cifar), "train")
    with (little_cifar / "cifar-10-batches-py" / "data_batch_1").open("rb") as handle:
        first = pickle.load(handle)
    assert train.images.shape == (20, 3, 32, 32)
    assert torch.equal(train.images[:12].flatten(1), torch.from_numpy(first["data"]))
    assert train.labels[:12].tolist() == first["labels"]
    assert train.classes[4] == "class 4"
    assert len(load(DataSettings(source="cifar10", root=little_cifar), "test")) == 5


def test_cifar_is_found_in_its_own_folder_and_in_one_named_after_it(little_cifar: Path):
    assert cifar.find("cifar10", little_cifar / "cifar-10-batches-py") == little_cifar / "cifar-10-batches-py"
    little_cifar.rename(little_cifar.parent / "cifar10")
    assert cifar.find("cifar10", little_cifar.parent) == little_cifar.parent / "cifar10" / "cifar-10-batches-py"


def test_cifar_is_fetched_once_by_processes_that_begin_together_and_again_when_half_of_it_is_missing(
    little_cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target, fetched = tmp_path / "elsewhere", []

    def fetch(url: str, root: str, **about: str) -> None:
        fetched.append(url)
        (target / "cifar-10-batches-py").mkdir(exist_ok=True)
        for file in sorted((little_cifar / "cifar-10-batches-py").iterdir()):
            (target / "cifar-10-batches-py" / file.name).write_bytes(b"half")
            time.sleep(0.02)
            shutil.copy(file, target / "cifar-10-batches-py")

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fetch)
    settings = DataSettings(source="cifar10", root=target, download=True)
    with ThreadPoolExecutor(2) as threads:
        assert [len(found) for found in threads.map(lambda _: load(settings, "test"), range(2))] == [5, 5]
    assert len(fetched) == 1
    (target / "cifar-10-batches-py" / "data_batch_2").unlink()
    assert len(load(settings, "test")) == 5
    assert len(fetched) == 2


def test_cifar_resizes_and_greys(little_cifar: Path):
    images = load(DataSettings(source="cifar10", root=little_cifar, image_size=24, channels=1)).images
    assert images.shape == (20, 1, 24, 24)
    assert images.dtype == torch.uint8


def test_a_changed_cifar_file_is_never_unpickled(little_cifar: Path, tmp_path: Path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    path = little_cifar / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps({"data": Bomb()}))
    with pytest.raises(PrelaxError, match="data_batch_2 is not the original file"):
        load(DataSettings(source="cifar10", root=little_cifar))
    with pytest.raises(pickle.UnpicklingError, match="touch"):  # even if the md5 agreed
        cifar._read(path, hashlib.md5(path.read_bytes()).hexdigest())
    assert not (tmp_path / "exploded").exists()


def test_missing_cifar_says_where_it_looked_and_what_to_do(tmp_path: Path):
    with pytest.raises(PrelaxError) as caught:
        load(DataSettings(source="cifar100", root=tmp_path))
    line = str(caught.value)
    assert "\n" not in line
    assert str(tmp_path) in line
    assert "data.download=true" in line


# -- folders with a layout of their own ------------------------------------------------------------------------------


def test_tiny_imagenet_reads_its_own_layout_at_32_px(tmp_path: Path, photo):
    root = tmp_path / "tiny-imagenet-200"
    for wnid in ("n01", "n02"):
        for i in range(3):
            photo(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (64, 64))
    (root / "test").mkdir()
    photo(root / "test" / "images" / "test_0.JPEG", (64, 64))
    for i in range(2):
        photo(root / "val" / "images" / f"val_{i}.JPEG", (64, 64))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbell tower\nn99\tother\n")
    settings = DataSettings(source="tiny-imagenet", root=tmp_path, cache=tmp_path / "cache", workers=0)
    train, test = load(settings, "train"), load(settings, "test")
    assert train.images.shape == (6, 3, 32, 32)
    assert train.classes == test.classes == ["goldfish", "bell tower"]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert test.labels.tolist() == [1, 0]


def test_imagenette_has_readable_classes_and_val_as_its_test_set(tmp_path: Path, photo):
    for tree in ("train", "val"):
        for wnid in ("n01440764", "n03888257"):
            photo(tmp_path / tree / wnid / f"{tree}.JPEG", (200, 160))
    settings = DataSettings(source="imagenette", root=tmp_path, cache=tmp_path / "cache", workers=0)
    test = load(settings, "test")
    assert test.classes == ["tench", "parachute"]
    assert test.images.shape == (2, 3, 160, 160)
    assert all("/val/" in path for path in test.paths)


def test_imagenet_without_its_files_says_what_to_do(tmp_path: Path):
    with pytest.raises(PrelaxError, match=r"no imagenet files: looked for train/"):
        load(DataSettings(source="imagenet", root=tmp_path))
    with pytest.raises(PrelaxError, match=r"data\.root is not set"):
        load(DataSettings(source="imagenet"))
