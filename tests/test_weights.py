"""A backbone may begin with weights that were trained before: of a run, of a file, or published."""

import argparse
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prelax.cli import main
from prelax.config import Settings, resolve
from prelax.data import load as load_data
from prelax.errors import PrelaxError
from prelax.evaluate import evaluate
from prelax.evaluate.curves import forgot
from prelax.evaluate.protocols import notes
from prelax.loading import load, save_hub
from prelax.nets import backbone
from prelax.report import report
from prelax.run import Run
from prelax.train import pretrain
from prelax.weights import Weights, by_name, fitted, for_channels, network_of, read_weights

TINY = [
    "data.limit=96",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.epochs=1",
    "train.device=cpu",
    "train.watch=none",
]


def tiny(*changes: str) -> Settings:
    return resolve("digits/prelax-all", [*TINY, *changes])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(tiny(), tmp_path_factory.mktemp("trained") / "run", progress=False)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def still(run: Run, *changes: str) -> Settings:
    """A run whose weights do not move: a rate of nothing, as near as settings allow, and no decay."""
    pairs = [f"model.weights={run.path}", "train.optimizer=sgd", "train.lr=1e-30", "train.weight_decay=0", "seed=1"]
    return tiny(*pairs, *changes)


@pytest.mark.parametrize("base", ["simsiam", "byol"])
def test_a_run_begins_with_the_weights_of_another(trained: Run, base: str, tmp_path: Path) -> None:
    run = pretrain(still(trained, f"method.base={base}"), tmp_path / "run", progress=False)
    source = trained.load_backbone()
    began = run.load_start()
    assert began is not None
    assert same(began, source)
    ended = run.load_backbone()
    weights = [key for key in source if "running" not in key and "num_batches" not in key]
    assert all(torch.equal(ended[key], source[key]) for key in weights)
    if base == "byol":  # the target follows from the same place
        network = torch.load(run.path / "checkpoint.pt", weights_only=True)["network"]
        assert all(torch.allclose(network[f"target.backbone.{key}"], source[key], atol=1e-5) for key in weights)


def test_a_run_that_was_stopped_before_its_first_checkpoint_needs_the_source_no_more(
    trained: Run, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(trained.path, tmp_path / "source"))
    settings = tiny(f"model.weights={source}", "seed=3")
    whole = pretrain(settings, tmp_path / "run", progress=False).load_backbone()
    for name in ("checkpoint.pt", "backbone.safetensors", "metrics.jsonl"):
        (tmp_path / "run" / name).unlink()
    shutil.rmtree(source)
    assert same(pretrain(settings, tmp_path / "run", resume=True, progress=False).load_backbone(), whole)


def test_a_finished_run_goes_on_without_the_weights_it_began_with(trained: Run, tmp_path: Path) -> None:
    settings = tiny(f"model.weights={trained.path}", "seed=3")
    run = pretrain(settings, tmp_path / "run", progress=False)
    (run.path / "start.safetensors").unlink()
    whole = run.load_backbone()
    assert same(pretrain(run.settings, run.path, resume=True, progress=False).load_backbone(), whole)


def test_a_relative_place_is_kept_whole(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.path.parent)
    run = pretrain(tiny("model.weights=run"), tmp_path / "run", progress=False)
    assert run.settings.model.weights == str(trained.path)


@pytest.mark.parametrize("prefix", ["", "module.encoder_q.", "online.backbone."])
@pytest.mark.parametrize("form", ["safetensors", "state", "checkpoint", "old"])
def test_files_of_others_are_read(form: str, prefix: str, tmp_path: Path) -> None:
    net = backbone("resnet8", channels=1)
    state = {prefix + key: value for key, value in net.state_dict().items()}
    state |= {f"{prefix}fc.weight": torch.zeros(10, 64), f"{prefix}fc.bias": torch.zeros(10)}
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pth")
    if form == "safetensors":
        save_file(state, path)
    elif form == "state":
        torch.save(state, path)
    elif form == "checkpoint":  # with an optimiser's state and a queue beside
        optimizer = {"state": {0: {"momentum_buffer": torch.zeros(3)}}}
        torch.save({"epoch": 9, "queue": torch.zeros(4), "state_dict": state, "optimizer": optimizer}, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=False)
    weights = read_weights(str(path))
    assert weights.backbone == "resnet8"
    assert same(fitted(weights, backbone("resnet8", channels=1), "resnet8", 1, 16), net.state_dict())


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet34", "resnet50"])
@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_weights_say_which_network_and_stem_they_are_of(name: str, stem: str) -> None:
    state = backbone(name, stem).state_dict()
    weights = Weights("weights", state, network_of(state))
    assert weights.backbone == name
    assert weights.stem == (None if name == "resnet8" else stem)


@pytest.mark.parametrize("start", ["", "backbone.", "module.encoder_k.0."])
@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_weights_whose_parts_are_numbered_are_a_resnets(stem: str, start: str, tmp_path: Path) -> None:
    net = backbone("resnet18", stem)
    listed = nn.Sequential(*list(net.children())[:-1])  # how lightly's examples and many others cut a classifier off
    state = {start + key: value for key, value in listed.state_dict().items()}
    state |= {"projection_head.0.weight": torch.zeros(4, 512), "projection_head.1.weight": torch.zeros(4)}
    torch.save({"state_dict": state}, tmp_path / "listed.ckpt")
    weights = read_weights(str(tmp_path / "listed.ckpt"))
    assert (weights.backbone, weights.stem) == ("resnet18", stem)
    assert same(fitted(weights, backbone("resnet18", stem), "resnet18", 3, 64), net.state_dict())


def test_both_networks_of_a_numbered_pair_get_names() -> None:
    listed = nn.Sequential(*list(backbone("resnet18").children())[:-1]).state_dict()
    pair = {f"{of}.{key}": value for of in ("encoder_q", "encoder_k") for key, value in listed.items()}
    names = by_name(pair)
    assert len(names) == len(pair)
    assert sum(key.endswith(".layer4.1.conv2.weight") for key in names) == 2
    assert not any(re.match(r"encoder_[qk]\.\d", key) for key in names)


def test_a_network_of_ones_own_whose_parts_are_numbered_takes_its_weights_as_they_are() -> None:
    net = nn.Sequential(*list(backbone("resnet18", "small").children())[:-1])
    assert same(fitted(Weights("w", net.state_dict(), "mine:Net"), net, "mine:Net", 3, 32), net.state_dict())


def test_a_folder_run_takes_network_and_stem_from_the_weights(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for n in range(8):
        Image.new("RGB", (40, 40), (30 * n, 5, 200)).save(tmp_path / "photos" / f"{n}.png")
    save_file(backbone("resnet18", "imagenet").state_dict(), tmp_path / "weights.safetensors")
    pairs = [f"data.root={tmp_path / 'photos'}", f"data.cache={tmp_path / 'cache'}", "data.test_fraction=0"]
    pairs += [f"model.weights={tmp_path / 'weights.safetensors'}", "train.device=cpu", "train.epochs=1"]
    said: list[str] = []
    run = pretrain(resolve("folder", pairs), tmp_path / "run", progress=False, say=said.append)
    assert run.settings.model.backbone == "resnet18"
    assert run.settings.train.turn == 0.01  # a fifth of what random weights get
    assert run.settings.model.stem == "imagenet"  # views of 32 px would have had the small one
    assert any("weights.safetensors" in line for line in said)
    again = pretrain(resolve("folder", pairs), run.path, resume=True, progress=False)  # what was chosen is kept
    assert again.settings == run.settings
    assert load(run.path).backbone.conv1.weight.shape == (64, 3, 7, 7)  # type: ignore[union-attr]


def test_grey_images_are_seen_as_colour_images_whose_colours_are_alike() -> None:
    torch.manual_seed(0)
    colour = backbone("resnet8", channels=3)
    grey = backbone("resnet8", channels=1)
    grey.load_state_dict(fitted(Weights("it", colour.state_dict(), "resnet8"), grey, "resnet8", 1, 16))
    images = torch.randn(4, 1, 16, 16)
    with torch.no_grad():
        assert torch.allclose(grey.eval()(images), colour.eval()(images.expand(-1, 3, -1, -1)), atol=1e-5)


def test_filters_for_more_channels_give_as_much_of_images_whose_channels_are_alike() -> None:
    filters = torch.rand(4, 3, 3, 3)
    assert torch.allclose(for_channels(filters, 6).sum(1), filters.sum(1), atol=1e-6)


def test_weights_of_torchvision_are_found_in_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    place = tmp_path / "hub" / "checkpoints"
    place.mkdir(parents=True)
    net = torchvision.models.resnet18()
    name = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save(net.state_dict(), place / name)  # its classifier among them
    state = fitted(read_weights("pretrained"), backbone("resnet18", "imagenet"), "resnet18", 3, 64)
    assert torch.equal(state["layer4.1.conv2.weight"], net.layer4[1].conv2.weight)
    assert "fc.weight" not in state


def test_weights_of_timm_are_found_in_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    name = "test_resnet.r160_in1k"
    net = timm.create_model(name)
    model, commit = tmp_path / f"models--{net.pretrained_cfg['hf_hub_id'].replace('/', '--')}", "0" * 40
    for folder in ("refs", f"snapshots/{commit}"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    save_file(net.state_dict(), model / "snapshots" / commit / "model.safetensors")
    ours = backbone(f"timm:{name}", channels=1, image_size=32)
    weights = read_weights("pretrained", f"timm:{name}")
    state = fitted(weights, ours, f"timm:{name}", 1, 32)
    deep = next(key for key in reversed(state) if state[key].ndim == 4)
    assert torch.equal(state[deep], net.state_dict()[deep])


@pytest.mark.parametrize("name", ["tresnet_m", "pit_ti_224"])
def test_a_network_takes_its_own_weights_whatever_its_first_tensor_is(name: str) -> None:
    pytest.importorskip("timm")
    net = backbone(f"timm:{name}", channels=3, image_size=224)
    assert same(fitted(Weights("w", net.state_dict(), None), net, f"timm:{name}", 3, 224), net.state_dict())


def test_what_cannot_be_fetched_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(PrelaxError, match=r"resnet18.*cannot be fetched.*name a file of weights"):
        read_weights("pretrained")
    timm = pytest.importorskip("timm")
    assert timm.is_model("test_vit")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PrelaxError, match=r"test_vit cannot be fetched.*name a file of weights") as error:
        read_weights("pretrained", "timm:test_vit")
    assert "\n" not in str(error.value)
    with pytest.raises(PrelaxError, match=r"nobody publishes weights of resnet8"):
        read_weights("pretrained", "resnet8")


def test_weights_of_another_network_are_refused_by_name(trained: Run, tmp_path: Path) -> None:
    deeper = backbone("resnet34", "small").state_dict()
    with pytest.raises(PrelaxError, match=r"not of a resnet18: layer1\.2\.conv1\.weight is not one of its names"):
        fitted(Weights("w", deeper, "resnet34"), backbone("resnet18", "small"), "resnet18", 3, 32)
    with pytest.raises(PrelaxError, match=r"not of a resnet34: .* is missing"):
        fitted(Weights("w", backbone("resnet18").state_dict(), "resnet18"), backbone("resnet34"), "resnet34", 3, 96)
    large = Weights("w", backbone("resnet18", "imagenet").state_dict(), "resnet18")
    with pytest.raises(PrelaxError, match=r"conv1\.weight is 64x3x7x7, it should be 64x3x3x3"):
        fitted(large, backbone("resnet18", "small"), "resnet18", 3, 32)
    settings = tiny(f"model.weights={trained.path}", "model.backbone=resnet18")
    with pytest.raises(
        PrelaxError, match=r"of a resnet8, and model\.backbone is resnet18: set model\.backbone=resnet8"
    ):
        pretrain(settings, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "config.yaml").exists()  # the mended command may take the folder


def test_what_holds_no_weights_is_refused_in_one_line(tmp_path: Path) -> None:
    for name, how in {
        "gone.pth": "no run folder and no file of weights",
        "empty.pth": "cannot be read",
        "text.safetensors": "cannot be read",
        "code.pth": r"holds more than weights .* save the weights alone",
        "list.pth": "holds no weights by name",
    }.items():
        path = tmp_path / name
        if name == "empty.pth":
            path.touch()
        elif name == "text.safetensors":
            path.write_text("weights")
        elif name == "code.pth":
            torch.save({"args": argparse.Namespace(lr=1), "state_dict": nn.Linear(1, 1).state_dict()}, path)
        elif name == "list.pth":
            torch.save([torch.zeros(1)], path)
        with pytest.raises(PrelaxError, match=how) as error:
            read_weights(str(path))
        assert "\n" not in str(error.value)
        assert "weights_only" not in str(error.value)  # no advice to let a file run its code
    with pytest.raises(PrelaxError, match="not a run folder"):
        read_weights(str(tmp_path))


def test_figures_come_with_those_of_the_weights_it_began_with(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pretrain(tiny(f"model.weights={trained.path}", "seed=5"), tmp_path / "run", progress=False)
    before = evaluate(trained, ["knn", "logistic"], device="cpu")
    after = evaluate(run, ["knn", "logistic"], device="cpu")
    assert [result["start"] for result in after] == [result["accuracy"] for result in before]
    assert "start" not in before[0]
    assert main(["evaluate", str(run.path), "--protocol", "knn"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"as it began %", table)
    assert f"{before[0]['accuracy']:.1f}" in table
    page = report([run.path], out=tmp_path / "page.html", points=50, device="cpu").read_text()
    assert f"as it began {before[1]['accuracy']:.1f}" in page


def test_test_images_that_the_weights_have_seen_are_left_out_and_what_is_not_known_is_said(tmp_path: Path) -> None:
    pixels = torch.randint(256, (60, 20, 20, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for n, image in enumerate(pixels):
        for tree in ("all",) if n % 3 else ("all", "some"):
            (tmp_path / tree / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.numpy()).save(tmp_path / tree / "ab"[n % 2] / f"{n}.png")
    common = ["model.backbone=resnet8", f"data.cache={tmp_path / 'cache'}", *TINY[1:]]

    def run(name: str, tree: str, *changes: str) -> Run:
        pairs = [f"data.root={tmp_path / tree}", *common, *changes]
        return pretrain(resolve("folder", pairs), tmp_path / name, progress=False)

    archive = run("archive", "some", "data.test_fraction=0")
    held = "data.test_fraction=0.3"
    for name, before in (("begun", archive), ("again", None)):  # what they had seen goes with the weights
        begun = run(name, "all", f"model.weights={(before or Run(tmp_path / 'begun')).path}", held)
        (result,) = evaluate(begun, ["knn"], device="cpu")
        left = [path for path in load_data(begun.settings.data, "test").paths or [] if int(Path(path).stem) % 3]
        assert result["test_images"] == len(left) > 1
        assert result["test_images_left_out_as_seen"] > 0
        assert result["pretraining_images_verified"]
        assert not any("not known" in note for note in notes(result))
    other = run("other", "all", f"model.weights={archive.path / 'backbone.safetensors'}", held)
    (result,) = evaluate(other, ["knn"], device="cpu")
    assert result["test_images_left_out_as_seen"] == 0
    assert not result["pretraining_images_verified"]
    assert any("What the weights it began with were trained on is not known" in note for note in notes(result))
    run("greedy", "all", "data.test_fraction=0")
    late = run("late", "all", f"model.weights={tmp_path / 'greedy'}", held)
    with pytest.raises(PrelaxError, match="were in pre-training"):
        evaluate(late, ["knn"], device="cpu")


def test_weights_of_a_network_that_is_not_known_are_told_before_the_images_are_read(tmp_path: Path) -> None:
    torch.save({"features.0.weight": torch.zeros(2, 3, 3, 3)}, tmp_path / "vgg.pth")
    settings = resolve("folder", [f"data.root={tmp_path / 'gone'}", f"model.weights={tmp_path / 'vgg.pth'}"])
    with pytest.raises(PrelaxError, match=r"vgg\.pth: .* no network .* \(the first is features\.0\.weight\)"):
        pretrain(settings, tmp_path / "run", progress=False)


@pytest.mark.parametrize(("now", "worse"), [(46.2, True), (88.0, False), (90.0, False)])
def test_the_doctor_names_a_run_that_is_worse_than_it_began(now: float, worse: bool) -> None:
    result = {"protocol": "knn", "dataset": "digits", "accuracy": now, "start": 89.0, "test_images": 500}
    found = forgot({"knn": result}, tiny("train.optimizer=muon"))
    assert (found is not None) is worse
    if found is not None:
        assert "89.0 % by knn on digits, now 46.2; try a lower train.turn or fewer train.epochs" in found.found


def test_an_exported_model_says_what_it_began_with_and_not_where_that_lay(trained: Run, tmp_path: Path) -> None:
    run = pretrain(tiny(f"model.weights={trained.path}", "seed=5"), tmp_path / "run", progress=False)
    hub = save_hub(run, tmp_path / "hub")
    texts = (hub / "README.md").read_text(), (hub / "config.json").read_text()
    assert "**Began with**: weights of run" in texts[0]
    assert not any(str(trained.path.parent) in text for text in texts)
    weights = read_weights(str(hub))  # and another run may begin with it
    assert same(weights.state, load_file(run.path / "backbone.safetensors"))
    assert load(hub).begun() is None
