"""`prelax augmentations` and `prelax figure` on a real run of the digits, and how tables round."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.cli.evaluating import line
from prelax.cli.speech import cell
from prelax.report import sections

SMALL = ["model.projector_hidden=32", "model.projector_dim=32", "model.predictor_hidden=16", "model.head_hidden=16"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "run"
    words = ["pretrain", "digits/prelax-rot", *SMALL, "train.epochs=3", "train.knn_every=1", "--out", str(folder)]
    assert main([*words, "--quiet"]) == 0
    return folder


def test_augmentations_ranks_what_to_relax_and_draws_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["augmentations", str(run), "--draws", "2", "--images", "200", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    names = [row["augmentation"] for row in result["candidates"]]
    assert {"crop", "rotation", "noise", "jigsaw", "erase"} <= set(names)
    assert not {"jitter", "grey", "none"} & set(names)
    told = {row["augmentation"]: row for row in result["candidates"]}
    assert told["rotation"]["drop"] > told["noise"]["drop"]
    assert told["rotation"]["relaxed"]
    assert names.index("rotation") < names.index("noise")
    assert result["test_images"] == 200
    assert (run / "augmentations.png").is_file()
    assert json.loads((run / "eval" / "augmentations.json").read_text())["rows"] == result["rows"]


def test_augmentations_says_why_in_a_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["augmentations", str(run), "--operation", "flip", "--operation", "noise", "--draws", "1"]
    assert main([*words, "-o", str(tmp_path / "two.png")]) == 0
    said = capsys.readouterr().out
    assert "points and moves an image" in said
    assert "  prelax pretrain digits/prelax-rot method.relax=flip\n" in said
    assert (tmp_path / "two.svg").is_file()
    assert main(["augmentations", str(run), "--operation", "rotate"]) == 2
    assert main(["augmentations", str(run), "--operation", "grey"]) == 2
    assert "RGB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "pairs", "expected"),
    [
        (
            "folder",
            ["data.root=my photos", "data.labels=a.csv"],
            "folder 'data.root=my photos' data.labels=a.csv method.name=prelax-all",
        ),
        ("digits/prelax-all", ["train.epochs=3", "data.workers=2"], "digits/prelax-all"),
        ("cifar10/simsiam", ["data.root=/d"], "cifar10/simsiam data.root=/d method.name=prelax-all"),
    ],
)
def test_what_is_to_be_relaxed_comes_with_a_command_to_paste(recipe: str, pairs: list[str], expected: str) -> None:
    from prelax.cli.relaxing import command
    from prelax.config import resolve

    said = command(resolve(recipe, pairs), None, "crop")
    assert said == f"prelax pretrain {expected} method.relax=crop"
    _, _, name, *changes = shlex.split(said)
    again = resolve(name, changes)
    assert (again.method.name, again.method.relax) == ("prelax-all", "crop")


def test_the_command_trains_on_the_images_that_were_asked_about() -> None:
    from prelax.cli.relaxing import command
    from prelax.config import DataSettings, Settings, resolve

    photos = DataSettings(source="folder", root=Path("photos"), image_size=16, channels=1)
    said = command(resolve("digits/prelax-rot"), photos, "crop")
    assert said == "prelax pretrain folder data.root=photos method.name=prelax-all method.relax=crop"
    made_without_a_recipe = Settings(data=DataSettings(source="imagenette", root=Path("/d")))
    said = command(made_without_a_recipe, None, "crop")
    assert said == "prelax pretrain imagenette/byol-prelax-all data.root=/d method.relax=crop"


def test_augmentations_of_a_folder_without_labels_says_how_far_images_move(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from prelax.config import DataSettings
    from prelax.data import load

    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pictures").mkdir()
    for number, image in enumerate(load(DataSettings(), "test").images[:30]):
        Image.fromarray(image[0].numpy()).resize((24, 20)).save(tmp_path / "pictures" / f"{number}.png")
    words = ["augmentations", str(run), "--on", str(tmp_path / "pictures"), "--draws", "1"]
    assert main([*words, "-o", str(tmp_path / "own.png"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert all(row["accuracy"] is None for row in result["rows"])
    assert all(row["moved"] > 0 for row in result["candidates"])


@pytest.mark.parametrize("name", ["dynamics", "tsne", "retrieval", "augmentations", "residual-probe"])
def test_every_figure_of_a_run_is_drawn_by_name(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "augmentations":
        assert main(["augmentations", str(run), "--operation", "rotation", "--draws", "1", "--quiet"]) == 0
    if name == "residual-probe":
        targets = {"rotation.turns": {"accuracy": 93.0, "floor": 25.0}}
        (run / "eval").mkdir(exist_ok=True)
        (run / "eval" / "residual.json").write_text(json.dumps({"protocol": "residual", "targets": targets}))
    capsys.readouterr()
    words = ["figure", name, str(run), "-o", str(tmp_path / name), "--points", "60", "--json"]
    assert main(words) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files == [str(tmp_path / f"{name}.png"), str(tmp_path / f"{name}.svg")]
    assert all(Path(path).stat().st_size > 1000 for path in files)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sensitivity", [{"coefficient": "alpha", "value": v, "accuracy": 90 + v} for v in (0, 1)]),
        ("reverse", [{"loss": "R2S", "normal": 92.2, "reverse": 92.5}]),
        ("augmentations", [{"augmentation": "none", "accuracy": 90}, {"augmentation": "flip", "accuracy": 80}]),
    ],
)
def test_a_figure_of_many_runs_is_drawn_from_rows(name: str, rows: list[dict], tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert main(["figure", name, str(tmp_path / "rows.json"), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / f"{name}.png").is_file()


def test_a_figure_that_does_not_exist_or_cannot_be_drawn_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", "dynamcs", str(run), "-o", str(tmp_path / "x")]) == 2
    assert "did you mean dynamics" in capsys.readouterr().err
    assert main(["figure", "sensitivity", str(run), "-o", str(tmp_path / "x")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert main(["list", "figures", "--json"]) == 0
    assert "tsne" in {row["figure"] for row in json.loads(capsys.readouterr().out)}


def test_a_figure_is_rounded_once_as_the_page_rounds_it() -> None:
    figures = {"accuracy": 30.9524, "std": 8.1497, "floor": 0.3561}  # by way of two digits: 30.9, 8.2
    row = line({"protocol": "linear", "dataset": "x", "seeds": [0, 1], "test_images": 42, "seconds": 1.0, **figures})
    shown = [cell(row[name]) for name in ("accuracy %", "std", "random weights %")]
    assert shown == [sections.number(value) for value in figures.values()] == ["31.0", "8.1", "0.36"]
