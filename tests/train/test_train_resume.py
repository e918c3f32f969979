"""A run that was stopped, killed, measured or moved on its way ends as one that never was; what cannot, is refused."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prelax.config import Settings, resolve
from prelax.data import Store
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.evaluate import evaluate
from prelax.evaluate.effects import effects
from prelax.loading import load
from prelax.run import Run
from prelax.train import pretrain
from prelax.train.pretrain import interruptible
from prelax.train.settled import with_whole_paths

TINY = [
    "data.limit=96",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.epochs=1",
    "train.stop_on_collapse=false",
    "train.device=cpu",
    "train.watch=none",
]


def tiny(*changes: str, recipe: str = "digits/prelax-all") -> Settings:
    return resolve(recipe, [*TINY, *changes])


RUN = """
import pathlib, sys, torch
from prelax.config import resolve
from prelax.train import pretrain
torch.set_num_threads(1)
out = pathlib.Path(sys.argv[1])
pretrain(resolve("digits/prelax-all", sys.argv[2:]), out, resume=(out / "config.yaml").exists(), progress=False)
"""


def measured(run: Run) -> list[dict[str, float]]:
    """The metrics without the clock's."""
    clock = ("seconds", "images_per_s", "views_per_s", "data_wait")
    return [{k: v for k, v in line.items() if k not in clock} for line in run.metrics()]


def start(out: Path, *changes: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUN, str(out), *TINY, *changes], stderr=subprocess.PIPE)


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_run_killed_anywhere_and_resumed_ends_bit_for_bit_as_one_never_stopped(
    optimizer: str, tmp_path: Path
) -> None:
    changes = ["train.epochs=8", "train.checkpoint_every=1", "method.base=byol", f"train.optimizer={optimizer}"]
    assert start(tmp_path / "whole", *changes).wait() == 0
    whole, dice = Run.open(tmp_path / "whole"), random.Random()
    kills = 0
    while not (tmp_path / "torn" / "backbone.safetensors").exists():
        process = start(tmp_path / "torn", *changes)
        metrics = tmp_path / "torn" / "metrics.jsonl"
        if kills < 3:
            lines = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) <= lines):
                time.sleep(0.01)  # let it get somewhere, then strike at any moment
            time.sleep(dice.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            kills += 1
            process.wait()
        else:
            assert process.wait() == 0, process.stderr.read().decode()
    torn = Run.open(tmp_path / "torn")
    assert measured(torn) == measured(whole)
    a, b = torn.load_checkpoint(), whole.load_checkpoint()
    for name, value in a["network"].items():
        assert torch.equal(value, b["network"][name]), name


DROPS = """
from torch import nn

class Net(nn.Sequential):
    features = 8

    def __init__(self, channels):
        super().__init__(nn.Conv2d(channels, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5))
"""


def test_a_network_with_dropout_goes_on_as_if_it_had_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dropping.py").write_text(DROPS)
    monkeypatch.chdir(tmp_path)
    settings = tiny("model.backbone=dropping:Net", "train.epochs=2")
    before = torch.random.get_rng_state()
    whole = pretrain(settings, tmp_path / "whole", progress=False)
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's own draws are not disturbed
    with monkeypatch.context() as patched:
        patched.setattr(
            sys.modules["prelax.train.pretrain"], "interruptible", lambda: contextlib.nullcontext(lambda: True)
        )
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, tmp_path / "torn", progress=False)
    torch.rand(3)  # whatever else the process draws
    torn = pretrain(settings, tmp_path / "torn", resume=True, progress=False)
    assert measured(torn) == measured(whole)
    other = pretrain(tiny("model.backbone=dropping:Net", "train.epochs=2"), tmp_path / "other", progress=False)
    assert measured(other) == measured(whole)


def test_ctrl_c_leaves_a_checkpoint_at_the_step_it_came_to(tmp_path: Path) -> None:
    changes = ["train.epochs=2000", "train.checkpoint_every=1000"]
    process = start(tmp_path / "run", *changes)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    state = Run.open(tmp_path / "run").load_checkpoint()
    assert state is not None
    assert state["epoch"] >= 2


@pytest.mark.parametrize("started", ["in a terminal", "with nohup"])
def test_a_closed_terminal_stops_a_run_between_steps_unless_it_was_started_with_nohup(started: str) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if started == "with nohup" else signal.SIG_DFL)
    try:
        with interruptible() as interrupted:
            assert not interrupted()
            for _ in range(2):  # the shell passes it on
                os.kill(os.getpid(), signal.SIGHUP)
            assert interrupted() is (started == "in a terminal")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    run = pretrain(tiny("train.epochs=2", "train.checkpoint_every=1"), tmp_path / "run", progress=False)
    path = run.path / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    assert run.load_checkpoint()["epoch"] == 1
    assert "damaged" in (run.path / "log.txt").read_text()
    path.write_bytes(bytes(data[: len(data) // 3]))
    assert run.load_checkpoint()["epoch"] == 1


def test_settings_that_would_make_it_another_run_are_refused_by_name(tmp_path: Path) -> None:
    pretrain(tiny(), tmp_path / "run", progress=False)
    with pytest.raises(PrelaxError, match=r"method\.alpha was 1\.0"):
        pretrain(tiny("method.alpha=0.5"), tmp_path / "run", resume=True, progress=False)
    with pytest.raises(PrelaxError, match="already holds a run"):
        pretrain(tiny(), tmp_path / "run", progress=False)


def test_settings_that_were_changed_by_hand_are_refused_by_name(tmp_path: Path) -> None:
    run = pretrain(tiny("train.epochs=2", "train.checkpoint_every=1"), tmp_path / "run", progress=False)
    config = run.path / "config.yaml"
    written = config.read_text()
    (run.path / "backbone.safetensors").unlink()
    for was, now, said in (
        ("  lr: ", "  lr: 9.5  # was ", r"was trained with train\.lr=.* and config\.yaml says 9\.5"),
        ("  epochs: 2", "  epochs: 1", "is not of this training"),
    ):
        assert written.count(f"\n{was}") == 1
        config.write_text(written.replace(f"\n{was}", f"\n{now}"))
        with pytest.raises(PrelaxError, match=said):
            pretrain(run.settings, run.path, resume=True, progress=False)
    config.write_text(written.replace("knn_every: 0", "knn_every: 2"))  # which may be changed
    pretrain(run.settings, run.path, resume=True, progress=False)
    assert (run.path / "backbone.safetensors").is_file()


def test_a_probe_during_training_changes_no_bit_of_it(tmp_path: Path) -> None:
    plain, probed = (
        pretrain(tiny("train.epochs=3", f"train.knn_every={n}"), tmp_path / str(n), progress=False) for n in (0, 1)
    )
    lines = measured(probed)
    assert all(line.pop("knn") > 0 for line in lines)
    assert lines == measured(plain)
    one, two = (run.load_checkpoint() for run in (plain, probed))
    assert one is not None
    assert two is not None
    assert all(torch.equal(value, two["network"][name]) for name, value in one["network"].items())


def test_a_probe_that_fails_costs_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*given: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")

    plain = pretrain(tiny("train.epochs=3"), tmp_path / "plain", progress=False)
    monkeypatch.setattr("prelax.evaluate.probe.backbone_knn", too_much)
    with pytest.warns(PrelaxWarning, match=r"the kNN probe after epoch 2 failed \(CUDA out of memory\..* no more"):
        run = pretrain(tiny("train.epochs=3", "train.knn_every=2"), tmp_path / "run", progress=False)
    assert measured(run) == measured(plain)
    assert "the kNN probe after epoch 2 failed" in (run.path / "log.txt").read_text()


def test_the_same_images_in_another_order_are_refused(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / "photos").mkdir(exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i:03d}.png")
    folder = [*TINY[1:], f"data.root={tmp_path}/photos", "data.test_fraction=0", "train.batch_size=20"]
    settings = resolve("folder", [*folder, "model.backbone=resnet8", "data.image_size=16"])
    pretrain(settings, tmp_path / "run", progress=False)
    for i in range(40):
        (tmp_path / "photos" / f"{i:03d}.png").rename(tmp_path / "photos" / f"{i:03d}.moved")
    for i in range(40):
        (tmp_path / "photos" / f"{i:03d}.moved").rename(tmp_path / "photos" / f"{39 - i:03d}.png")
    with pytest.raises(PrelaxError, match="not in the order"):
        pretrain(settings, tmp_path / "run", resume=True, progress=False)


def test_a_run_that_was_stopped_can_be_used_and_what_was_measured_of_it_goes_when_it_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny("train.epochs=3", "train.checkpoint_every=1")
    with monkeypatch.context() as patched:
        patched.setattr(
            sys.modules["prelax.train.pretrain"], "interruptible", lambda: contextlib.nullcontext(lambda: True)
        )
        with pytest.raises(KeyboardInterrupt):  # after the first step
            pretrain(settings, tmp_path / "run", progress=False)
    run = Run.open(tmp_path / "run")
    with pytest.warns(PrelaxWarning, match="after epoch 0 of 3"):
        early = load(run.path).backbone.conv1.weight.clone()
    with pytest.warns(PrelaxWarning):
        evaluate(run, ["knn"], device="cpu")
    with pytest.warns(PrelaxWarning):
        effects(run, operations=["rotation"], draws=1, device="cpu", images=20)
    assert all(result["unfinished"] for result in run.evals().values())
    assert len(run.evals()) == 2
    (run.path / "report.html").write_text("of an epoch that is past")
    heard: list[str] = []
    pretrain(settings, run.path, resume=True, progress=False, say=heard.append)
    told = "removed, being of the run before it was finished: eval/effects.json, eval/knn.json, report.html"
    assert heard == ["going on after 0 of 3 epochs", told]
    assert told in (run.path / "log.txt").read_text()
    assert run.evals() == {}
    assert not (run.path / "report.html").exists()
    assert not torch.equal(load(run.path).backbone.conv1.weight, early)


def test_pixels_that_cannot_be_read_any_more_cost_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, gather = iter(range(100)), Store._gather

    def fails(store: Store, indices: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if next(reads) == 4:  # three steps an epoch
            raise PrelaxError("the cached pixels were cut short")
        return gather(store, indices, out)

    monkeypatch.setattr(Store, "_gather", fails)
    settings = tiny("data.store=disk", "train.epochs=2", "train.checkpoint_every=100")
    with pytest.raises(PrelaxError, match=r"cut short; `prelax pretrain .* --resume` goes on from epoch 2, step 1$"):
        pretrain(settings, tmp_path / "run", progress=False)
    state = Run.open(tmp_path / "run").load_checkpoint()
    assert state is not None
    assert (state["epoch"], state["step"]) == (1, 1)


def test_places_of_data_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = with_whole_paths(tiny("data.root=photos", "data.labels=a.csv")).data
    assert (data.root, data.labels, data.test_root) == (tmp_path / "photos", tmp_path / "a.csv", None)
    several = "s-{0..4}.tar::pipe:cat x.tar::https://host/s.tar"
    assert with_whole_paths(tiny(f"data.shards={several}")).data.shards == f"{tmp_path}/{several}"
    for whole in ("{/a/s,/b/s}.tar", "{x/s,/b/s}.tar", "/a/s.tar"):
        assert with_whole_paths(tiny(f"data.shards={whole}")).data.shards == whole
    assert with_whole_paths(tiny("data.shards={a,b}.tar")).data.shards == f"{tmp_path}/{{a,b}}.tar"


def test_what_resuming_may_change_is_kept_for_the_next_time(tmp_path: Path) -> None:
    run = pretrain(tiny("train.knn_every=1"), tmp_path / "run", progress=False)
    words = ["train.checkpoint_every=3", "train.stop_on_collapse=true", "evaluate.knn_k=5", "data.workers=0"]
    before = run.settings
    pretrain(tiny("train.knn_every=1", *words), run.path, resume=True, progress=False)
    after = run.settings
    assert (after.train.checkpoint_every, after.train.stop_on_collapse, after.data.workers) == (3, True, 0)
    assert (after.evaluate.knn_k, after.train.knn_every) == (5, 1)
    assert (after.method, after.model, after.recipe) == (before.method, before.model, before.recipe)
