"""A preset at other strengths draws what was asked for, and otherwise what it drew before."""

from pathlib import Path

import pytest
import torch

from prelax.augment import PRESETS, Crop, Pipeline, adjust, preset, presets
from prelax.augment.adjust import ORDER
from prelax.cli import main
from prelax.config import resolve
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Record
from prelax.train import ViewMaker
from prelax.train.peers import transform_of
from prelax.train.views import plain_pipelines

ALL = {"area_from": 0.3, "area_to": 0.9, "colour": 0.5, "flip": 0.3, "grey": 0.3, "blur": 0.3, "solarise": 0.3}


def drawn(pipeline: Pipeline) -> Record:
    return pipeline.sample((4000, 3, 64, 64), Draws(0, 4000))


def test_nothing_asked_is_the_very_pipeline() -> None:
    pipeline = preset("simsiam-32")
    assert adjust(pipeline) is pipeline
    one, two = plain_pipelines(resolve("cifar10/simsiam", ["augment.grey=0.1"]), 3, 32)
    assert one is two


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_lacks_comes_where_presets_have_it(name: str) -> None:
    for pipeline in presets(name, size=8):
        ops = [op.name for op in adjust(pipeline, **ALL).ops]
        assert [op for op in ops if op in ORDER] == list(ORDER)
        assert [op for op in ops if op not in ORDER] == [op.name for op in pipeline.ops if op.name not in ORDER]


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_0_is_left_out(name: str) -> None:
    for pipeline in presets(name, size=8):
        ops = adjust(pipeline, colour=0.0, flip=0.0, grey=0.0, blur=0.0, solarise=0.0).ops
        assert not {op.name for op in ops} & {"jitter", "flip", "grey", "blur", "solarise"}
        assert {op.name for op in ops} >= {"crop", "normalise"}


def test_each_strength_is_what_is_drawn() -> None:
    record = drawn(adjust(preset("simsiam-32"), **ALL))
    for name in ("flip", "grey", "blur", "solarise"):
        assert record[f"{name}.applied"].float().mean() == pytest.approx(0.3, abs=0.03), name
    assert record["jitter.applied"].float().mean() == pytest.approx(0.8, abs=0.03)
    for name, most in (("brightness", 0.2), ("contrast", 0.2), ("saturation", 0.2)):
        assert 0.9 * most < (record[f"jitter.{name}"] - 1).abs().max() <= most + 1e-6, name
    assert 0.045 < record["jitter.hue"].abs().max() <= 0.05
    assert 0.28 < record["crop.area"].min() < 0.32  # of whole pixels
    assert 0.88 < record["crop.area"].max() < 0.92


def test_what_was_not_asked_for_is_drawn_as_before() -> None:
    """Draws go by name: another probability of grey moves no crop."""
    before, after = drawn(preset("simsiam-32")), drawn(adjust(preset("simsiam-32"), grey=0.6, blur=0.2))
    for name, column in before.items():
        if not name.startswith("grey"):
            assert torch.equal(after[name], column), name


def test_strengths_are_settings_of_a_run_and_of_its_small_crops_and_pretexts() -> None:
    changes = ["method.name=prelax-crops", "augment.area_from=0.6", "augment.flip=0", "augment.blur=0.5"]
    maker = ViewMaker(resolve("cifar10/prelax-all", changes), 3, 32, torch.device("cpu"))
    for pipeline in maker.pipelines.values():
        assert [op.name for op in pipeline.ops] == ["crop", "jitter", "grey", "blur", "normalise"]
        crop = pipeline.ops[0]
        assert isinstance(crop, Crop)
        assert crop.scale == (0.6, 1.0)
    names = {spec.name for spec in maker.specs}
    assert "blur.applied" in names
    assert "flip.applied" not in names


def test_a_probability_holds_in_both_views_of_byol() -> None:
    one, two = plain_pipelines(resolve("imagenette/byol", ["augment.blur=0.3"]), 3, 160)
    assert [op.p for view in (one, two) for op in view.ops if op.name == "blur"] == [0.3, 0.3]  # type: ignore[attr-defined]
    assert [op.p for view in (one, two) for op in view.ops if op.name == "solarise"] == [0.0, 0.2]  # type: ignore[attr-defined]


def test_peers_of_a_benchmark_are_given_the_same_strengths() -> None:
    views = transform_of("torchvision", resolve("cifar10/simsiam", ["augment.grey=0.1", "augment.area_from=0.5"]), 32)
    crop, *_ = views.one.transforms  # type: ignore[attr-defined]
    assert tuple(crop.scale) == (0.5, 1.0)
    assert [part.p for part in views.one.transforms if type(part).__name__ == "RandomGrayscale"] == [0.1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("recipe", "changes", "said"),
    [
        ("digits/simsiam", ["augment.grey=0.1"], "augment.grey is for colour images: these have 1 channel(s)"),
        ("digits/simsiam", ["augment.area_from=0.9", "augment.area_to=0.3"], "augment.area_from must not be above"),
        ("digits/simsiam", ["augment.area_to=0.3"], "crops would show from 0.4 to 0.3 of the image"),
        ("digits/simsiam", ["augment.colour=-1"], "augment.colour"),
        ("digits/simsiam", ["augment.gray=0.1"], "augment.grey"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_written(
    recipe: str, changes: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", recipe, *changes, "--out", str(tmp_path / "run")]) != 0
    error = capsys.readouterr().err.strip()
    assert said in " ".join(error.split())
    assert not (tmp_path / "run").exists()


def test_a_library_call_names_what_is_wrong_too() -> None:
    with pytest.raises(PrelaxError, match=r"from 0\.95 to 0\.5 of the image"):
        adjust(preset("simsiam-32"), area_from=0.95, area_to=0.5)


def test_a_run_is_trained_with_them_and_keeps_them(tmp_path: Path) -> None:
    small = ["model.projector_hidden=16", "model.projector_dim=16", "model.predictor_hidden=8", "model.head_hidden=8"]
    quick = [*small, "train.epochs=1", "train.batch_size=128", "data.limit=128"]
    asked = ["augment.flip=0.5", "augment.area_from=0.6"]
    assert main(["pretrain", "digits/prelax-std", *quick, *asked, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "flip: 0.5" in text
    assert "area_from: 0.6" in text
    assert main(["evaluate", str(tmp_path / "run"), "--protocol", "knn", "--quiet"]) == 0
