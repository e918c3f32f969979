"""Training in bad luck: what it is given, what it is left, and how it is stopped."""

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from prelax.cli import main
from prelax.errors import PrelaxWarning
from prelax.evaluate import evaluate
from prelax.run import Run
from prelax.tensors import read_checkpoint
from prelax.train.engine import Engine

Refuse = Callable[..., str]


def photos(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(len(str(folder)) + count)
    for number in range(count):
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")


def on_folder(root: Path, small: list[str]) -> list[str]:
    settings = [word for word in small if not word.startswith("data.limit")]
    return [
        *("pretrain", "folder", f"data.root={root}", f"data.cache={root.parent / 'cache'}", "data.workers=0"),
        *("data.image_size=16", "augment.size=16", "train.epochs=1", "train.warmup_epochs=0", *settings, "--quiet"),
    ]


# -- few images, few labels --------------------------------------------------------------------------------------------


def test_one_image_is_refused_with_the_number_there_is(tmp_path: Path, small: list[str], refused: Refuse) -> None:
    photos(tmp_path / "photos", 1)
    said = refused(*on_folder(tmp_path / "photos", small), "data.test_fraction=0", "--out", tmp_path / "run")
    assert "1 image" in said


@pytest.mark.parametrize("count", [2, 3, 31])
def test_fewer_images_than_the_batch_train_in_one_batch(count: int, tmp_path: Path, small: list[str]) -> None:
    photos(tmp_path / "photos", count)
    words = [*on_folder(tmp_path / "photos", small), "data.test_fraction=0", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    assert len(Run.open(tmp_path / "run").metrics()) == 1


def test_one_class_trains_and_says_what_cannot_be_measured(tmp_path: Path, small: list[str], refused: Refuse) -> None:
    photos(tmp_path / "photos" / "cats", 24)
    run = tmp_path / "run"
    assert main([*on_folder(tmp_path / "photos", small), "data.test_fraction=0.3", "--out", str(run)]) == 0
    assert "one class (cats)" in refused("evaluate", run, "-p", "knn,linear-fast", "--quiet")
    assert main(["embed", str(run), "-o", str(tmp_path / "all.npz")]) == 0


def test_labels_missing_for_some_are_left_out_of_measurements_alone(tmp_path: Path, small: list[str]) -> None:
    root, run = tmp_path / "photos", tmp_path / "run"
    photos(root, 40)
    lines = ["path,label", *(f"{number}.png,{'ab'[number % 2]}" for number in range(0, 40, 2))]
    lines += [f"{number}.png,b" for number in range(1, 20, 4)]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    words = [*on_folder(root, small), f"data.labels={tmp_path / 'labels.csv'}", "data.test_fraction=0.3"]
    assert main([*words, "--out", str(run)]) == 0
    assert main(["evaluate", str(run), "-p", "knn", "--quiet"]) == 0
    result = Run.open(run).evals()["knn"]
    assert result["train_images"] + result["test_images"] + (result["test_images_left_out_as_seen"] or 0) < 40
    assert json.loads((run / "data.json").read_text())["images"] + result["test_images"] > 25


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_architecture_is_refused_and_kept(
    run: Path, tmp_path: Path, small: list[str], refused: Refuse
) -> None:
    other = tmp_path / "other"
    words = [word.replace("resnet8", "resnet18") for word in small]
    assert main(["pretrain", "digits/prelax-all", *words, "train.epochs=1", "--out", str(other), "--quiet"]) == 0
    shutil.copy(other / "checkpoint.pt", run / "checkpoint.pt")
    before = (run / "checkpoint.pt").read_bytes()
    said = refused("pretrain", run, "--resume", "--quiet")
    assert "checkpoint.pt was trained with model.backbone='resnet18' and config.yaml says 'resnet8'" in said
    assert (run / "checkpoint.pt").read_bytes() == before
    shutil.copy(other / "backbone.safetensors", run / "backbone.safetensors")
    assert "not of a resnet8" in refused("evaluate", run, "--quiet")


def test_a_truncated_checkpoint_gives_way_to_the_one_before_and_the_run_ends_as_it_did(run: Path) -> None:
    weights = (run / "backbone.safetensors").read_bytes()
    whole = (run / "checkpoint.pt").read_bytes()
    (run / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    assert main(["pretrain", str(run), "--resume", "--quiet"]) == 0
    assert (run / "backbone.safetensors").read_bytes() == weights
    assert read_checkpoint(run / "checkpoint.pt")["epoch"] == 2
    assert read_checkpoint(run / "checkpoint.previous.pt")["epoch"] == 1


def test_when_no_checkpoint_is_whole_nothing_is_begun_anew_over_them(run: Path, refused: Refuse) -> None:
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (run / name).write_bytes((run / name).read_bytes()[:1000])
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "log.txt"}
    assert "remove it to begin anew" in refused("pretrain", run, "--resume", "--quiet")
    assert {name: (run / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("key", ["network", "optimizer", "epoch", "step", "sums", "last_z"])
def test_a_checkpoint_with_something_else_in_it_is_refused_and_kept(key: str, run: Path, refused: Refuse) -> None:
    state = read_checkpoint(run / "checkpoint.pt")
    for other in ([], "text", -1, 3.5, {}, {"a": 1}, {"param_groups": [], "state": {}}, torch.zeros(3)):
        if (key, other) in [("sums", {})] or (key == "last_z" and isinstance(other, torch.Tensor)):
            continue  # what a checkpoint may hold
        torch.save({**state, key: other}, run / "checkpoint.pt")
        before = (run / "checkpoint.pt").read_bytes()
        assert "checkpoint" in refused("pretrain", run, "--resume", "--quiet")
        assert (run / "checkpoint.pt").read_bytes() == before
        if key == "network":
            assert str(run) in refused("evaluate", run, "-p", "residual", "--quiet")
    torch.save({name: value for name, value in state.items() if name != key}, run / "checkpoint.pt")
    assert key in refused("pretrain", run, "--resume", "--quiet")


class Malice:
    """A pickle that makes a file when it is opened carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("form", ["torch", "pickle", "zip"])
@pytest.mark.parametrize("words", [["pretrain", "--resume"], ["doctor"], ["evaluate", "-p", "residual"]])
def test_a_malicious_checkpoint_is_not_executed(form: str, words: list[str], run: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        if form == "torch":
            torch.save({"network": Malice(harm), "epoch": 2, "step": 0, "optimizer": {}}, run / name)
        elif form == "pickle":
            (run / name).write_bytes(pickle.dumps(Malice(harm)))
        else:
            with zipfile.ZipFile(run / name, "w") as archive:
                archive.writestr("archive/data.pkl", pickle.dumps(Malice(harm)))
                archive.writestr("archive/version", "3\n")
    command, *options = words
    assert main([command, str(run), *options, "--quiet"]) == (1 if command == "doctor" else 2)
    assert not harm.exists()


def test_a_run_of_a_newer_version_is_refused_by_every_command(run: Path, tmp_path: Path, refused: Refuse) -> None:
    config = run / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["run"] |= {"format": 99, "prelax": "9.9"}
    tree["not_yet_invented"] = {"key": 1}
    config.write_text(yaml.safe_dump(tree))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for words in (
        ["pretrain", run, "--resume"],
        ["evaluate", run],
        ["embed", run, "-o", tmp_path / "all.npz"],
        ["export", run, "--to", "hub"],
        ["report", run],
        ["figure", "dynamics", run, "-o", tmp_path / "figure.png"],
    ):
        assert "9.9" in (said := refused(*words))
        assert "upgrade" in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


# -- disks -------------------------------------------------------------------------------------------------------------


def test_no_permission_to_write_is_refused_before_training(tmp_path: Path, small: list[str]) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    program = [sys.executable, "-m", "prelax", "pretrain", "digits/simsiam", *small, "train.epochs=1", "--quiet"]
    if os.geteuid() == 0:  # permissions bind root only without this capability
        powerless = ["setpriv", "--bounding-set=-dac_override"]
        try:
            subprocess.run([*powerless, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("root, and setpriv cannot take its powers away")
        program = [*powerless, *program]
    done = subprocess.run([*program, "--out", str(shut / "run")], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f"prelax: cannot write {shut / 'run'}: {shut} is read-only, or not yours to write to; choose another --out\n"
    )


@pytest.fixture
def little_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_goes_on_when_there_is_room(
    little_disk: Path, tmp_path: Path, small: list[str], refused: Refuse
) -> None:
    words = ["pretrain", "digits/prelax-all", *small, "train.epochs=3", "--quiet", "--out"]
    run = little_disk / "run"
    said = refused(*words, run)  # one checkpoint of 685 kB fits, two do not
    assert "no space left" in said
    assert "--resume" in said
    kept = Run.open(run).load_checkpoint()
    assert kept is not None
    assert kept["epoch"] == 1
    assert not list(run.glob(".*.tmp"))
    moved = Path(shutil.copytree(run, tmp_path / "moved"))
    assert main(["pretrain", str(moved), "--resume", "--quiet"]) == 0
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert (moved / "backbone.safetensors").read_bytes() == (tmp_path / "whole/backbone.safetensors").read_bytes()


def test_a_disk_without_room_for_anything_is_one_line(little_disk: Path, small: list[str], refused: Refuse) -> None:
    (little_disk / "filler").write_bytes(bytes(1_040_000))
    with pytest.raises(OSError, match="No space"):
        (little_disk / "filler2").write_bytes(bytes(100_000))
    said = refused("pretrain", "digits/simsiam", *small, "train.epochs=1", "--quiet", "--out", little_disk / "run")
    assert "config.yaml; free some and try again" in said


def test_a_disk_without_room_for_a_checkpoint_leaves_a_run_to_go_on_with(
    little_disk: Path, small: list[str], refused: Refuse
) -> None:
    (little_disk / "filler").write_bytes(bytes(1_020_000))
    said = refused("pretrain", "digits/simsiam", *small, "train.epochs=1", "--quiet", "--out", little_disk / "run")
    assert "free some and go on with --resume" in said
    (little_disk / "filler").unlink()
    assert main(["pretrain", str(little_disk / "run"), "--resume", "--quiet"]) == 0


def test_a_full_disk_costs_what_is_written_after_training_one_line_and_no_older_file(
    little_disk: Path, good: Path, refused: Refuse, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(good, little_disk / "run", ignore=shutil.ignore_patterns("checkpoint*")))
    (run / "report.html").write_text("an older page")
    with contextlib.suppress(OSError), open(little_disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    for words in (
        ["report", run, "--points", "0"],
        ["embed", run, "-o", little_disk / "vectors.npz"],
        ["figure", "dynamics", run, "-o", little_disk / "dynamics"],
        ["export", run, "--to", "hub"],
        ["export", run, "--to", "torch-export"],
    ):
        assert "free some and try again" in refused(*words), words
    assert main(["evaluate", str(run), "-p", "knn", "--device", "cpu"]) == 0  # what was measured is shown
    told = capsys.readouterr()
    assert "\nknn " in told.out
    assert "not kept: no space left" in told.err
    assert (run / "report.html").read_text() == "an older page"
    assert Run.open(run).evals().keys() == {"knn"}
    assert not list(little_disk.rglob(".*.tmp"))


# -- being stopped, being two, and memory ------------------------------------------------------------------------------


def test_ctrl_c_twice_stops_at_once_and_the_last_checkpoint_stays(tmp_path: Path, small: list[str]) -> None:
    run = tmp_path / "run"
    words = ["pretrain", "digits/prelax-all", *small, "train.epochs=500", "--quiet", "--out", str(run)]
    process = subprocess.Popen([sys.executable, "-m", "prelax", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not (run / "checkpoint.previous.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == f"prelax: interrupted; go on with `prelax pretrain {run} --resume`\n"
    kept = Run.open(run).load_checkpoint()
    assert kept is not None
    assert kept["epoch"] >= 1


def test_two_runs_into_one_folder_are_refused_by_its_lock(run: Path, refused: Refuse) -> None:
    before = (run / "checkpoint.pt").read_bytes()
    holder = (
        "import sys; from prelax.run import Run\n"
        "with Run(sys.argv[1]).lock():\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holder, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    assert "another process is writing" in refused("pretrain", run, "--resume", "--quiet")
    other.communicate("")
    assert (run / "checkpoint.pt").read_bytes() == before
    assert main(["pretrain", str(run), "--resume", "--quiet"]) == 0  # the lock went with its process


def test_a_device_out_of_memory_is_told_with_the_batch_to_try(
    tmp_path: Path, small: list[str], refused: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, most = Engine.compute, 8

    def too_much(engine: Engine) -> None:
        if engine.batch > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")
        step(engine)

    monkeypatch.setattr(Engine, "compute", too_much)
    words = ["pretrain", "digits/simsiam", *small, "train.epochs=1", "--quiet"]
    said = refused(*words, "train.batch_size=32", "--out", tmp_path / "run32")
    assert "too little memory for train.batch_size=32" in said
    batch = int(said.rpartition("tried and fits: try train.batch_size=")[2])
    assert batch == 8
    assert main([*words, f"train.batch_size={batch}", "--out", str(tmp_path / "run")]) == 0  # what it said fits
    most = 1
    said = refused(*words, "train.batch_size=32", "--out", tmp_path / "run1")
    assert "and even for 2: use a smaller model.backbone" in said


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_save_that_dies_between_two_renames_leaves_a_whole_checkpoint(
    dies_at: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, calls = os.replace, []

    def dying(*names: object) -> None:
        calls.append(names)
        if len(calls) == dies_at:
            raise KeyboardInterrupt
        rename(*names)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        Run(run).save_checkpoint({"epoch": 3})
    assert read_checkpoint(run / "checkpoint.pt")["epoch"] == 2
    assert read_checkpoint(run / "checkpoint.previous.pt")["epoch"] == (1 if dies_at == 1 else 2)
    assert not list(run.glob(".*.tmp"))


def test_a_torn_checkpoint_does_not_take_the_place_of_the_whole_one_before_it(run: Path) -> None:
    (run / "checkpoint.pt").write_bytes(b"torn")
    opened = Run.open(run)
    kept = opened.load_checkpoint()
    assert kept is not None
    opened.save_checkpoint({**kept, "epoch": 7})
    assert read_checkpoint(run / "checkpoint.pt")["epoch"] == 7
    assert read_checkpoint(run / "checkpoint.previous.pt")["epoch"] == 1
    opened.save_checkpoint({**kept, "epoch": 8})
    assert read_checkpoint(run / "checkpoint.previous.pt")["epoch"] == 7


def test_a_run_folder_among_the_images_is_refused_before_anything_is_written(
    tmp_path: Path, small: list[str], refused: Refuse
) -> None:
    root = tmp_path / "photos"
    for name in ("cat", "dog"):
        photos(root / name, 6)
    before = sorted(root.rglob("*"))
    words = on_folder(root, small)
    for out in (root, root / "cat"):
        assert "holds images, and a run is a folder of its own; choose another --out" in refused(*words, "--out", out)
    assert sorted(root.rglob("*")) == before
    first = root / "runs" / "first"
    assert main([*words, "--out", str(first)]) == 0  # a folder of its own, among them all the same
    said = refused(*on_folder(first, small), "--out", tmp_path / "other")
    assert "first is a run folder: no images are read there; name the folder they are in" in said


def test_what_is_measured_of_a_run_that_cannot_be_written_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "eval")
    (run / "eval").touch()  # no folder: nothing can be written there
    with pytest.warns(PrelaxWarning, match=r"not kept: cannot write .*eval: File exists$"):
        (found,) = evaluate(Run.open(run), ["knn"], device="cpu")
    assert found["accuracy"] > 0
    assert main(["evaluate", str(run), "-p", "knn", "--device", "cpu"]) == 0
    assert "the figures are in" not in capsys.readouterr().out
