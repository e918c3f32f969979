"""What an engine takes back, and what it refuses before a run folder is there."""

import contextlib
import copy
import importlib
import json
import math
import os
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from prelax.config import Settings, TrainSettings, resolve
from prelax.data import ImageSet, load_training
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.nets.norm import ViewNorm2d, keeps_views_apart
from prelax.run import Run
from prelax.train import Engine, Process, choose_device, pretrain
from prelax.train.devices import tf32
from prelax.train.norms import synchronise
from prelax.train.optim import load_optimizer, optimizer

CPU = torch.device("cpu")
TINY = [
    "data.limit=64",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.epochs=1",
    "train.checkpoint_every=1",
    "train.stop_on_collapse=false",
    "train.device=cpu",
    "train.watch=none",
]


def tiny(*changes: str, recipe: str = "digits/prelax-all") -> Settings:
    return resolve(recipe, [*TINY, *changes])


# -- taking a state back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 4)])
def test_a_state_is_taken_back_by_another_number_of_processes(before: int, after: int) -> None:
    settings = tiny()
    images = load_training(settings.data)
    one, other = (Engine(settings, images, CPU, Process(0, world)) for world in (before, after))
    one.run_epoch(1, 0, lambda done: True)
    other.load(one.state())
    assert other.run_epoch(1, 1, lambda done: False) == other.steps
    assert other.last_z is not None
    assert len(other.last_z) == 32 // after


@pytest.mark.parametrize(("process", "own"), [(Process(0, 2), 1.0), (Process(1, 2), 3.0), (Process(0, 1), 2.0)])
def test_each_process_goes_on_with_what_it_had_measured(process: Process, own: float) -> None:
    settings = tiny()
    engine = Engine(settings, load_training(settings.data), CPU, process)
    engine.load({**engine.state(), "sums": {"loss": torch.tensor([1.0, 3.0])}})  # of two processes
    assert engine.sums["loss"].item() == own


KINDS = ("fused", "capturable", "foreach")


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "muon"])
def test_an_optimiser_stays_as_it_was_built_whatever_it_takes_back(name: str) -> None:
    settings = TrainSettings(optimizer=name)

    def build(cuda: bool) -> torch.optim.Optimizer:
        built = optimizer(nn.Linear(3, 2), settings, CPU)
        for group in built.param_groups if cuda else ():  # as one on CUDA is
            group["lr"] = torch.tensor(group["lr"])
            group |= {key: True for key in KINDS if key in group and key != "foreach"}
        return built

    for cuda in (False, True):
        saved, built = build(not cuda), build(cuda)
        for group in saved.param_groups:
            group["weight_decay"] = 0.125
        wanted = [{key: group[key] for key in KINDS if key in group} for group in built.param_groups]
        load_optimizer(built, saved.state_dict())
        for group, kinds in zip(built.param_groups, wanted, strict=True):
            assert isinstance(group["lr"], torch.Tensor) is cuda
            assert {key: group[key] for key in kinds} == kinds
            assert group["weight_decay"] == 0.125


def test_a_run_begun_on_cuda_goes_on_with_a_rate_that_changes() -> None:
    settings = tiny("train.epochs=4")
    images = load_training(settings.data)
    engine = Engine(settings, images, CPU, Process())
    engine.run_epoch(1, 0, lambda done: False)
    state = engine.state()
    for group in state["optimizer"]["param_groups"]:
        group["lr"] = torch.tensor(group["lr"])
    other = Engine(settings, images, CPU, Process())
    other.load(state)
    assert all(isinstance(group["lr"], float) for group in other.optimizer.param_groups)
    other.run_epoch(2, 0, lambda done: False)
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(other.rates[2 * other.steps - 1])


def test_the_pretexts_fade_step_by_step_and_a_resumed_run_knows_how_far() -> None:
    settings = tiny("train.epochs=3", "method.gamma_end=0")
    images = load_training(settings.data)
    engine = Engine(settings, images, CPU, Process())
    seen: list[float] = []
    engine.run_epoch(1, 0, lambda done: bool(seen.append(engine.objective.share.item())))
    engine.run_epoch(2, 0, lambda done: bool(seen.append(engine.objective.share.item())))
    assert seen == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 5)) for step in range(4)])
    other = Engine(settings, images, CPU, Process())
    other.load(copy.deepcopy(engine.state()))
    for one in (engine, other):
        one.run_epoch(3, 0, lambda done: False)
        assert one.objective.share.item() == 0.0
    ours, theirs = engine.network.state_dict(), other.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_chosen_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("cuda:2") == torch.device("cuda", 2)
    assert current == [2]


def test_what_is_set_for_all_of_the_process_is_set_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with contextlib.suppress(KeyError), tf32():
        assert torch.backends.cuda.matmul.allow_tf32
        raise KeyError
    assert torch.backends.cuda.matmul.allow_tf32 == before


# -- BatchNorm of other people's backbones -----------------------------------------------------------------------------


class Peculiar(nn.BatchNorm2d):
    pass


def test_channels_whose_variance_decay_has_put_under_eps_are_measured() -> None:
    settings = tiny()
    engine = Engine(settings, load_training(settings.data), CPU, Process())
    engine.run_epoch(1, 0, lambda done: False)
    assert engine.measurements(engine.steps)["silent_channels"] == 0.0
    norms = [part for part in engine.network.backbone.modules() if isinstance(part, nn.BatchNorm2d)]
    norms[0].running_var[:4] = 1e-6
    share = 4 / sum(norm.num_features for norm in norms)
    assert engine.measurements(engine.steps)["silent_channels"] == pytest.approx(share)


def test_of_fewer_images_than_a_batch_each_process_has_as_many() -> None:
    settings = resolve("digits/simsiam", ["train.batch_size=512", "train.device=cpu"])
    images = ImageSet("some", torch.zeros(75, 1, 16, 16, dtype=torch.uint8), None, [])
    assert Engine(settings, images, torch.device("cpu"), Process(0, 2)).batch == 74


def test_plain_norms_are_synchronised_and_others_named() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Peculiar(4), nn.BatchNorm2d(4, momentum=None), ViewNorm2d(4)
    )
    names = list(net.state_dict())
    assert synchronise(net) == ["2"]
    assert isinstance(net[1], ViewNorm2d)
    assert isinstance(net[3], ViewNorm2d)
    assert list(net.state_dict()) == names
    assert keeps_views_apart(net[:2])
    assert synchronise(nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm3d(4), nn.LayerNorm(4))) == []


def test_a_network_of_one_size_alone_is_refused_other_views() -> None:
    pytest.importorskip("timm")
    settings = tiny("model.backbone=timm:mixer_s32_224", "method.name=prelax-crops", "augment.size=64")
    images = load_training(settings.data)
    with pytest.raises(PrelaxError, match=r"224 takes views of 64 px, not of 32: set augment\.small_size=64"):
        Engine(settings, images, CPU, Process())
    other = settings.model_copy(update={"augment": settings.augment.model_copy(update={"small_size": 64})})
    assert Engine(other, images, CPU, Process()).maker.small_size == 64
    odd = settings.model_copy(update={"augment": settings.augment.model_copy(update={"size": 24})})
    with pytest.raises(PrelaxError, match=r"backbone timm:mixer_s32_224 (takes|cannot take) views of "):
        Engine(odd, images, CPU, Process())


def test_views_too_small_for_a_network_are_refused_before_anything_is_trained() -> None:
    pytest.importorskip("timm")
    settings = tiny("model.backbone=timm:convnext_atto", "method.name=prelax-crops", "augment.size=32")
    images = load_training(settings.data)
    with pytest.raises(
        PrelaxError, match=r"cannot take views of 16 px \(.*\): set augment\.small_size to what it takes"
    ):
        Engine(settings, images, CPU, Process())
    other = settings.model_copy(update={"augment": settings.augment.model_copy(update={"small_size": 32})})
    assert Engine(other, images, CPU, Process()).maker.small_size == 32


NO_VECTORS = """
from torch import nn

class Unpooled(nn.Conv2d):
    features = 8

    def __init__(self, channels):
        super().__init__(channels, 8, 3, 2)

class Narrow(nn.Sequential):
    features = 9

    def __init__(self, channels):
        super().__init__(nn.Conv2d(channels, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

class Picky(Narrow):
    def forward(self, images):
        return {32: super().forward}[images.shape[-1]](images)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unpooled", r"gives 2 x 8 x 7 x 7 .* 2 x 8"),
        ("Narrow", "2 x 8 .* 2 x 9"),
        ("Picky", r"cannot take views of 16 px \(16\): set augment\.size to what it takes, or mend the network"),
    ],
)
def test_a_backbone_that_gives_no_vectors_of_its_width_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    (tmp_path / "no_vectors.py").write_text(NO_VECTORS)
    monkeypatch.chdir(tmp_path)
    settings = tiny(f"model.backbone=no_vectors:{name}")
    with pytest.raises(PrelaxError, match=said):
        Engine(settings, load_training(settings.data), CPU, Process())


def test_one_image_is_too_few_whatever_the_batch() -> None:
    settings = tiny("train.batch_size=2", "data.limit=1")
    with pytest.raises(PrelaxError, match=r"digits has 1 image to train on under data\.limit=1"):
        Engine(settings, load_training(settings.data), CPU, Process())


@pytest.mark.parametrize(("batch", "processes", "said"), [(33, 2, "use 32 or 34, "), (2, 2, "use 4 or more")])
def test_a_batch_that_does_not_divide_is_told_which_do(batch: int, processes: int, said: str) -> None:
    settings = tiny(f"train.batch_size={batch}")
    with pytest.raises(PrelaxError, match=said):
        Engine(settings, load_training(settings.data), CPU, Process(0, processes))


def test_timms_norm_with_an_activation_computes_what_it_did() -> None:
    layers = pytest.importorskip("timm.layers")
    one, two = layers.BatchNormAct2d(4), layers.BatchNormAct2d(4)
    assert synchronise(two) == []
    assert type(two) is not type(one)
    x = torch.randn(6, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(one(x), two(x))
    assert torch.equal(one.eval()(x), two.eval()(x))


# -- refused, and nothing left behind ----------------------------------------------------------------------------------


def photos(root: Path, count: int, shade: int = 0) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (16, 16), (number, shade, 0)).save(root / f"{number:02d}.png")
    return root


def of_folder(root: Path, *changes: str) -> Settings:
    own = [word for word in TINY if not word.startswith(("data.limit", "train.batch_size"))]
    here = [f"data.root={root}", f"data.cache={root}-cache", "data.workers=0", "data.test_fraction=0"]
    return resolve("folder", [*here, *own, "train.batch_size=8", "model.backbone=resnet8", *changes])


@pytest.mark.parametrize("change", ["method.name=supervised", "train.knn_every=1", "train.precision=bfloat16"])
def test_a_refused_start_leaves_nothing_and_the_mended_command_runs(change: str, tmp_path: Path) -> None:
    root, out = photos(tmp_path / "photos", 16), tmp_path / "run"
    with pytest.raises(PrelaxError):
        pretrain(of_folder(root, change), out, progress=False)
    assert not out.exists()
    assert pretrain(of_folder(root), out, progress=False).metrics()


def test_too_little_memory_leaves_a_folder_in_which_the_mended_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    step = Engine.compute

    def too_much(engine: Engine) -> None:
        if engine.batch > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(engine)

    monkeypatch.setattr(Engine, "compute", too_much)
    with pytest.raises(PrelaxError, match=r"try train\.batch_size=8"):
        pretrain(tiny(), tmp_path / "run", progress=False)
    run = pretrain(tiny("train.batch_size=8"), tmp_path / "run", progress=False)
    assert len(run.metrics()) == 1
    assert (run.path / "notes.txt").read_text() == "mine"


def test_supervised_says_how_many_images_have_no_label() -> None:
    labels = torch.arange(40) % 4 - 1
    images = ImageSet("folder", torch.zeros(40, 1, 16, 16, dtype=torch.uint8), labels, ["a", "b", "c"])
    with pytest.raises(PrelaxError, match="10 of 40 have none; label them"):
        Engine(tiny("method.name=supervised"), images, CPU, Process())


# -- the same images ---------------------------------------------------------------------------------------------------


def test_other_images_of_the_same_number_are_refused_and_the_record_stays(tmp_path: Path) -> None:
    root, out = photos(tmp_path / "photos", 16), tmp_path / "run"
    run = pretrain(of_folder(root), out, progress=False)
    record = (out / "data.json").read_bytes()
    before = os.stat(out / "data.json").st_mtime_ns
    pretrain(of_folder(root), out, resume=True, progress=False)
    assert os.stat(out / "data.json").st_mtime_ns == before
    others = photos(tmp_path / "others", 16, shade=9)
    with pytest.raises(PrelaxError, match="the images are not those"):
        pretrain(of_folder(others), out, resume=True, progress=False)
    assert (out / "data.json").read_bytes() == record
    (out / "data.json").unlink()  # as it says
    pretrain(of_folder(others), out, resume=True, progress=False)
    assert json.loads((run.path / "data.json").read_text())["digest"] != json.loads(record)["digest"]


# -- what is written beside --------------------------------------------------------------------------------------------


def test_a_disk_too_full_for_tensorboard_is_one_warning_and_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter
    flush, calls = writer.flush, []

    def full(self: object) -> None:
        calls.append(self)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        flush(self)

    monkeypatch.setattr(writer, "flush", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = pretrain(tiny("train.watch=tensorboard", "train.epochs=4"), tmp_path / "run", progress=False)
    said = [str(one.message) for one in caught if issubclass(one.category, PrelaxWarning)]
    assert len(said) == 1
    assert "tensorboard is left out" in said[0]
    assert "No space left" in said[0]
    assert len(run.metrics()) == 4
    assert run.load_backbone()


def test_a_folder_tensorboard_cannot_have_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("not a folder")
    with pytest.warns(PrelaxWarning, match="tensorboard is left out"):
        run = pretrain(tiny("train.watch=tensorboard"), tmp_path / "run", progress=False)
    assert len(run.metrics()) == 1


def test_what_killed_processes_left_half_written_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    run = pretrain(tiny(), tmp_path / "run", progress=False)
    left = [run.path / f".{name}.123.tmp" for name in ("checkpoint.pt", "checkpoint.previous.pt", "data.json")]
    others = [run.path / name for name in (".mine.tmp", ".vectors.npz.123.tmp", ".checkpoint.pt.tmp")]
    for path in (*left, *others):
        path.write_bytes(b"half")
    pretrain(tiny(), run.path, resume=True, progress=False)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    assert Run.open(run.path).load_checkpoint()
