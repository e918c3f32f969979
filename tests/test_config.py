"""Settings: what is refused, what the refusal says, and how recipes and changes come together."""

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from prelax.config import (
    Settings,
    keys,
    merge,
    nearest,
    overrides,
    parse,
    read_recipe,
    recipe_line,
    recipe_names,
    resolve,
    to_yaml,
    validate,
)
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.loading import views_of


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_says_what_it_is(name: str) -> None:
    settings = resolve(name)
    assert settings.recipe == name
    assert recipe_line(name).endswith(".")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_takes_a_short_schedule(name: str) -> None:
    settings = resolve(name, ["train.epochs=1"])
    assert settings.train.epochs == 1
    assert settings.train.warmup_epochs < 1


def test_the_papers_settings_are_in_the_cifar_recipes() -> None:
    for name in ("cifar10/prelax-all", "cifar100/prelax-all", "tiny-imagenet/prelax-all-r34"):
        settings = resolve(name)
        train, model, method = settings.train, settings.model, settings.method
        assert (train.epochs, train.batch_size, train.lr, train.momentum, train.weight_decay) == (
            800,
            512,
            0.03,
            0.9,
            5e-4,
        )
        assert (model.projector_layers, model.projector_hidden, model.projector_dim) == (3, 2048, 2048)
        assert model.predictor_hidden == 512
        assert (method.name, method.alpha, method.beta, method.gamma) == ("prelax-all", 1.0, 1.0, 0.1)
    assert resolve("tiny-imagenet/prelax-all-r34").model.backbone == "resnet34"
    assert resolve("tiny-imagenet/simsiam").data.image_size == 32


def test_the_papers_settings_are_in_the_imagenette_recipes() -> None:
    settings = resolve("imagenette/byol-prelax-all")
    assert (settings.train.optimizer, settings.train.lr, settings.train.weight_decay) == ("lars", 2.0, 1e-6)
    assert (settings.train.epochs, settings.train.batch_size, settings.train.warmup_epochs) == (1000, 256, 10)
    assert (settings.method.name, settings.method.base, settings.method.tau) == ("prelax-all", "byol", 0.996)
    assert (settings.model.projector_hidden, settings.model.projector_dim) == (4096, 256)
    assert settings.evaluate.linear == "byol"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("epochs", "train.epochs"),
        ("train.epoch", "train.epochs"),
        ("lr", "train.lr"),
        ("method.alfa", "method.alpha"),
        ("data.rot", "data.root"),
        ("trian.batch_size", "train.batch_size"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(typed: str, meant: str) -> None:
    with pytest.raises(PrelaxError, match=rf"unknown setting {typed}; did you mean {meant}\?"):
        resolve("digits/simsiam", [f"{typed}=1"])


def test_an_unknown_recipe_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(PrelaxError, match=r"no recipe 'cifar10/prelax_al'; did you mean cifar10/prelax-all\?"):
        resolve("cifar10/prelax_al")


def test_an_unknown_key_in_a_recipe_file_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: digits/simsiam\ntrain: {epocs: 3}\n")
    with pytest.raises(PrelaxError, match=r"unknown setting train.epocs; did you mean train.epochs\?"):
        resolve(str(recipe))


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("train.epochs=0", "train.epochs"),
        ("train.epochs=ten", "train.epochs.*got 'ten'"),
        ("train.lr=nan", "train.lr"),
        ("train.lr=inf", "train.lr"),
        ("method.alpha=1.5", "method.alpha.*got 1.5"),
        ("train.optimizer=adam", "train.optimizer.*'sgd', 'lars', 'adamw' or 'muon'"),
        ("train.epochs", "not key=value"),
        ("train.warmup_epochs=100", "must be under train.epochs"),
        ("seed=-1", "seed"),
    ],
)
def test_a_bad_value_is_refused_by_name(pair: str, says: str) -> None:
    with pytest.raises(PrelaxError, match=says) as refusal:
        resolve("digits/simsiam", [pair])
    assert "\n" not in str(refusal.value)


def test_a_path_stays_as_it_was_typed() -> None:
    assert resolve("digits/simsiam", ["data.root=2024"]).data.root == Path("2024")
    assert resolve("digits/simsiam", ["data.root=1e5"]).data.root == Path("1e5")
    assert resolve("digits/simsiam", ["data.root=~/photos"]).data.root == Path.home() / "photos"
    assert resolve("digits/simsiam", ["data.root=none"]).data.root is None


def test_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(PrelaxError, match="no such user's home"):
        resolve("digits/simsiam", ["data.root=~nobody-of-this-name/photos"])


def test_numbers_and_switches_are_read_as_such() -> None:
    settings = resolve("digits/simsiam", ["train.lr=1e-3", "data.download=true", "train.batch_size=64"])
    assert (settings.train.lr, settings.data.download, settings.train.batch_size) == (1e-3, True, 64)


def test_fewer_epochs_keep_the_share_that_warms_up() -> None:
    assert resolve("imagenette/byol", ["train.epochs=100"]).train.warmup_epochs == pytest.approx(1.0)
    assert resolve("imagenette/byol", ["train.epochs=100", "train.warmup_epochs=3"]).train.warmup_epochs == 3


def test_a_recipe_file_extends_the_package_or_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("extends: digits/prelax-rot\ntrain: {epochs: 7}\n")
    (tmp_path / "two.yaml").write_text("extends: one.yaml\ntrain: {lr: 0.25}\n")
    settings = resolve(str(tmp_path / "two.yaml"))
    assert (settings.method.name, settings.train.epochs, settings.train.lr) == ("prelax-rot", 7, 0.25)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: self.yaml", "extends itself"),
        ("extends: [a, b]", "must be the name of one recipe"),
        ("train: {", "is not YAML"),
        ("- a list", "must be a mapping"),
        ("train: 3", "train"),
        ("extends: digits/simsam", "did you mean digits/simsiam"),
    ],
)
def test_a_recipe_file_that_is_wrong_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    recipe = tmp_path / "self.yaml"
    recipe.write_text(text)
    with pytest.raises(PrelaxError, match=says) as refusal:
        resolve(str(recipe))
    assert "\n" not in str(refusal.value)


def test_a_recipe_file_that_is_missing_or_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="no recipe file"):
        resolve(str(tmp_path / "nowhere.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(PrelaxError, match="is not YAML"):
        resolve(str(tmp_path / "binary.yaml"))


@pytest.mark.parametrize("name", ["digits/prelax-all", "imagenette/byol", "folder"])
def test_settings_written_as_yaml_read_back_the_same(name: str) -> None:
    settings = resolve(name, ["data.root=/somewhere", "seed=3"])
    assert validate(yaml.safe_load(to_yaml(settings))) == settings


def test_settings_do_not_change_once_read() -> None:
    with pytest.raises(Exception, match="frozen"):
        resolve("digits/simsiam").train.epochs = 3  # type: ignore[misc]


def test_every_key_has_a_default_that_is_valid() -> None:
    assert validate({}) == Settings()
    assert {"train.epochs", "method.alpha", "data.root", "seed"} <= set(keys())


trees = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
roots = st.dictionaries(st.sampled_from("abc"), trees, max_size=3)


@given(roots, roots, roots)
@hypothesis_settings(max_examples=60, deadline=None)
def test_merging_keeps_the_last_word(under: dict, middle: dict, over: dict) -> None:
    assert merge(under, {}) == under
    assert merge({}, over) == over
    assert merge(over, over) == over
    for key, value in over.items():
        if not isinstance(value, dict):
            assert merge(merge(under, middle), over)[key] == value


@given(st.floats(allow_nan=False, allow_infinity=False))
@hypothesis_settings(max_examples=60, deadline=None)
def test_every_number_python_prints_is_read_back(number: float) -> None:
    assert parse(repr(number), float) == number


@given(st.text(max_size=20))
@hypothesis_settings(max_examples=60, deadline=None)
def test_any_text_as_a_change_is_read_or_refused_but_never_a_crash(text: str) -> None:
    for pair in (text, f"train.lr={text}", f"data.root={text}", f"data.download={text}"):
        with contextlib.suppress(PrelaxError):
            assert isinstance(resolve("digits/simsiam", [pair]), Settings)


def test_nearest_lists_what_is_valid_when_nothing_is_near() -> None:
    assert nearest("zzz", ["one", "two"]) == "; valid: one, two"


def test_capitals_are_no_other_name() -> None:
    assert nearest("kNN", ["knn", "linear"]) == "; did you mean knn?"
    assert nearest("CIFAR10/SimSiam", ["cifar10/simsiam", "digits/simsiam"]) == "; did you mean cifar10/simsiam?"


def test_overrides_of_one_section_come_together() -> None:
    assert overrides(["train.epochs=3", "train.lr=0.1", "seed=2"]) == {"train": {"epochs": 3, "lr": 0.1}, "seed": 2}


def test_recipes_of_a_row_differ_only_in_what_the_row_says() -> None:
    base, relaxed = read_recipe("cifar10/simsiam"), read_recipe("cifar10/prelax-all")
    assert {key for key in base if base[key] != relaxed[key]} == {"method"}


@pytest.mark.parametrize("recipe", ["imagenette/supervised", "imagenet/supervised"])
def test_labels_are_learnt_from_photos_that_are_not_blurred(recipe: str) -> None:
    pipeline = views_of(resolve(recipe), 3).pipelines[1]
    record = pipeline.sample((64, 3, 160, 160), Draws(0, 64))
    for name in ("blur.applied", "solarise.applied"):
        assert name not in record or not record[name].any()


def test_the_tuned_recipes_are_the_runs_in_the_results() -> None:
    raw = Path(__file__).parents[1] / "results" / "raw"
    short = ["train.epochs=100", "train.warmup_epochs=10", "train.knn_every=10"]
    runs = {"simsiam": ("12-weight/weight-simsiam", short)}
    often = ["train.knn_every=50", "train.checkpoint_every=100"]
    runs["prelax-rot"] = ("41-eight-rows/eight-rot-fade", often)
    runs["prelax-std"] = ("41-eight-rows/eight-std-stays", often)
    runs["prelax-all"] = ("29-eight-fade/eight-all-fade", often)
    runs["prelax-turns"] = ("07-eight-hundred/eight-turns", ["train.knn_every=100", "train.checkpoint_every=100"])
    for recipe, (run, changes) in runs.items():
        settings = resolve(f"cifar10/{recipe}-tuned", changes).model_dump(mode="json")
        written = yaml.safe_load((raw / run / "config.yaml").read_text())
        parts = ("model", "method", "train", "augment")
        measured = validate({part: written[part] for part in parts}).model_dump(mode="json")  # later ones by default
        for part in parts:
            assert settings[part] == measured[part], recipe


@pytest.mark.parametrize("typed", ["photos", "cautious", "zzz"])
def test_a_name_like_no_recipe_gets_no_guess(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrelaxError, match=rf"no recipe '{typed}'; valid: cifar10/\*, .*digits/\*, folder, "):
        resolve(typed)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("train.learning_rate", "valid: train.batch_size, .*train.lr"),
        ("model.arch", "valid: model.backbone"),
        ("model.gamma", "did you mean method.gamma"),
        ("train", "valid: train.batch_size"),
        ("zzz", r"valid: augment\.\*, data\.\*"),
    ],
)
def test_a_setting_like_no_other_is_answered_with_its_section(typed: str, says: str) -> None:
    with pytest.raises(PrelaxError, match=rf"unknown setting {typed}; {says}"):
        resolve("digits/simsiam", [f"{typed}=1"])


def test_a_method_like_no_other_is_answered_with_all_of_them() -> None:
    from prelax.objectives import METHODS

    assert nearest("cautious", METHODS) == f"; valid: {', '.join(sorted(METHODS))}"


def test_a_folder_given_as_a_recipe_is_answered_with_how_to_train_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, quoted in (("photos", "photos"), ("my photos", "'my photos'")):
        (tmp_path / name).mkdir()
        with pytest.raises(PrelaxError, match=f"to train on .*: prelax pretrain folder data.root={quoted}$"):
            resolve(name)
    (tmp_path / "photos" / "config.yaml").touch()  # a run, not photos
    with pytest.raises(PrelaxError, match="no recipe 'photos'; valid"):
        resolve("photos")
