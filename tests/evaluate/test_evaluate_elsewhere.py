"""Results on other images than the run's own: which images, how they are split, and under what name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from prelax.cli import main
from prelax.cli.evaluating import dataset
from prelax.cli.transferring import targets
from prelax.config import DataSettings
from prelax.data import ImageSet
from prelax.data import load as load_data
from prelax.errors import PrelaxError
from prelax.evaluate import subject
from prelax.evaluate.labels import unseen_by_name
from prelax.evaluate.protocols import dataset as named
from prelax.evaluate.protocols import evaluate
from prelax.evaluate.subject import pretraining_names
from prelax.loading import load
from prelax.run import Run


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))


def digits_as_files(folder: Path, classes: int, split: str = "train", rows: range = range(150)) -> Path:
    images = load_data(DataSettings(), split)
    for row in rows:
        label = int(images.labels[row]) % classes
        path = folder / f"class{label}"
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - images.images[row, 0].numpy()).save(path / f"{row}.png")
    return folder


def trained_on(run: Run, path: Path, **data: object) -> Run:
    """The same backbone, as if it had been trained on a folder."""
    shutil.copytree(run.path, path)
    (path / "data.json").unlink()
    tree = yaml.safe_load((path / "config.yaml").read_text())
    tree["data"] |= {"source": "folder", "channels": 1, "image_size": 16} | {k: str(v) for k, v in data.items()}
    (path / "config.yaml").write_text(yaml.safe_dump(tree))
    return Run.open(path)


def test_two_folders_of_one_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    for name, classes in (("a", 2), ("b", 3)):
        digits_as_files(tmp_path / name / "photos", classes)
    table = tmp_path / "table.md"
    on = [word for name in "ab" for word in ("--on", str(tmp_path / name / "photos"))]
    assert main(["transfer", str(run.path), *on, "-p", "knn", "-o", str(table), "--device", "cpu", "--quiet"]) == 0
    found = {name: result["classes"] for name, result in run.evals().items()}
    assert found == {"knn-photos": 2, "knn-photos-2": 3}
    assert table.read_text().splitlines()[0] == "| run (trained on) | a/photos | b/photos |"
    evaluate(run, ["knn"], on=str(tmp_path / "b" / "photos"), device="cpu")
    assert len(run.evals()) == 2  # its own result is replaced, not the other's


def test_a_folder_with_an_equals_sign_is_one_folder_and_protocols_add_up(run: Run, tmp_path: Path) -> None:
    folder = digits_as_files(tmp_path / "a=b", 2)
    words = ["transfer", str(run.path), "--on", str(folder), "-p", "knn", "--device", "cpu", "--quiet"]
    assert main(words) == 0
    assert run.evals()["knn-a=b"]["classes"] == 2
    twice = ["-p", "knn", "-p", "logistic,retrieval"]
    assert main(["evaluate", str(run.path), *twice, "--device", "cpu", "--quiet"]) == 0
    assert {"knn", "logistic", "retrieval"} <= set(run.evals())


def test_another_runs_folder_is_split_and_labelled_as_that_run_has_it(run: Run, tmp_path: Path) -> None:
    first = trained_on(run, tmp_path / "first", root=tmp_path / "a", test_root=tmp_path / "a_test")
    second = trained_on(run, tmp_path / "second", root=tmp_path / "b", test_fraction=0.3, limit=7)
    seen = {one.root: one for one in targets(second, [first, second], [])}
    assert seen[tmp_path / "a"].test_root == tmp_path / "a_test"
    assert seen[tmp_path / "b"] == second.settings.data
    seen = {one.root: one for one in targets(first, [first, second], [])}
    assert (seen[tmp_path / "b"].test_root, seen[tmp_path / "b"].limit) == (None, None)
    assert seen[tmp_path / "b"].test_fraction == 0.3


def test_another_root_is_measured_on_its_own_test_images(run: Run, tmp_path: Path) -> None:
    digits_as_files(tmp_path / "a", 10)
    digits_as_files(tmp_path / "a_test", 10, "test", range(60))
    digits_as_files(tmp_path / "b", 2, rows=range(150, 300))
    own = trained_on(run, tmp_path / "own", root=tmp_path / "a", test_root=tmp_path / "a_test")
    other = dataset(own, None, tmp_path / "b")
    assert other is not None
    assert (other.root, other.test_root) == (tmp_path / "b", None)
    (result,) = evaluate(own, ["knn"], on=other, device="cpu")
    assert (result["classes"], result["dataset"], result["root"]) == (2, "b", str((tmp_path / "b").resolve()))
    assert result["accuracy"] > 40
    (result,) = evaluate(own, ["knn"], device="cpu")
    assert (result["test_images"], result["dataset"]) == (60, "a")
    kept = own.settings.data.model_copy(update={"cache": tmp_path / "roomy", "workers": 0})
    elsewhere = named(str(tmp_path / "b"), kept, 1)  # where there is room for pixels is no matter of whose
    assert elsewhere is not None
    assert (elsewhere.cache, elsewhere.workers, elsewhere.image_size) == (tmp_path / "roomy", 0, kept.image_size)
    with pytest.raises(PrelaxError, match="leave --root out"):
        dataset(own, str(tmp_path / "b"), tmp_path / "a")
    published = dataset(own, "cifar10", tmp_path / "a")  # beside the run's own images
    assert published is not None
    assert (published.source, published.root) == ("cifar10", tmp_path / "a")


def test_a_small_dataset_is_not_enlarged_before_the_backbone_sees_it(run: Run) -> None:
    found = dataset(run, "cifar10", Path("files"))
    assert found is not None
    assert (found.image_size, found.root) == (None, Path("files"))


def test_photos_that_two_published_sets_share_are_known_by_name(tmp_path: Path) -> None:
    names = ["train/n01440764/n01440764_10", "train/n01440764/n01440764_11", "val/x/ILSVRC2012_val_1"]
    for name in (f"{name}.JPEG" for name in names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    imagenet, nette = DataSettings(source="imagenet", root=tmp_path), DataSettings(source="imagenette")
    seen = pretraining_names(imagenet, nette)
    assert seen == {"n01440764_10", "n01440764_11"}
    assert pretraining_names(imagenet, imagenet) is None
    assert pretraining_names(nette, imagenet) is None  # its files are not here
    paths = [f"val/n01440764/{name}.JPEG" for name in ("n01440764_10", "ILSVRC2012_val_9", "ILSVRC2012_val_8")]
    test = ImageSet("imagenette", torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.zeros(3).long(), ["a"], paths)
    kept, dropped = unseen_by_name(test, seen)
    assert (dropped, kept.paths) == (1, paths[1:])
    with pytest.raises(PrelaxError, match="2 of the 3 test images"):
        unseen_by_name(test, {"n01440764_10", "ILSVRC2012_val_9"})


def test_a_backbone_of_imagenet_is_not_judged_by_imagenettes_photos_that_it_saw(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train" / "n0").mkdir(parents=True)
    for row in (2, 5, 999):
        (tmp_path / "train" / "n0" / f"n0_{row}.JPEG").touch()

    def nette(settings: DataSettings, split: str) -> ImageSet:
        images = load_data(DataSettings(), split)
        return replace(images, paths=[f"val/n0/n0_{row}.JPEG" for row in range(len(images))])

    monkeypatch.setattr(subject, "load", nette)
    loaded = load(run.path)
    imagenet = loaded.settings.model_copy(update={"data": DataSettings(source="imagenet", root=tmp_path)})
    judged = subject.subject(replace(loaded, settings=imagenet), DataSettings(source="imagenette"))
    assert judged.dropped == 2
    assert len(judged.test) == len(load_data(DataSettings(), "test")) - 2
    assert not {"val/n0/n0_2.JPEG", "val/n0/n0_5.JPEG"} & set(judged.test.paths)
