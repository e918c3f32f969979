"""Views of a user's own (augment.preset=MODULE:NAME) through a whole run: trained, kept, resumed, loaded, measured."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prelax.augment import Crop, Flip, Normalise, Pipeline, crops_of
from prelax.check import check
from prelax.cli import main
from prelax.config import Settings, resolve
from prelax.data import load_training
from prelax.errors import PrelaxError
from prelax.evaluate import evaluate
from prelax.evaluate.subject import probe_crops
from prelax.loading import load, save_hub
from prelax.objectives import METHODS, Method, Term, ViewSpec
from prelax.report import report
from prelax.run import Run
from prelax.train import pretrain
from prelax.train.engine import Engine
from prelax.train.peers import transform_of, views_side
from prelax.train.processes import Process
from prelax.train.views import ViewMaker

TINY = [
    "data.limit=64",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.epochs=2",
    "train.stop_on_collapse=false",
    "train.device=cpu",
    "train.watch=none",
]
MODULE = """
from prelax.augment import Blur, Crop, Flip, Maybe, Named, Normalise, Pipeline
from prelax.record import Target


class Fade:
    name = "fade"
    targets = (Target("fade.share", "continuous", mean=0.5, std=0.289),)

    def make_params(self, shape, draws):
        return {"share": draws.uniform("share", 0.0, 1.0)}

    def transform(self, images, params):
        return images * params["share"][:, None, None, None]


half = Normalise((0.5,), (0.25,))
ONE = Pipeline([Crop(20, scale=(0.4, 1.0)), Flip(), Fade(), half])
PAIR = Pipeline([Crop(20), half]), Pipeline([Crop(20, scale=(0.5, 1.0)), Fade(), half])
RIAP = PAIR[::-1]
UNCUT = Pipeline([Fade(), half])
SILENT = Pipeline([half])
ZOOM = Pipeline([Named(Crop(16, (0.6, 1.0), interpolation="bicubic"), "zoom"), Named(Flip(), "mirror"), half])
COLOURS = Pipeline([Crop(20), Normalise((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))])
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that one works in, with a module of one's own in it."""
    (tmp_path / "views_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("views_of_mine", None)


def forget(folder: Path) -> None:
    """The module is on this machine no more."""
    (folder / "views_of_mine.py").unlink()
    del sys.modules["views_of_mine"]
    importlib.invalidate_caches()


def tiny(name: str, *changes: str, recipe: str = "digits/prelax-all") -> Settings:
    return resolve(recipe, [*TINY, f"augment.preset=views_of_mine:{name}", *changes])


@pytest.mark.parametrize("name", ["ONE", "PAIR", "UNCUT"])
@pytest.mark.parametrize("method", ["prelax-all", "prelax-crops", "looc", "augself"])
def test_views_of_ones_own_train(name: str, method: str, mine: Path) -> None:
    settings = check(tiny(name, f"method.name={method}", "train.epochs=1"))
    run = pretrain(settings, mine / "run", progress=False)
    assert run.metrics()[0]["loss"] != 0
    assert load(run.path).size == (16 if name == "UNCUT" else 20)


@pytest.mark.parametrize("name", ["UNCUT", "ZOOM"])
def test_small_views_are_small_whatever_a_crop_is_called_and_where_there_is_none(name: str, mine: Path) -> None:
    maker = ViewMaker(tiny(name, "method.name=prelax-crops"), 1, 16, torch.device("cpu"))
    views = maker(torch.randint(256, (3, 1, 16, 16), dtype=torch.uint8), torch.arange(3), 1)
    assert views.images.shape == (6, 1, 16, 16)
    assert views.small is not None
    assert views.small.shape == (12, 1, 8, 8)


def test_what_is_said_of_crops_reaches_one_of_another_name_and_is_refused_where_there_is_none(mine: Path) -> None:
    maker = ViewMaker(tiny("ZOOM", "augment.area_from=0.9", "augment.size=12"), 1, 16, torch.device("cpu"))
    (crop,) = crops_of(maker.pipelines[1].ops)
    assert (crop.scale, crop.size) == ((0.9, 1.0), 12)
    for change, said in (("area_from=0.5", "how much a crop shows"), ("small_area_to=0.5", "how much a small crop")):
        with pytest.raises(PrelaxError, match=said):
            ViewMaker(tiny("UNCUT", f"augment.{change}", "method.name=prelax-crops"), 1, 16, torch.device("cpu"))


def test_a_probe_crops_and_mirrors_as_ones_own_views_do(mine: Path) -> None:
    zoom, uncut = (
        load(pretrain(tiny(name, "train.epochs=1"), mine / name, progress=False).path) for name in ("ZOOM", "UNCUT")
    )
    assert zoom.preprocess.interpolation == "bicubic"
    crop, flip, _ = probe_crops(zoom).ops
    assert (crop.scale, crop.interpolation, flip) == ((0.6, 1.0), "bicubic", Flip())
    crop, _ = probe_crops(uncut).ops
    assert (crop.scale, crop.ratio) == ((1.0, 1.0), (1.0, 1.0))  # the backbone has never seen a part of an image
    (result,) = evaluate(Run.open(mine / "UNCUT"), ["linear-fast"], device="cpu")
    assert result["settings"]["test_images_seen"] == "whole"


def test_a_pretext_asks_for_what_ones_own_augmentation_draws(mine: Path) -> None:
    settings = tiny("UNCUT", "method.name=prelax-std")
    engine = Engine(settings, load_training(settings.data), torch.device("cpu"), Process())
    assert [spec.name for spec in engine.objective.losses["pl"].specs] == ["fade.share"]


def test_a_run_goes_on_with_the_views_it_began_with_and_with_no_others(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pretrain(tiny("PAIR"), mine / "whole", progress=False)
    run = pretrain(tiny("PAIR"), mine / "run", progress=False, on_epoch=lambda line: True)
    module = sys.modules["views_of_mine"]
    with monkeypatch.context() as edited:
        edited.setattr(module, "PAIR", (module.PAIR[0], Pipeline([Crop(20), *module.PAIR[1].ops[1:]])))
        with pytest.raises(
            PrelaxError, match=r"views_of_mine:PAIR is not what .* view 2 was .*\(0\.5, 1\.0\)"
        ) as error:
            pretrain(tiny("PAIR"), run.path, resume=True, progress=False)
    assert "\n" not in str(error.value)
    ended, never = (r.load_backbone() for r in (pretrain(run.settings, run.path, resume=True, progress=False), whole))
    assert all(torch.equal(ended[name], never[name]) for name in never)


def test_a_run_is_loaded_and_passed_on_without_the_module(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretrain(tiny("ONE"), mine / "run", progress=False)
    images = torch.randint(256, (4, 1, 24, 24), dtype=torch.uint8)
    features = load(run.path)(images)
    about = json.loads((run.path / "data.json").read_text())
    assert about["preprocess"] == {"size": 20, "mean": [0.5], "std": [0.25], "interpolation": "bilinear"}
    with monkeypatch.context() as edited:  # what the backbone is shown stays what it was trained on
        edited.setattr(sys.modules["views_of_mine"], "ONE", Pipeline([Crop(12), Normalise((0.1,), (0.1,))]))
        assert torch.equal(load(run.path)(images), features)
    forget(mine)
    assert torch.equal(load(run.path)(images), features)
    assert torch.equal(load(save_hub(run, mine / "hub"))(images), features)
    assert main(["embed", str(run.path), "-o", "vectors.npz", "--device", "cpu", "--quiet"]) == 0
    for what in (lambda: evaluate(run, ["knn"], device="cpu"), lambda: pretrain(run.settings, run.path, resume=True)):
        with pytest.raises(PrelaxError, match=r"augment\.preset views_of_mine:ONE: No module named 'views_of_mine'"):
            what()


def test_a_run_is_measured_and_shown(mine: Path) -> None:
    run = pretrain(tiny("PAIR"), mine / "run", progress=False)
    (result,) = evaluate(run, ["knn"], device="cpu")
    assert result["accuracy"] > 10
    page = report([run.path], out=mine / "page.html", points=50, device="cpu").read_text()
    assert "fade" in page


def test_what_ones_own_augmentation_does_is_measured_by_either_name(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pretrain(tiny("ONE", "method.name=simsiam", "train.epochs=1"), mine / "run", progress=False)
    quick = ["--images", "40", "--draws", "1", "--device", "cpu", "--quiet", "--json"]
    assert main(["augmentations", str(run.path), *quick]) == 0
    told = {row["augmentation"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert told["fade"]["trained_with"]
    assert not told["rotation"]["trained_with"]
    assert main(["augmentations", str(run.path), "--operation", "views_of_mine:Fade", *quick]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"][1:]
    assert (row["augmentation"], row["trained_with"]) == ("views_of_mine:Fade", True)


def test_a_run_of_a_preset_of_ours_keeps_no_word_of_it(tmp_path: Path) -> None:
    run = pretrain(resolve("digits/simsiam", TINY), tmp_path / "run", progress=False)
    assert not run.trained_on().keys() & {"views", "preprocess"}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("NOWHERE", [], "has no attribute 'NOWHERE'"),
        ("half", [], "is of type Normalise; make it a prelax.augment.Pipeline"),
        ("SILENT", [], "draw nothing that has targets"),
        ("RIAP", ["method.std_tells=difference"], "view 2 of augment.preset=views_of_mine:RIAP draws no fade.share"),
        ("RIAP", ["method.name=augself"], "asks how two views differ"),
        ("UNCUT", ["augment.size=12"], "augment.size=12 is the side of a crop"),
        ("ONE", ["augment.area_from=0.8", "augment.area_to=0.5"], "augment.area_from must not be above"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_an_image_is_read(
    name: str, changes: list[str], said: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine / "photos").mkdir()  # it holds none: whoever looks at them first says so
    words = [f"data.root={mine / 'photos'}", f"data.cache={mine / 'cache'}", "method.std_tells=view", *changes]
    words += [f"augment.preset=views_of_mine:{name}", "--out", str(mine / "run")]
    assert main(["pretrain", "folder", *words]) == 2
    told = capsys.readouterr().err
    assert said in " ".join(told.split())
    assert told.count("\n") == 1


@pytest.mark.parametrize("name", ["SILENT", "RIAP"])
def test_what_a_method_does_not_ask_of_the_views_they_need_not_draw(name: str, mine: Path) -> None:
    check(tiny(name, recipe="digits/simsiam"))
    if name == "RIAP":  # the reading of one draw alone
        check(tiny(name, "method.std_tells=view"))


def test_views_for_other_channels_leave_the_folder_free(mine: Path) -> None:
    with pytest.raises(PrelaxError, match="3 means for 1 channels"):
        pretrain(tiny("COLOURS"), mine / "run", progress=False)
    pretrain(tiny("ONE"), mine / "run", progress=False)


def test_a_folder_chooses_no_size_where_the_preset_says_it(mine: Path) -> None:
    (mine / "photos").mkdir()
    for n, image in enumerate(np.random.default_rng(0).integers(0, 256, (12, 48, 48, 3), dtype=np.uint8)):
        Image.fromarray(image).save(mine / "photos" / f"{n}.png")
    words = [f"data.root={mine / 'photos'}", f"data.cache={mine / 'cache'}", "data.test_fraction=0", "train.epochs=1"]
    words += ["augment.preset=views_of_mine:ONE", "train.device=cpu", "model.backbone=resnet8"]
    said: list[str] = []
    run = pretrain(resolve("folder", words), mine / "run", progress=False, say=said.append)
    assert run.settings.augment.size is None
    assert load(run.path).size == 20
    assert not any("views of" in line for line in said)
    assert pretrain(resolve("folder", words), run.path, resume=True, progress=False).settings == run.settings
    sized = pretrain(resolve("folder", [*words, "augment.size=16"]), mine / "sized", progress=False)
    assert load(sized.path).size == 16


def test_a_peer_is_given_all_of_a_preset_or_left_out(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = resolve("cifar10/simsiam", ["augment.preset=views_of_mine:COLOURS"])
    assert views_side(settings) == 20
    image = Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8))
    assert transform_of("torchvision", settings, 20)(image)[0].shape == (3, 20, 20)
    other = resolve("cifar10/simsiam", ["augment.preset=views_of_mine:ONE"])
    with pytest.raises(PrelaxError, match=r"torchvision is not given fade, which augment\.preset=views_of_mine:ONE"):
        transform_of("torchvision", other, 20)
    quick = ["--seconds", "0.05", "train.batch_size=4", "model.backbone=resnet8", "train.device=cpu"]
    assert main(["bench", "train", "cifar10/simsiam", "augment.preset=views_of_mine:ONE", *quick]) == 0
    told = capsys.readouterr()
    assert "left out: torchvision is not given fade" in " ".join((told.out + told.err).split())


def test_augmentations_of_ones_own_are_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "augmentations", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["kind"], row["name"]) for row in rows} > {("preset", "MODULE:NAME"), ("operation", "MODULE:CLASS")}


def test_a_record_that_was_written_before_or_by_hand_stops_no_run(mine: Path) -> None:
    run = pretrain(tiny("ONE"), mine / "run", progress=False)
    for views in ({}, {"views": "once upon a time"}, {"views": None}):
        about = {key: value for key, value in run.trained_on().items() if key != "views"} | views
        (run.path / "data.json").write_text(json.dumps(about))
        assert pretrain(Run.open(run.path).settings, run.path, resume=True, progress=False).metrics()


def test_what_a_method_of_ones_own_asks_of_view_2_it_has_to_draw(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = (Term("sim", "sim", (1, 2)), Term("sim", "sim", (2, 1)), Term("pl", "pl", (2, 1), coefficient="gamma"))
    monkeypatch.setitem(METHODS, "both", Method("", "", (ViewSpec(1), ViewSpec(2)), pair))
    with pytest.raises(PrelaxError, match=r"both asks how view 2 was made, and view 2 of .*:RIAP draws no fade\.share"):
        check(tiny("RIAP", "method.name=both"))
    check(tiny("ONE", "method.name=both"))
