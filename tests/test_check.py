"""What is told before any work starts: asked for, and of no effect."""

from pathlib import Path

import pytest

from prelax.check import check, remarks
from prelax.cli import main
from prelax.cli.relaxing import command
from prelax.config import resolve


def test_what_a_method_does_not_read_is_told_and_what_a_recipe_sets_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["method.alpha=0.5", "method.gamma2=0.2", "augment.small_size=8"]
    assert main(["pretrain", "digits/prelax-rot", *words, "method.name=prelax-crops", "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert "prelax: method.alpha changes nothing: prelax-crops does not read it" in told
    assert told.count("changes nothing") == 1
    assert main(["pretrain", "digits/prelax-rot", "method.name=simsiam", *words[1:], "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert "method.gamma2 changes nothing" in told
    assert "augment.small_size changes nothing" in told
    assert main(["pretrain", "cifar10/prelax-all-tuned", "method.name=simsiam", "--dry-run"]) == 0
    assert "changes nothing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.backbone=timm:no_such_net"], "timm has no model 'no_such_net'"),
        (["model.backbone=nowhere:Net"], "No module named 'nowhere'"),
        (["method.std_anchor=none"], "method.std_tells=difference asks of two views"),
        (["method.asks=jiter"], "no 'jiter' is drawn; did you mean jitter?"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_an_image_is_read(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()  # it holds none: whoever looks at them first says so
    words = [f"data.root={tmp_path / 'photos'}", f"data.cache={tmp_path / 'cache'}", *words]
    assert main(["pretrain", "folder", *words, "--out", str(tmp_path / "run")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_grey_folder_may_be_asked_for_what_grey_images_have() -> None:
    check(resolve("folder", ["data.root=.", "augment.preset=medical", "method.asks=noise"]))
    check(resolve("digits/simsiam", ["method.asks=nothing"]))  # which asks nothing, and says so


def test_how_far_a_matrix_turns_is_muons_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "cifar10/simsiam", "train.turn=0.1", "--dry-run"]) == 0
    assert "prelax: train.turn changes nothing: it is Muon's (train.optimizer=muon)" in capsys.readouterr().err
    assert main(["pretrain", "cifar10/simsiam", "train.turn=0.1", "train.optimizer=muon", "--dry-run"]) == 0
    assert "changes nothing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "scrambled"),
    [
        ([], True),
        (["method.relax=jigsaw"], False),
        (["method.pl_anchor=same"], False),
        (["method.name=simsiam-rotation-aug"], False),
        (["method.name=essl", "method.pl_anchor=same"], True),
    ],
)
def test_an_angle_that_the_preset_scrambles_is_told(
    words: list[str], scrambled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ["pretrain", "cifar10/prelax-all-tuned", "augment.preset=satellite", *words, "--dry-run"]
    assert main(recipe) == 0
    assert ("turns every view at random" in capsys.readouterr().err) is scrambled


def test_a_mirroring_that_the_preset_scrambles_is_told() -> None:
    def told(*changes: str) -> list[str]:
        return remarks(resolve("folder", ["method.name=prelax-all", *changes]), [])

    (line,) = told("method.relax=flip")
    assert "mirrors every view at random" in line
    assert "take method.pl_anchor=same" in line
    assert not told("method.relax=flip", "method.pl_anchor=same")
    assert not told("method.relax=vertical-flip")
    assert told("method.relax=vertical-flip", "augment.preset=satellite")


def test_what_is_proposed_to_be_relaxed_can_be_told() -> None:
    settings = resolve("folder", ["data.root=photos"])
    assert command(settings, None, "flip").endswith("method.relax=flip method.pl_anchor=same")
    assert command(settings, None, "crop").endswith("method.relax=crop")


@pytest.mark.parametrize(
    ("recipe", "words", "said"),
    [
        ("digits/simsiam", ["method.name=looc"], "looc keeps jitter and grey in a space of its own"),
        ("cifar10/looc", [], None),
        ("cifar10/looc", ["augment.colour=0", "augment.grey=0"], "learns nothing"),
        ("folder", ["model.backbone=timm:vit_tiny_patch16_224"], "train.optimizer=adamw is the usual"),
        ("folder", [], None),
        ("cifar10/simsiam", ["model.backbone=timm:vit_tiny_patch16_224"], None),
    ],
)
def test_what_does_not_suit_the_views_or_the_network_is_told(recipe: str, words: list[str], said: str | None) -> None:
    told = remarks(resolve(recipe, words), [])
    assert said in " ".join(told) if said else not told
