"""Exported backbones, loaded back by the libraries they are for: the features are the same."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from prelax.cli import main
from prelax.config import DataSettings, resolve
from prelax.errors import PrelaxError
from prelax.evaluate.embed import embed
from prelax.export import export
from prelax.loading import load
from prelax.names import FORMATS
from prelax.nets import backbone
from prelax.run import Run


def make_run(folder: Path, name: str, stem: str, size: int, channels: int = 3, stored: int | None = None) -> Path:
    """A run whose backbone has random weights and BatchNorms that have seen something."""
    source = "digits" if channels == 1 else "cifar10"
    changes = [f"model.backbone={name}", f"model.stem={stem}", f"data.source={source}", f"augment.size={size}"]
    run = Run.create(
        folder, resolve("digits/simsiam", [*changes, f"data.channels={channels}", f"data.image_size={stored or size}"])
    )
    torch.manual_seed(0)
    net = backbone(name, stem, channels, size).train()
    with torch.no_grad():
        net(torch.randn(8, channels, size, size))
    run.save_backbone(net.state_dict())
    return run.path


def images(channels: int, size: int, count: int = 5) -> torch.Tensor:
    return torch.randint(
        256, (count, channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


CASES = [
    ("resnet18", "small", 32, 3),
    ("resnet18", "imagenet", 64, 3),
    ("resnet50", "small", 32, 3),
    ("resnet18", "imagenet", 64, 1),
]


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(("name", "stem", "size", "channels"), CASES)
def test_the_library_gives_our_features(
    library: str, name: str, stem: str, size: int, channels: int, tmp_path: Path
) -> None:
    if library == "timm":
        pytest.importorskip("timm")
    run = make_run(tmp_path / "run", name, stem, size, channels)
    folder = export(run, library)
    built = runpy.run_path(str(folder / "load.py"))
    assert library in type(built["net"]).__module__
    loaded, pixels = load(run), images(channels, size)
    with torch.no_grad():
        theirs = built["net"](loaded.preprocess(pixels))
    torch.testing.assert_close(theirs, loaded(pixels), rtol=1e-4, atol=1e-5)
    assert (built["SIZE"], built["MEAN"]) == (size, loaded.preprocess.mean)


def test_a_timm_backbone_goes_back_to_timm(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    run = make_run(tmp_path / "run", "timm:resnet10t", "auto", 32)
    built = runpy.run_path(str(export(run, "timm") / "load.py"))
    loaded, pixels = load(run), images(3, 32)
    with torch.no_grad():
        theirs = built["net"](loaded.preprocess(pixels))
    torch.testing.assert_close(theirs, loaded(pixels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "stem", "size", "channels"), [("resnet8", "auto", 16, 1), ("resnet18", "small", 32, 3)]
)
def test_onnx_gives_our_features_for_any_batch(name: str, stem: str, size: int, channels: int, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = make_run(tmp_path / "run", name, stem, size, channels)
    folder = export(run, "onnx")
    session = onnxruntime.InferenceSession(folder / "backbone.onnx", providers=["CPUExecutionProvider"])
    loaded = load(run)
    for count in (1, 2, 7):
        pixels = images(channels, size, count)
        (theirs,) = session.run(["features"], {"images": (pixels.float() / 255).numpy()})
        np.testing.assert_allclose(theirs, loaded(pixels).numpy(), rtol=1e-3, atol=1e-4)


def test_torch_export_gives_our_features_for_any_batch(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    program = torch.export.load(export(run, "torch-export") / "backbone.pt2").module()
    loaded = load(run)
    for count in (1, 2, 7):
        pixels = images(1, 16, count)
        torch.testing.assert_close(program(pixels.float() / 255), loaded(pixels), rtol=1e-4, atol=1e-5)


def test_the_hub_folder_loads_as_a_run_does(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    folder = export(run, "hub", tmp_path / "hub")
    pixels = images(1, 16)
    torch.testing.assert_close(load(folder)(pixels), load(run)(pixels))


def test_the_description_says_what_goes_in_and_comes_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    said = json.loads((export(run, "torch-export") / "backbone.json").read_text())
    assert said["input"]["shape"] == ["batch", 1, 16, 16]
    assert said["features"] == 64
    assert said.keys() & {"mean", "std"} == set()  # nobody is to normalise twice
    assert said["normalise_inside"].keys() == {"mean", "std"}
    said = json.loads(
        (export(make_run(tmp_path / "r18", "resnet18", "small", 32), "torchvision") / "backbone.json").read_text()
    )
    assert {"mean", "std"} <= said.keys()


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_the_lines_that_load_a_graph_run_without_prelax(to: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    lines = runpy.run_path(str(export(run, to) / "load.py"))
    assert lines["SIZE"] == 16
    pixels = images(1, 16)
    given = pixels.float() / 255
    found = lines["net"].run(None, {"images": given.numpy()})[0] if to == "onnx" else lines["net"](given)
    torch.testing.assert_close(torch.as_tensor(found), load(run)(pixels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (32, "the central square, resized to 32 px: bilinear, antialiased"),
        (
            48,
            "the central square, resized to 48 px: bilinear, antialiased; of that the central 42 px, "
            "resized to 32 px: bilinear, antialiased",
        ),
        (36, "the central square, resized to 36 px: bilinear, antialiased; of that the central 32 px"),
        (
            24,
            "the central square, resized to 24 px: bilinear, antialiased; then resized to 32 px: bilinear, antialiased",
        ),
    ],
)
def test_who_does_what_the_description_says_to_a_file_has_the_vectors_of_embed(
    stored: int, words: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", "resnet8", "small", 32, stored=stored)
    folder = export(run, "torch-export")
    assert json.loads((folder / "backbone.json").read_text())["images"] == words
    pixels = torch.randint(256, (3, 16, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    large = v2.functional.resize(pixels, [64, 80])
    (tmp_path / "files").mkdir()
    v2.functional.to_pil_image(large).save(tmp_path / "files" / "one.png")
    on = DataSettings(source="folder", root=tmp_path / "files", image_size=stored, channels=3, cache=tmp_path / "cache")
    embed(load(run), on, tmp_path / "one.npz", split="train")
    seen = large[None]
    for step in words.split("; "):
        sides = [int(side) for side in re.findall(r"(\d+) px", step)]
        if "central" in step:
            seen = v2.functional.center_crop(seen, [64 if "square" in step else sides.pop(0)] * 2)
        for side in sides:
            seen = v2.functional.resize(seen, [side, side], antialias=True)
    program = torch.export.load(folder / "backbone.pt2").module()
    theirs, ours = program(seen.float() / 255), torch.from_numpy(np.load(tmp_path / "one.npz")["embedding"])
    torch.testing.assert_close(theirs, ours, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(load(run)(large[None]), ours, rtol=1e-2, atol=1e-2)  # and so has who loads the run


def test_the_description_stands_in_the_lines_that_load(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "resnet18", "small", 32)
    said = json.loads((export(run, "torchvision") / "backbone.json").read_text())["images"]
    assert said in (run / "export" / "torchvision" / "load.py").read_text()


def test_a_backbone_the_library_does_not_have_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    for library in ("torchvision", "timm"):
        with pytest.raises(PrelaxError, match=f"resnet8 is not one of {library}'s"):
            export(run, library)
    assert not (run / "export").exists()


def test_an_unknown_format_or_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    assert main(["export", str(run), "--to", "onx"]) == 2
    assert "did you mean onnx?" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "no"), "--to", "onnx"]) == 2
    assert "onnx" in FORMATS


def test_the_command_prints_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", "resnet8", "auto", 16, 1)
    assert main(["export", str(run), "--to", "torch-export", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {Path(file).name for file in files} == {"backbone.json", "backbone.pt2", "load.py"}
