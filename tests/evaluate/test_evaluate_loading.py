from __future__ import annotations

import copy
import io
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from prelax.config import DataSettings, resolve
from prelax.data.decode import Plan, decode
from prelax.errors import PrelaxError
from prelax.evaluate.embed import embed
from prelax.evaluate.features import fingerprint
from prelax.evaluate.protocols import evaluate
from prelax.loading import load, model_card, save_hub
from prelax.nets import backbone
from prelax.preprocess import Preprocess, as_stored
from prelax.run import Run


def pixels(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_run_gives_its_backbone_back_in_eval_mode(run):
    loaded = load(run.path)
    assert not any(part.training for part in loaded.backbone.modules())
    for name, tensor in run.load_backbone().items():
        assert torch.equal(loaded.backbone.state_dict()[name], tensor)
    images = pixels(5, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), loaded.backbone(loaded.preprocess(images)))


def test_a_loaded_run_can_be_sent_to_another_process_after_it_was_used(run):
    loaded, images = load(run.path), pixels(5, 1, 16, 16)
    features = loaded(images)
    for other in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded)):
        with torch.no_grad():
            other.backbone.conv1.weight.zero_()  # its own
        assert not torch.equal(other(images), features)
    assert torch.equal(loaded(images), features)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_in_one_line(run):
    with pytest.raises(PrelaxError, match="device=cuda:0: this machine has no CUDA device"):
        load(run.path, "cuda:0")


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "", None])
def test_what_is_no_device_is_refused_with_what_is(run, device):
    with pytest.raises(PrelaxError, match="use auto, cpu, cuda or cuda:N"):
        load(run.path, device)


def test_images_of_the_trained_size_are_only_normalised():
    pre = Preprocess(16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    images = pixels(3, 3, 16, 16)
    theirs = v2.functional.normalize(images / 255.0, [0.4, 0.5, 0.6], [0.2, 0.25, 0.3])
    torch.testing.assert_close(pre(images), theirs, atol=1e-5, rtol=1e-5)


def test_larger_images_keep_their_central_seven_eighths_as_torchvision_resizes_it():
    pre = Preprocess(128, (0.0,), (1.0,))
    images = pixels(2, 3, 160, 160)
    theirs = v2.functional.resize(v2.functional.center_crop(images.float(), [140, 140]), [128, 128], antialias=True)
    torch.testing.assert_close(pre(images) * 255, theirs, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("side", "kept"), [(32, 28), (16, 14), (48, 42)])
def test_the_centre_of_any_image_is_its_central_seven_eighths(side, kept):
    images = pixels(2, 3, side, side)
    theirs = v2.functional.resize(v2.functional.center_crop(images.float(), [kept, kept]), [32, 32], antialias=True)
    torch.testing.assert_close(Preprocess(32, (0.0,), (1.0,), centre=True)(images) * 255, theirs, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("shape", [(20, 30), (60, 30), (48, 50), (90, 90), (48, 48)])
def test_an_image_of_any_size_is_brought_to_the_size_that_a_file_of_it_is(shape: tuple[int, int]) -> None:
    image = pixels(1, 3, *shape)
    held = io.BytesIO()
    Image.fromarray(image[0].permute(1, 2, 0).numpy()).save(held, "png")
    of_file = torch.from_numpy(decode(held.getvalue(), Plan(48, 3)))
    apart = (as_stored(image, 48)[0].int() - of_file.int()).abs()
    assert apart[:, 3:-3, 3:-3].max() <= 1  # at its edges Pillow looks beyond the square that it resizes


def test_oblong_and_small_images_come_out_at_the_trained_size():
    pre = Preprocess(32, (0.5,), (0.5,))
    assert pre(pixels(2, 1, 40, 90)).shape == (2, 1, 32, 32)
    assert pre(pixels(2, 1, 8, 12)).shape == (2, 1, 32, 32)


def test_images_the_backbone_cannot_take_are_refused():
    pre = Preprocess(16, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    with pytest.raises(PrelaxError, match="uint8"):
        pre(torch.rand(2, 3, 16, 16))
    with pytest.raises(PrelaxError, match="channels=3"):
        pre(pixels(2, 1, 16, 16))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x: x.numpy(), "NumPy array of 5 x 1 x 16 x 16: try torch.from_numpy(images)"),
        (lambda x: x.permute(0, 2, 3, 1).numpy(), "try torch.from_numpy(images).permute(0, 3, 1, 2)"),
        (lambda x: x.permute(0, 2, 3, 1), "uint8 tensor of 5 x 16 x 16 x 1: try images.permute(0, 3, 1, 2)"),
        (lambda x: x.expand(-1, 3, -1, -1).permute(0, 2, 3, 1), "try images.permute(0, 3, 1, 2)"),
        (lambda x: x[0].permute(1, 2, 0).numpy(), "try torch.from_numpy(images).permute(2, 0, 1)[None]"),
        (lambda x: x[0], "tensor of 1 x 16 x 16: try images[None]"),
        (lambda x: x[0, 0], "tensor of 16 x 16: try images[None, None]"),
        (lambda x: x / 255, "try (images * 255).to(torch.uint8), for values from 0 to 1"),
        (lambda x: x.long(), "try images.to(torch.uint8)"),
        (lambda x: ["no.jpg"], "no picture no.jpg"),
        (lambda x: [x[0], None], "a picture is a file's path, a Pillow image or a tensor, not a NoneType"),
        (lambda x: [x[0].float()], "float32 tensor of 1 x 1 x 16 x 16: try (images * 255)"),
        (lambda x: [], "a list"),
        (lambda x: x[0, 0, 0], "tensor of 16"),
        (lambda x: np.float32(3), "array of no dimensions"),
        (lambda x: x.expand(-1, 3, -1, -1), "the images have 3 channel(s) and the backbone takes 1"),
    ],
)
def test_what_is_no_batch_of_images_is_refused_with_how_to_make_one(trained, make, says):
    with pytest.raises(PrelaxError) as caught:
        load(trained.path)(make(pixels(5, 1, 16, 16)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pictures_have_the_features_that_embed_gives_their_files(trained, tmp_path):
    loaded = load(trained.path)
    files = [tmp_path / "photos" / "a" / f"{n}.png" for n in range(3)]
    files[0].parent.mkdir(parents=True)
    for n, file in enumerate(files):  # of several sizes, in colour: the run is of grey squares
        colours = pixels(1, 3, 16 + 8 * n, 20)[0].permute(1, 2, 0)
        Image.fromarray(colours.numpy()).save(file)
    on = DataSettings(source="folder", root=tmp_path / "photos", image_size=16, channels=1, cache=tmp_path / "cache")
    embed(loaded, on.model_copy(update={"test_fraction": 0.0}), tmp_path / "v.npz", split="all")
    expected = torch.from_numpy(np.load(tmp_path / "v.npz")["embedding"])
    torch.testing.assert_close(loaded(files), expected)
    torch.testing.assert_close(loaded([Image.open(files[0]), str(files[1]), loaded.picture(files[2])]), expected)
    torch.testing.assert_close(loaded(Image.open(files[1])), expected[1:2])
    torch.testing.assert_close(loaded(str(files[2])), expected[2:])
    batches = DataLoader(ImageFolder(str(tmp_path / "photos"), transform=loaded.picture), batch_size=2)
    torch.testing.assert_close(torch.cat([loaded(images) for images, _ in batches]), expected)


def test_a_loaded_backbone_says_what_it_takes_and_gives(trained):
    assert str(load(trained.path)) == f"Loaded(resnet8 of {trained.path}: B x 1 x H x W (seen at 16 px) -> B x 64)"


def test_preprocessing_alone_takes_no_pictures(trained):
    pre = load(trained.path).preprocess
    for images, says in (
        (Image.fromarray(pixels(1, 1, 16, 16)[0, 0].numpy()), "a PIL image: try torch.from_numpy"),
        ([pixels(1, 1, 16, 16)[0]], "a list: make a tensor C x H x W of each, then torch.stack them"),
        ("cat.jpg", "not a str"),
    ):
        with pytest.raises(PrelaxError, match=says):
            pre(images)


@pytest.mark.parametrize("how", ["torch.from_numpy(images).permute(0, 3, 1, 2)", "torch.from_numpy(images)"])
def test_what_is_proposed_for_an_array_works(trained, how):
    images = pixels(5, 1, 16, 16)
    array = images.permute(0, 2, 3, 1).numpy() if "permute" in how else images.numpy()
    loaded = load(trained.path)
    with pytest.raises(PrelaxError) as caught:
        loaded(array)
    assert str(caught.value).endswith(f": try {how}")
    torch.testing.assert_close(loaded(eval(how, {"torch": torch, "images": array})), loaded(images))


def test_weights_of_another_architecture_are_refused_in_one_line(run):
    run.save_backbone(backbone("resnet18", "small", 1).state_dict())
    with pytest.raises(PrelaxError, match="not of a resnet8") as caught:
        load(run.path)
    assert "\n" not in str(caught.value)


def test_a_missing_and_a_foreign_weight_are_named(run):
    state = run.load_backbone()
    without = {name: tensor for name, tensor in state.items() if name != "layer2.0.conv1.weight"}
    run.save_backbone(without)
    with pytest.raises(PrelaxError, match=r"layer2\.0\.conv1\.weight is missing"):
        load(run.path)
    run.save_backbone({**state, "fc.weight": torch.zeros(2, 2)})
    with pytest.raises(PrelaxError, match=r"fc\.weight is not one of its names"):
        load(run.path)


@pytest.mark.parametrize(("stem", "size"), [("small", 3), ("imagenet", 7)])
def test_the_stem_that_was_chosen_in_training_is_read_from_the_weights(tmp_path, stem, size):
    run = Run.create(tmp_path / "r", resolve("cifar10/simsiam"))
    run.save_backbone(backbone("resnet18", stem, 3).state_dict())
    assert load(run.path).backbone.conv1.kernel_size == (size, size)


def test_random_weights_belong_to_their_seed_and_leave_the_global_generator_alone(run):
    loaded = load(run.path)
    before = torch.random.get_rng_state()
    one, same, other = loaded.fresh(0), loaded.fresh(0), loaded.fresh(1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert fingerprint(one) == fingerprint(same)
    assert fingerprint(one) not in (fingerprint(other), fingerprint(loaded.backbone))


def test_no_other_device_is_seeded_anew_by_random_weights(run, monkeypatch):
    """Evaluating in the middle of somebody's training must not repeat their dropout."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    loaded = load(run.path)
    loaded.fresh(0)
    loaded.fresh_encoder(0)
    assert not seeded


def test_random_weights_are_drawn_as_the_run_drew_its_first(tmp_path):
    settings = resolve("digits/simsiam", ["model.init=torch", "data.channels=1", "data.image_size=16"])
    run = Run.create(tmp_path / "run", settings)
    run.save_backbone(backbone("resnet8", channels=1).state_dict())
    bound = 3**-1  # nn.Conv2d's own: the root of one over 3 x 3 values of one channel
    assert load(run.path).fresh(0).conv1.weight.abs().max() <= bound


def test_the_encoder_of_the_checkpoint_has_the_backbone_of_the_run(run):
    loaded = load(run.path)
    encoder = loaded.encoder()
    assert fingerprint(encoder.backbone) == fingerprint(loaded.backbone)
    with torch.no_grad():
        assert encoder(loaded.preprocess(pixels(4, 1, 16, 16))).shape == (4, 32)


def test_without_a_checkpoint_the_encoder_is_refused(run):
    for path in run.path.glob("checkpoint*"):
        path.unlink()
    with pytest.raises(PrelaxError, match="no checkpoint"):
        load(run.path).encoder()


def test_the_hub_layout_loads_as_the_run_does_and_tells_no_paths(run, tmp_path):
    run.write_eval("knn", {"protocol": "knn", "dataset": "digits", "accuracy": 91.25, "std": 0.0, "floor": 62.5})
    folder = save_hub(run, tmp_path / "hub")
    images = pixels(6, 1, 16, 16)
    torch.testing.assert_close(load(folder)(images), load(run.path)(images))
    card = (folder / "README.md").read_text()
    assert "91.25" in card
    assert "62.50" in card
    assert "prelax-rot" in card
    assert str(tmp_path) not in card + (folder / "config.json").read_text()


def test_a_model_card_says_what_the_method_used_and_how_much_was_measured(run):
    run.write_eval("knn", {"protocol": "knn", "dataset": "digits", "accuracy": 91.25, "std": 0.0, "test_images": 14})

    def card(name: str, *changes: str) -> str:
        settings = resolve("digits/simsiam", [f"method.name={name}", *changes])
        return model_card(run, replace(load(run.path), settings=settings))

    assert "muon, lr 0.5 per 256 images, turn 0.03, seed" in card("simsiam")
    assert "turn" not in card("simsiam", "train.optimizer=sgd")
    relaxed = card("prelax-all", "method.alpha=0", "method.alpha2=1", "method.gamma2=3.2")
    assert "prelax-all on simsiam, alpha 0, alpha2 1, gamma 0.1, gamma2 3.2, beta 1\n" in relaxed
    assert "**Method**: simsiam\n" in card("simsiam")
    assert "sim+pl on byol, gamma 0.1\n" in card("sim+pl", "method.base=byol")
    assert "trained without labels" in relaxed
    assert "trained with labels" in card("supervised")
    assert "self-supervised" not in card("supervised")
    assert "| knn | digits | 91.25 | – | – | 14 |" in relaxed


def test_a_damaged_hub_folder_is_refused_in_one_line(run, tmp_path):
    folder = save_hub(run, tmp_path / "hub")
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(PrelaxError, match="cannot be read"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(PrelaxError, match=r"no model\.safetensors"):
        load(folder)
    (folder / "config.json").write_text(json.dumps({"architectures": ["ViT"]}))
    with pytest.raises(PrelaxError, match="not written by prelax"):
        load(folder)


def test_weights_without_a_convolution_are_no_backbone(run):
    save_file({"weight": torch.zeros(2, 2)}, run.path / "backbone.safetensors")
    with pytest.raises(PrelaxError, match=r"not of a resnet8: conv1\.weight is missing"):
        load(run.path)


class Backwards(nn.Module):
    """A backbone whose first convolution is not the first by name."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = 4
        self.stem = nn.Conv2d(channels, 8, 3, 2)
        self.body = nn.Conv2d(8, 4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.stem(x)).mean((2, 3))


def test_a_backbone_whose_first_convolution_is_not_first_by_name_loads(run):
    tree = yaml.safe_load((run.path / "config.yaml").read_text())
    tree["model"]["backbone"] = f"{__name__}:Backwards"
    (run.path / "config.yaml").write_text(yaml.safe_dump(tree))
    save_file(Backwards(1).state_dict(), run.path / "backbone.safetensors")
    loaded = load(run.path)
    assert loaded.channels == 1
    assert loaded.backbone(torch.zeros(2, 1, 16, 16)).shape == (2, 4)


def test_a_run_of_a_method_that_is_not_here_is_loaded_measured_and_exported(run):
    config = run.path / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["method"]["name"] = "no_such_module:MINE"
    config.write_text(yaml.safe_dump(tree))
    run = Run.open(run.path)
    assert load(run.path)(pixels(2, 1, 16, 16)).shape[0] == 2
    assert evaluate(run, ["knn"])[0]["accuracy"] > 0
    assert "no_such_module:MINE" in save_hub(run, run.path / "hub").joinpath("README.md").read_text()
