"""A folder nobody has tuned for: what is chosen, what is left alone, what is said, and what resuming keeps."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image

from prelax.cli import main
from prelax.config import SUITED, Settings, resolve, validate
from prelax.data import ImageSet
from prelax.errors import PrelaxError
from prelax.run import Run
from prelax.train import pretrain
from prelax.train.suit import batch_for, epochs_for, suit, view_size

CPU, CUDA = torch.device("cpu"), torch.device("cuda")  # only its name is looked at
SMALL = ["model.projector_hidden=16", "model.projector_dim=16", "model.predictor_hidden=8", "model.head_hidden=8"]


def blank(count: int, side: int) -> ImageSet:
    """Many images that take no memory."""
    return ImageSet("folder", torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(count, 3, side, side), None, [])


def photos(root: Path, count: int, side: int = 36, classes: tuple[str, ...] = ("red", "blue")) -> Path:
    """Noise in a colour for each class."""
    rng = np.random.default_rng(0)
    for number in range(count):
        name = classes[number % len(classes)] if classes else ""
        pixels = rng.integers(0, 120, (side, side, 3), dtype=np.uint8)
        pixels[..., number % 3] += 100
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name / f"photo {number}.png")
    return root


def open_settings(root: Path | str = "photos", *changes: str) -> Settings:
    here = [f"data.cache={root}-cache", "data.workers=0", "train.device=cpu", "train.watch=none"]
    return resolve("folder", [f"data.root={root}", *here, *changes])


def get(settings: Settings, key: str) -> Any:
    section, leaf = key.split(".")
    return getattr(getattr(settings, section), leaf)


@pytest.mark.parametrize(("optimizer", "rate", "why"), [("adamw", 0.001, "usual for AdamW"), ("lars", 2.0, "paper's")])
def test_an_optimiser_that_takes_other_rates_gets_one_of_them(optimizer: str, rate: float, why: str) -> None:
    chosen, lines = suit(open_settings("photos", f"train.optimizer={optimizer}"), blank(1204, 48), CPU)
    assert chosen.train.lr == rate
    assert any(f"learning rate {rate} for 256 images" in line and why in line for line in lines)


def test_a_gpu_gets_the_papers_network_and_a_cpu_a_small_one() -> None:
    images = blank(1204, 160)
    gpu, said = suit(open_settings(), images, CUDA)
    assert (gpu.augment.size, gpu.train.batch_size, gpu.model.backbone, gpu.train.epochs) == (128, 256, "resnet18", 800)
    assert gpu.model.projector_dim == 2048
    assert any(line.startswith("1,204 images: batches of 256") for line in said)
    cpu, said = suit(open_settings(), images, CPU)
    assert (cpu.augment.size, cpu.train.batch_size, cpu.model.backbone, cpu.train.epochs) == (128, 64, "resnet8", 42)
    assert cpu.model.projector_dim == 256
    assert said[-1] == "these are a CPU's choices; a GPU would get resnet18, batches of 256, 800 epochs"


@pytest.mark.parametrize(
    "change", ["train.epochs=7", "train.batch_size=24", "model.backbone=resnet34", "augment.size=48"]
)
def test_what_the_user_set_is_left_alone_and_not_spoken_of(change: str) -> None:
    key, _, text = change.partition("=")
    chosen, said = suit(open_settings("photos", change), blank(1000, 160), CPU)
    assert str(get(chosen, key)) == text
    told = {
        "train.epochs": " epochs",
        "train.batch_size": "batches of",
        "model.backbone": "resnet",
        "augment.size": "views of",
    }
    assert not any(told[key] in line for line in said)
    others = [word for name, word in told.items() if name != key]
    assert all(any(word in line for line in said) for word in others)


def test_muon_turns_less_in_a_step_of_a_longer_run() -> None:
    images = blank(1000, 160)
    short, said = suit(open_settings("photos", "train.epochs=10"), images, CPU)
    assert short.train.turn == 0.05
    assert any("by 5 % of their length at most (train.turn: the most that is chosen)" in line for line in said)
    long, _ = suit(open_settings("photos", "train.epochs=400"), images, CPU)  # 15 steps of 64 images
    assert long.train.turn == 0.025  # a quarter of 6,000 steps may turn by 5 %
    kept, said = suit(open_settings("photos", "train.turn=0.3"), images, CPU)
    assert kept.train.turn == 0.3
    plain, more = suit(open_settings("photos", "train.optimizer=sgd"), images, CPU)
    assert plain.train.turn == resolve("cifar10/simsiam").train.turn
    assert not any("train.turn" in line for line in [*said, *more])


def test_settings_that_say_everything_are_not_touched() -> None:
    whole = validate(open_settings("photos", "augment.size=32").model_dump(mode="json"))
    assert suit(whole, blank(1000, 160), CPU) == (whole, [])


def test_the_heads_of_a_backbone_the_user_chose_go_by_the_device() -> None:
    settings = open_settings("photos", "model.backbone=resnet18")
    assert [suit(settings, blank(1000, 64), where)[0].model.projector_dim for where in (CUDA, CPU)] == [2048, 512]
    kept, _ = suit(open_settings("photos", "model.backbone=resnet18", "model.projector_dim=1024"), blank(9, 64), CPU)
    assert (kept.model.projector_hidden, kept.model.projector_dim) == (512, 1024)


def test_warm_up_is_a_share_of_the_epochs_whoever_chose_them() -> None:
    for epochs in (1, 2, 100):
        chosen, _ = suit(open_settings("photos", f"train.epochs={epochs}"), blank(1000, 64), CPU)
        assert chosen.train.warmup_epochs == pytest.approx(0.05 * epochs)
    kept, _ = suit(open_settings("photos", "train.warmup_epochs=3"), blank(1000, 64), CPU)
    assert kept.train.warmup_epochs == 3


def test_a_warm_up_longer_than_the_chosen_epochs_is_refused_with_what_to_do() -> None:
    for warmup in (200, 300):
        with pytest.raises(
            PrelaxError, match=rf"warmup_epochs={warmup} .* 200 epochs chosen for 24 .* set train\.epochs"
        ):
            suit(open_settings("photos", f"train.warmup_epochs={warmup}"), blank(24, 64), CPU)


@given(count=st.integers(2, 3_000_000), side=st.integers(4, 4096), cuda=st.booleans(), processes=st.integers(1, 9))
@hypothesis_settings(max_examples=200, deadline=None)
def test_every_choice_is_a_valid_setting(count: int, side: int, cuda: bool, processes: int) -> None:
    chosen, said = suit(open_settings(), blank(count, side), CUDA if cuda else CPU, processes)
    assert validate(chosen.model_dump(mode="json")) == chosen
    batch = chosen.train.batch_size
    assert batch % processes == 0
    assert batch <= max(count / 4, 2 * processes)
    assert chosen.augment.size is not None
    assert chosen.augment.size <= side
    assert len(said) >= 4
    assert not any("\n" in line for line in said)


def test_bounds_hold_at_both_ends() -> None:
    assert [epochs_for(n, "cpu", 128) for n in (1, 1000, 10**7)] == [200, 50, 5]
    assert [epochs_for(4000, "cpu", size) for size in (16, 32, 64, 128, 224)] == [100, 100, 50, 12, 12]
    assert [batch_for(n, 256) for n in (2, 15, 16, 1023, 1024, 10**7)] == [2, 2, 4, 128, 256, 256]
    assert view_size(64) == 64
    assert view_size(65) == 64


def test_the_estimate_agrees_with_the_run(tmp_path: Path) -> None:
    settings = open_settings(photos(tmp_path / "photos", 48), "train.epochs=12", "train.batch_size=8")
    heard: list[str] = []
    run = pretrain(settings, tmp_path / "run", progress=False, say=heard.append)
    (said,) = [line for line in heard if "on this CPU" in line]
    number, unit = re.match(r"about (\d+) (second|minute)s? on this CPU \(\d+ cores\)", said).groups()  # type: ignore[union-attr]
    expected = int(number) * (60 if unit == "minute" else 1)
    took = sum(line["seconds"] for line in run.metrics())
    assert took / 5 - 1 < expected < 5 * took + 1  # other work on the machine blurs it
    assert said in (run.path / "log.txt").read_text()


def test_an_estimate_draws_nothing_and_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = open_settings(photos(tmp_path / "photos", 24), "train.epochs=5", "train.batch_size=4", *SMALL)
    before = torch.random.get_rng_state()
    timed = pretrain(settings, tmp_path / "timed", progress=False)
    assert torch.equal(before, torch.random.get_rng_state())
    monkeypatch.setattr(importlib.import_module("prelax.train.pretrain"), "estimate", lambda *given: None)
    plain = pretrain(settings, tmp_path / "plain", progress=False)
    for name, weight in timed.load_backbone().items():
        assert torch.equal(weight, plain.load_backbone()[name])


def test_every_choice_is_in_the_log_and_the_config(tmp_path: Path) -> None:
    heard: list[str] = []
    settings = open_settings(photos(tmp_path / "photos", 40), "train.epochs=1")
    run = pretrain(settings, tmp_path / "run", progress=False, say=heard.append)
    log = (run.path / "log.txt").read_text()
    assert heard
    assert all(line in log for line in heard)
    assert run.settings.train.batch_size == 8
    assert run.settings.augment.size == run.settings.data.image_size == 32


def test_resuming_keeps_what_was_chosen_and_chooses_nothing(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 40)
    run = pretrain(open_settings(root, "train.epochs=2"), tmp_path / "run", progress=False)
    first = run.settings
    heard: list[str] = []
    # The same command without the epochs: the run's own stand, not a CPU's choice for 40 images.
    again = pretrain(open_settings(root), tmp_path / "run", resume=True, progress=False, say=heard.append)
    assert again.settings == first
    assert len(again.metrics()) == 2
    assert heard == []
    for key in SUITED:
        assert get(Run.open(run.path).settings_with(open_settings(root)), key) == get(first, key)


def test_resuming_with_another_value_is_refused_by_name(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 40)
    pretrain(open_settings(root, "train.epochs=1"), tmp_path / "run", progress=False)
    with pytest.raises(PrelaxError, match=r"train\.batch_size was 8 .* cannot become 4"):
        pretrain(open_settings(root, "train.batch_size=4"), tmp_path / "run", resume=True, progress=False)


def test_other_sources_are_left_as_their_recipes_say(tmp_path: Path) -> None:
    heard: list[str] = []
    recipe = tmp_path / "open.yaml"
    recipe.write_text(
        "data: {source: digits, limit: 64}\nmodel: {backbone: resnet8}\ntrain: {epochs: 1, watch: none}\n"
    )
    run = pretrain(resolve(str(recipe), SMALL), tmp_path / "run", progress=False, say=heard.append)
    assert heard == ["a step takes all 64 images: train.batch_size=512 is more"]
    assert run.settings.train.batch_size == 512
    assert run.metrics()[-1]["lr"] == pytest.approx(run.settings.train.lr * 64 / 256)  # of a step of 64


def test_a_dozen_images_train_to_the_end(tmp_path: Path) -> None:
    settings = open_settings(
        photos(tmp_path / "photos", 12, classes=()), "train.epochs=7", "data.test_fraction=0", *SMALL
    )
    run = pretrain(settings, tmp_path / "run", progress=False)  # batches of two: their rank is no sign of collapse
    assert run.settings.train.batch_size == 2
    assert len(run.metrics()) == 7


def words_of(root: Path, out: Path, *more: str) -> list[str]:
    here = [f"data.root={root}", f"data.cache={root}-cache", "data.workers=0", "train.epochs=1", "train.watch=none"]
    return ["pretrain", "folder", *here, *SMALL, "--out", str(out), *more]


def test_the_command_ends_with_a_page_and_commands_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "my photos", 60)
    assert main(words_of(root, tmp_path / "a run")) == 0
    said = capsys.readouterr().out
    assert "batches of" in said
    page = tmp_path / "a run" / "report.html"
    assert f"look at it: {page}" in said
    assert re.search(r"^kNN [\d.]+ %, random weights [\d.]+ %, of \d+ images", said, re.M)
    assert "of 60 files are held out to measure on" in said
    atlas = atlas_of(page)
    assert len(atlas["labels"]) == 60  # all of one's own images can be found, held out or not
    assert '<input type="search"' in page.read_text()
    assert {"red/photo 0.png", "blue/photo 1.png"} <= set(atlas["captions"])
    assert "knn" in Run.open(tmp_path / "a run").evals()  # labels are there to measure with
    commands = [shlex.split(line) for line in said.splitlines() if line.startswith("  prelax ")]
    assert [words[1] for words in commands] == ["search", "embed", "evaluate"]
    capsys.readouterr()
    copied = Path(shutil.copy(root / "red" / "photo 26.png", tmp_path))  # it finds what it is a copy of
    assert main(["search", str(tmp_path / "a run"), str(copied), "-k", "1", "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["results"][0]["found"][0]["path"]).name == copied.name
    for words in commands[:2]:
        assert main(words[1:]) == 0
    assert main([*commands[2][1:], "--protocol", "knn"]) == 0


def atlas_of(page: Path) -> dict[str, Any]:
    """What the map of a page holds."""
    found = re.search(r'id="page-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])["atlases"][0]


def test_a_folder_of_which_nothing_is_held_out_is_mapped_and_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = photos(tmp_path / "photos", 12, classes=()), tmp_path / "run"
    assert main([*words_of(root, run), "data.test_fraction=0"]) == 0
    assert len(atlas_of(run / "report.html")["labels"]) == 12
    assert main(["search", str(run), str(root / "photo 3.png"), "-k", "2", "--quiet"]) == 0
    assert main(["embed", str(run), "-o", str(tmp_path / "all.npz")]) == 0
    assert "12 vectors" in capsys.readouterr().out


def test_without_labels_nothing_is_said_of_evaluating(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of(photos(tmp_path / "photos", 24, classes=()), tmp_path / "run")) == 0
    said = capsys.readouterr().out
    assert "prelax embed" in said
    assert "prelax evaluate" not in said


def test_quiet_says_nothing_and_writes_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of(photos(tmp_path / "photos", 24), tmp_path / "run", "--quiet")) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "run" / "report.html").exists()


def test_json_is_alone_on_standard_output_and_names_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words_of(photos(tmp_path / "photos", 24), tmp_path / "run", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert Path(result["page"]).is_file()


def test_a_dry_run_says_what_it_cannot_know_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of(photos(tmp_path / "photos", 4), tmp_path / "run", "--dry-run", "--json")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["train"]["epochs"] == 1
    assert "chosen by the images when it starts: data.image_size" in said.err
    assert "train.batch_size" in said.err
    assert "train.epochs" not in said.err


def test_a_run_folder_goes_on_and_ends_with_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "photos", 24)
    assert main(words_of(root, tmp_path / "run", "--quiet")) == 0
    (tmp_path / "run" / "backbone.safetensors").unlink()
    assert main(["pretrain", str(tmp_path / "run"), "--resume"]) == 0
    said = capsys.readouterr().out
    assert "batches of" not in said
    assert "report.html" in said
    assert "prelax search" in said


def test_a_run_is_found_and_measured_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "photos", 40)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "photos").mkdir(parents=True)  # other photos of that name must not be taken
    assert main([*words_of(Path("photos"), Path("run")), "--quiet"]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", "../run", "--protocol", "knn", "--quiet"]) == 0
    assert main(["embed", "../run", "-o", "vectors.npz", "--quiet"]) == 0
    assert len(np.load("vectors.npz")["embedding"]) == 40


def test_files_that_cannot_be_read_are_named_whether_held_out_or_not(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 60)
    for number in range(40):
        (root / "red" / f"bad {number}.png").write_bytes(b"no image")
    assert main(words_of(root, tmp_path / "run")) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert all(f"bad {number}.png" in log for number in range(40))


def test_measuring_is_proposed_where_it_can_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words_of(photos(tmp_path / "photos", 40, classes=("one",)), tmp_path / "run")) == 0
    assert "prelax evaluate" not in capsys.readouterr().out


def test_what_is_measured_on_is_named(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("val", 12)):
        photos(tmp_path / "photos" / split, count)
    heard: list[str] = []
    settings = open_settings(tmp_path / "photos", "train.epochs=1", *SMALL)
    pretrain(settings, tmp_path / "run", progress=False, say=heard.append)
    assert f"what is measured on is in {tmp_path}/photos/val" in heard


def test_a_run_whose_photos_were_moved_is_told_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = photos(tmp_path / "photos", 40), tmp_path / "run"
    assert main([*words_of(root, run), "--quiet"]) == 0
    root.rename(tmp_path / "moved")
    assert main(["evaluate", str(run), "--protocol", "knn"]) == 2
    assert "pretrain RUN --resume data.root=FOLDER" in capsys.readouterr().err
    assert main(["pretrain", str(run), "--resume", f"data.root={tmp_path}/moved"]) == 0
    assert f"prelax search {run} '{tmp_path}/moved/" in capsys.readouterr().out
    assert Run.open(run).settings.data.root == tmp_path / "moved"
    assert main(["evaluate", str(run), "--protocol", "knn"]) == 0


def test_labels_keyed_by_the_folder_as_it_was_typed_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path / "my" / "photos", 40, classes=())
    lines = [f"my/photos/photo {i}.png,{'odd' if i % 2 else 'even'}" for i in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]))
    monkeypatch.chdir(tmp_path)
    assert main([*words_of(Path("my/photos"), Path("run")), "data.labels=labels.csv", "--quiet"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", "../run", "--protocol", "knn", "--quiet"]) == 0


def test_what_was_held_out_and_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    root, run = photos(tmp_path / "photos", 60), tmp_path / "run"
    for number in range(40):
        (root / "red" / f"bad {number}.png").write_bytes(b"no image")
    (root / "red" / "gone.png").symlink_to(tmp_path / "nothing")
    assert main(words_of(root, run)) == 0
    first = (run / "log.txt").read_text()
    assert main(["pretrain", str(run), "--resume"]) == 0
    later = (run / "log.txt").read_text()
    assert first.count("gone.png") == 1
    assert later.count("(held out)") == first.count("(held out)") > 0
