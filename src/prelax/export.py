"""A trained backbone for those who do not have prelax: torchvision, timm, ONNX, torch.export, the Hub."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prelax
from prelax.config import nearest
from prelax.errors import PrelaxError
from prelax.loading import Loaded, load, own_size, save_hub
from prelax.names import FORMATS
from prelax.nets.backbones import width_of
from prelax.nets.norm import with_plain_norms
from prelax.run import Run
from prelax.whole import replacing, write_whole, writing

TORCHVISION = ("resnet18", "resnet34", "resnet50")


def export(path: Path | str, to: str, out: Path | str | None = None) -> Path:
    """Writes a run's backbone in another library's form and gives the folder: by default ``RUN/export/FORMAT``.

    Beside the weights lie ``backbone.json`` (size, channels, what is shown of an image) and ``load.py``, which needs
    the other library alone. ONNX and torch.export graphs take float images in 0..1 and normalise them inside; weights
    for torchvision and timm want them normalised by the ``mean`` and ``std`` of ``backbone.json``.
    """
    if to not in FORMATS:
        raise PrelaxError(f"no format {to!r}{nearest(to, FORMATS)}")
    folder = Path(out) if out is not None else Path(path) / "export" / to
    if to == "hub":
        return save_hub(Run.open(path), folder)
    loaded = load(path)
    writers: dict[str, Callable[[Loaded, Path], None]] = {
        "torchvision": write_torchvision,
        "timm": write_timm,
        "onnx": write_onnx,
        "torch-export": write_torch_export,
    }
    refuse(loaded.settings.model.backbone, to)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        writers[to](loaded, folder)
        write_whole(folder / "backbone.json", json.dumps(describe(loaded, to), indent=1) + "\n")
    return folder


def refuse(name: str, to: str) -> None:
    """Says so when the library has no such backbone."""
    theirs = name in TORCHVISION or (to == "timm" and name.startswith("timm:"))
    if to in ("torchvision", "timm") and not theirs:
        raise PrelaxError(f"{name} is not one of {to}'s; use --to onnx or torch-export")


def describe(loaded: Loaded, to: str) -> dict[str, Any]:
    """What a user of the file must know about its input and output."""
    pre = loaded.preprocess
    normalised = {"mean": list(pre.mean), "std": list(pre.std)}
    inside = "normalise_inside" if to in ("onnx", "torch-export") else None  # not to be done again by who sees a mean
    return {
        "backbone": loaded.settings.model.backbone,
        "method": loaded.settings.method.name,
        "input": {"shape": ["batch", loaded.channels, pre.size, pre.size], "range": [0.0, 1.0]},
        "images": seen(loaded),
        **({inside: normalised} if inside else {"normalise": "before the backbone", **normalised}),
        "features": width_of(loaded.backbone),
        "prelax": prelax.__version__,
    }


def seen(loaded: Loaded) -> str:
    """What ``prelax embed`` and ``search`` show the backbone of a file, for those who have to do it themselves."""
    pre, stored = loaded.preprocess, own_size(loaded.settings)
    first = f"the central square, resized to {stored} px: bilinear, antialiased"
    last = f"resized to {pre.size} px: {pre.interpolation}, antialiased"
    if stored <= pre.size:
        return first if stored == pre.size else f"{first}; then {last}"
    inner = max(pre.size, round(stored * 7 / 8))
    return f"{first}; of that the central {inner} px" + (f", {last}" if inner != pre.size else "")


# -- weights ----------------------------------------------------------------------------------------------------------


def write_torchvision(loaded: Loaded, folder: Path) -> None:
    name = loaded.settings.model.backbone
    body = [
        "import torch, torchvision",
        f"net = torchvision.models.{name}()",
        *stem_lines(loaded),
        "net.fc = torch.nn.Identity()",
    ]
    write_weights(loaded, folder, body)


def write_timm(loaded: Loaded, folder: Path) -> None:
    name = loaded.settings.model.backbone
    if name.startswith("timm:"):
        known = name.removeprefix("timm:")
        size = f", img_size={loaded.size}" if getattr(loaded.backbone, "side", None) else ""
        made = f'timm.create_model("{known}", num_classes=0, in_chans={loaded.channels}{size})'
        body = ["import timm, torch", f"net = {made}"]
    else:
        body = ["import timm, torch", f'net = timm.create_model("{name}", num_classes=0)', *stem_lines(loaded)]
    write_weights(loaded, folder, body)


def stem_lines(loaded: Loaded) -> list[str]:
    """What turns the library's ImageNet stem into the one that was trained."""
    conv = loaded.backbone.conv1
    assert isinstance(conv, nn.Conv2d)
    small = conv.kernel_size == (3, 3)
    if not small and loaded.channels == 3:
        return []
    kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    lines = [f"net.conv1 = torch.nn.Conv2d({loaded.channels}, 64, {kernel}, {stride}, {padding}, bias=False)"]
    return lines + (["net.maxpool = torch.nn.Identity()"] if small else [])


def write_weights(loaded: Loaded, folder: Path, body: list[str]) -> None:
    """``backbone.pt`` (a plain state dict) and ``load.py``, which builds the network around it."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in loaded.backbone.state_dict().items()}
    with replacing(folder / "backbone.pt") as temporary:
        torch.save(state, temporary)
    pre = loaded.preprocess
    lines = [
        '"""Builds the backbone; prelax is not needed. Images: floats in 0..1, normalised by MEAN and STD.',
        "",
        f"Of an image prelax shows it {seen(loaded)}.",
        '"""',
        "from pathlib import Path",
        *body,
        'weights = Path(__file__).with_name("backbone.pt")',
        "net.load_state_dict(torch.load(weights, weights_only=True))",
        "net.eval()",
        f"SIZE, MEAN, STD = {pre.size}, {tuple(pre.mean)}, {tuple(pre.std)}",
    ]
    write_whole(folder / "load.py", "\n".join(lines) + "\n")


# -- graphs -----------------------------------------------------------------------------------------------------------


class FromUnit(nn.Module):
    """The backbone with its normalisation: images in 0..1 in, features out."""

    mean: Tensor
    std: Tensor

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self.backbone = plain_norms(loaded.backbone)
        self.register_buffer("mean", torch.tensor(loaded.preprocess.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(loaded.preprocess.std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone((images - self.mean) / self.std)
        return features


def plain_norms(backbone: nn.Module) -> nn.Module:
    """A copy on the CPU, in eval mode, with torch's own BatchNorm in place of the one that keeps views apart."""
    return with_plain_norms(copy.deepcopy(backbone).cpu().eval())


def example(loaded: Loaded) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, loaded.channels, loaded.size, loaded.size, generator=generator)


def write_reader(loaded: Loaded, folder: Path, lines: list[str]) -> None:
    """``load.py`` of a graph, which makes ``net`` of it."""
    size, channels = loaded.size, loaded.channels
    text = [
        f'"""The backbone as a graph; prelax is not needed. It takes float32 images in 0..1, B x {channels} x {size} x '
        f"{size},",
        "as they are: it normalises them itself.",
        "",
        f"Of an image prelax shows it {seen(loaded)}.",
        '"""',
        "from pathlib import Path",
        *lines,
        f"SIZE = {size}",
    ]
    write_whole(folder / "load.py", "\n".join(text) + "\n")


def write_onnx(loaded: Loaded, folder: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise PrelaxError("--to onnx needs onnx: pip install 'prelax[onnx]'") from None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), replacing(folder / "backbone.onnx") as temporary:
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            FromUnit(loaded).eval(),
            (example(loaded),),
            dynamo=True,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
        assert program is not None
        program.save(str(temporary), external_data=False)
    write_reader(
        loaded,
        folder,
        [
            "import onnxruntime",
            'net = onnxruntime.InferenceSession(str(Path(__file__).with_name("backbone.onnx")))',
            '# features = net.run(None, {"images": images})[0], of a NumPy array',
        ],
    )


def write_torch_export(loaded: Loaded, folder: Path) -> None:
    shapes = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(FromUnit(loaded).eval(), (example(loaded),), dynamic_shapes=shapes)
    held = io.BytesIO()  # not a file: where the disk is full torch would end the process
    torch.export.save(program, held)
    with replacing(folder / "backbone.pt2") as temporary:
        temporary.write_bytes(held.getbuffer())
    write_reader(
        loaded,
        folder,
        [
            "import torch",
            'net = torch.export.load(Path(__file__).with_name("backbone.pt2")).module()',
            "# features = net(images), of a tensor",
        ],
    )
