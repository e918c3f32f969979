"""Whole runs on the digits: every method trains, and a run that was stopped ends as one that was not."""

import contextlib
import json
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
from prelax.loading import load, save_hub
from prelax.objectives import METHODS
from prelax.run import Run
from prelax.train import effective_rank, pretrain
from prelax.train.pretrain import interruptible, trouble, with_whole_paths

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


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_an_epoch(name: str, tmp_path: Path) -> None:
    run = pretrain(tiny(f"method.name={name}"), tmp_path / "run", progress=False)
    (line,) = run.metrics()
    assert line["epoch"] == 1
    assert all(value == value for value in line.values())
    assert run.load_backbone()["conv1.weight"].shape == (16, 1, 3, 3)


@pytest.mark.parametrize("base", ["byol", "simclr"])
@pytest.mark.parametrize("name", ["prelax-std", "prelax-rot", "prelax-all"])
def test_prelax_stands_on_every_base(name: str, base: str, tmp_path: Path) -> None:
    run = pretrain(tiny(f"method.name={name}", f"method.base={base}"), tmp_path / "run", progress=False)
    assert run.metrics()[0]["loss"] > 0


@pytest.mark.parametrize("relax", ["vertical-flip", "jigsaw", "crop", "blur", "free-rotation"])
def test_any_augmentation_can_be_relaxed(relax: str, tmp_path: Path) -> None:
    run = pretrain(tiny("method.name=prelax-rot", f"method.relax={relax}"), tmp_path / "run", progress=False)
    assert run.metrics()[0]["loss/rotpl"] > 0


@pytest.mark.parametrize("optimizer", ["lars", "adamw", "muon"])
def test_every_optimiser_trains(optimizer: str, tmp_path: Path) -> None:
    run = pretrain(tiny(f"train.optimizer={optimizer}", "train.lr=0.01"), tmp_path / "run", progress=False)
    assert run.metrics()[0]["loss"] > 0


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    one, two = (pretrain(tiny(), tmp_path / name, progress=False).load_backbone() for name in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = pretrain(resolve("digits/prelax-all", TINY, seed=1), tmp_path / "c", progress=False).load_backbone()
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])


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


SHARES = """
from torch import nn

class Net(nn.Sequential):
    features = 8

    def __init__(self, channels):
        layer = nn.Linear(8, 8)
        super().__init__(nn.Conv2d(channels, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer, nn.ReLU(), layer)
"""


def test_a_network_whose_layers_share_weights_is_kept_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sharing.py").write_text(SHARES)
    monkeypatch.chdir(tmp_path)
    run = pretrain(tiny("model.backbone=sharing:Net", "train.epochs=1"), tmp_path / "run", progress=False)
    images = torch.randint(256, (4, 1, 16, 16), dtype=torch.uint8)
    assert torch.equal(load(save_hub(run, tmp_path / "hub"))(images), load(run.path)(images))


BANDS = """
import torch
from torch import nn

class Net(nn.Module):
    features = 8

    def __init__(self, channels):
        super().__init__()
        self.over = nn.Sequential(nn.Conv3d(1, 8, (channels, 3, 3), 2), nn.BatchNorm3d(8), nn.AdaptiveAvgPool3d(1))
        self.register_buffer("window", torch.ones(1, 1, 1, 1, 1))

    def forward(self, images):
        return self.over(images[:, None] * self.window).flatten(1)
"""


def test_a_network_with_weights_of_five_dimensions_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bands.py").write_text(BANDS)
    monkeypatch.chdir(tmp_path)
    run = pretrain(tiny("model.backbone=bands:Net", "data.channels=1"), tmp_path / "run", progress=False)
    assert load(run.path)(torch.zeros(2, 1, 16, 16, dtype=torch.uint8)).shape == (2, 8)


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


@pytest.mark.parametrize("every", [1, 40])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint_there_is(
    every: int, tmp_path: Path
) -> None:
    changes = ("train.epochs=40", "train.lr=1e4", f"train.checkpoint_every={every}", "model.projector_last_norm=false")
    with pytest.raises(PrelaxError, match=r"Try a lower train\.turn, a lower train\.lr or train\.warmup") as raised:
        pretrain(tiny(*changes), tmp_path / "run", progress=False)
    assert ("checkpoint" in str(raised.value)) == (tmp_path / "run" / "checkpoint.pt").exists()
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["loss"] is None


def test_collapse_is_told_in_words() -> None:
    line = {"loss": 0.1, "embedding_std": 0.001, "effective_rank": 1.01}
    watched = tiny("train.stop_on_collapse=true")
    assert "collapsed" in trouble([line] * 10, watched, 32)
    assert trouble([line] * 9, watched, 32) is None  # it may pass
    assert trouble([line] * 10, tiny(), 32) is None
    assert trouble([line] * 9 + [{**line, "embedding_std": 0.9, "effective_rank": 12.0}], watched, 32) is None
    assert trouble([{**line, "embedding_std": 0.9}] * 10, watched, 2) is None  # two images span one direction
    assert trouble([{**line, "embedding_std": 0.8, "effective_rank": 1.4}] * 10, watched, 32) is None  # near one line


def test_effective_rank_counts_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(400, 3, generator=generator) @ torch.linalg.qr(torch.randn(20, 20, generator=generator))[0][:3]
    assert effective_rank(wide) == pytest.approx(3.0, abs=0.1)
    assert effective_rank(torch.ones(5, 4)) == pytest.approx(1.0, abs=1e-6)


def test_bfloat16_on_the_cpu_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="float32"):
        pretrain(tiny("train.precision=bfloat16"), tmp_path / "run", progress=False)


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    run = pretrain(tiny(), tmp_path / "run", progress=False)
    with run.lock(), pytest.raises(PrelaxError, match="another process"):
        pretrain(tiny(), tmp_path / "run", resume=True, progress=False)


def test_tensorboard_gets_the_same_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = pretrain(tiny("train.epochs=2", "train.watch=tensorboard"), tmp_path / "run", progress=False)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    seen = [(event.step, event.value) for event in events.Scalars("loss/sim")]
    assert seen == [(line["epoch"], pytest.approx(line["loss/sim"])) for line in run.metrics()]


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PrelaxError, match=r"prelax\[wandb\]"):
        pretrain(tiny("train.watch=wandb"), tmp_path / "run", progress=False)


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


def test_metrics_are_json_a_line_an_epoch(tmp_path: Path) -> None:
    run = pretrain(tiny("train.epochs=2"), tmp_path / "run", progress=False)
    lines = [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()]
    wanted = {"epoch", "loss", "loss/sim", "residual_norm", "embedding_std", "effective_rank", "lr", "images_per_s"}
    wanted |= {"seconds", "views_per_s", "data_wait"}
    assert [line["epoch"] for line in lines] == [1, 2]
    assert wanted <= lines[0].keys()
    assert os.path.exists(run.path / "checkpoint.pt")


def test_wandb_gets_one_run_of_its_own_and_resuming_adds_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = pretrain(tiny("train.watch=wandb"), tmp_path / "run", progress=False)
    pretrain(tiny("train.watch=wandb"), run.path, resume=True, progress=False)
    assert len({folder.name.rpartition("-")[2] for folder in run.path.glob("wandb/offline-run-*")}) == 1


def test_an_augmentation_refused_in_the_first_step_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="channel"):
        pretrain(tiny("method.relax=jitter"), tmp_path / "run", progress=False)
    pretrain(tiny(), tmp_path / "run", progress=False)


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
    pretrain(settings, run.path, resume=True, progress=False)
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
