"""Features of a frozen backbone: computed once, in eval mode, and proved not to have moved it."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from prelax.collectives import gather_shares, share
from prelax.errors import PrelaxError
from prelax.memory import keep_freed_memory
from prelax.nets.backbones import channels_last
from prelax.nets.norm import with_plain_norms

Precision = Literal["auto", "float32", "bfloat16"]
Preprocess = Callable[[Tensor], Tensor]  # B x C x H x W uint8 -> B x C x S x S float32, normalised
PIXELS = 1 << 20  # of a batch on a CPU: larger ones leave its caches, and ask the system for memory layer by layer


def at_once(most: int, images: Tensor, device: torch.device) -> int:
    """How many images go through a frozen backbone together: as many as a CPU is quick with, ``most`` elsewhere.

    >>> photos, digits = torch.empty(1, 3, 256, 256), torch.empty(1, 1, 16, 16)
    >>> [at_once(2048, images, torch.device("cpu")) for images in (photos, digits)]
    [16, 2048]
    """
    return most if device.type != "cpu" else min(most, max(1, PIXELS // (images.shape[-2] * images.shape[-1])))


def fingerprint(module: nn.Module) -> str:
    """A hash of every weight and buffer: the same before and after, or the module was trained in between.

    >>> layer = nn.BatchNorm1d(2)
    >>> before = fingerprint(layer)
    >>> _ = layer(torch.randn(4, 2))  # training mode: moves the running statistics
    >>> fingerprint(layer) == before
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def state_of(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Which tensors a module holds and how often each was written to: what tells in no time that it has changed."""
    return tuple((tensor.data_ptr(), tensor._version) for tensor in (*module.parameters(), *module.buffers()))


@contextlib.contextmanager
def at_rest(module: nn.Module) -> Iterator[nn.Module]:
    """The module in eval mode and without gradients, put back as it was afterwards."""
    modes = {part: part.training for part in module.modules()}
    gradients = {weight: weight.requires_grad for weight in module.parameters()}
    module.eval().requires_grad_(False)
    try:
        yield module
    finally:
        for part, mode in modes.items():
            part.training = mode
        for weight, wanted in gradients.items():
            weight.requires_grad_(wanted)


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """The module at rest; refuses to end if it moved."""
    with at_rest(module):
        before = fingerprint(module)
        yield module
        woken = [name or "the backbone" for name, part in module.named_modules() if part.training]
        if woken:
            raise PrelaxError(f"the figures are void: {woken[0]} was put in training mode during an evaluation")
        if fingerprint(module) != before:
            raise PrelaxError("the figures are void: the backbone's weights changed during an evaluation")


@torch.no_grad()
def forward(backbone: nn.Module, device: torch.device, precision: Precision = "auto") -> Callable[[Tensor], Tensor]:
    """The backbone as the fastest function of float images with the same features (float32 out).

    On CUDA this is a copy in bfloat16 and channels-last with every BatchNorm folded into its convolution; the folded
    copy is used only if it gives the features of the original on noise, and is wholly in bfloat16 only if it gives
    those of autocast on the first images. Elsewhere it is the backbone itself, on images that are channels-last (a
    ResNet-18 at 128 px: 1.3 times as fast).
    """
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    if device.type != "cuda":
        keep_freed_memory()
        return lambda images: backbone(images.contiguous(memory_format=torch.channels_last)).float()
    folded = fold_norms(backbone)
    channels_last(folded)

    def plain(images: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
            return folded(images.contiguous(memory_format=torch.channels_last)).float()

    chosen: list[Callable[[Tensor], Tensor]] = []

    def features(images: Tensor) -> Tensor:
        if not chosen:
            quicker = in_half(folded, images[:4], plain) if precision == "bfloat16" else None
            chosen.append(quicker or plain)
        return chosen[0](images)

    return features


@torch.no_grad()
def in_half(
    net: nn.Module, images: Tensor, plain: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.bfloat16
) -> Callable[[Tensor], Tensor] | None:
    """A copy of a network wholly in half precision as a function of images, where it gives what ``plain`` gives.

    None for one with running statistics, with complex weights (FFT filters), or that makes float32 tensors of its own.
    """
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in net.modules()):
        return None
    if any(tensor.is_complex() for tensor in (*net.parameters(), *net.buffers())):
        return None
    halved = copy.deepcopy(net).to(dtype)

    def features(images: Tensor) -> Tensor:
        return halved(images.to(dtype, memory_format=torch.channels_last)).float()

    try:
        wanted, got = plain(images), features(images)
    except RuntimeError:
        return None
    return features if bool((got - wanted).abs().max() <= 0.1 * wanted.abs().max()) else None


def fold_norms(backbone: nn.Module) -> nn.Module:
    """A copy in eval mode with BatchNorms folded into the convolutions before them, where that changes nothing."""
    original = copy.deepcopy(backbone).eval()
    for part in original.modules():
        part._compiled_call_impl = None  # the copy is called plainly
    try:
        from torch.fx.experimental.optimization import fuse

        folded = fuse(with_plain_norms(copy.deepcopy(original)))
    except Exception:  # a backbone that cannot be traced is used as it is
        return original
    channels = next((w.shape[1] for w in original.parameters() if w.dim() == 4), 3)
    weight = next(original.parameters())
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, channels, 32, 32, generator=generator).to(weight.device, weight.dtype)
    with torch.no_grad():
        try:
            wanted, got = original(noise), folded(noise)
            same = bool((got - wanted).abs().max() <= 1e-2 * wanted.abs().max())
        except Exception:  # a backbone of one image size only: not worth guessing which
            same = False
    return folded if same else original


@torch.no_grad()
def extract(
    backbone: nn.Module,
    images: Tensor,
    preprocess: Preprocess,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 1024,
    precision: Precision = "auto",
    keep: torch.device | str | None = None,
    shared: bool = False,
    run: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Features of images in order, N x D float32, from the backbone frozen and in eval mode.

    Args:
        images: N x C x H x W uint8, anywhere (memory-mapped too): moved batch by batch.
        preprocess: what turns a batch of uint8 into what the backbone was trained on.
        keep: where the features stay; by default where they are computed.
        shared: each process computes a share and all of them get the whole; every process must call it alike.
        run: what `forward` gave for the backbone, by one who knows that its weights are the same still: then they are
            not read twice to prove it, which takes longer than a few images do.
    """
    device = torch.device(device)
    if len(images) == 0:
        raise PrelaxError("there are no images to take features of")
    features: Tensor | None = None
    batch_size = at_once(batch_size, images, device)
    with (at_rest if run else frozen)(backbone.to(device)):
        run = run or forward(backbone, device, precision)
        mine = share(len(images), batch_size) if shared else range(len(images))
        for start in range(mine.start, mine.stop, batch_size):
            batch = images[start : min(start + batch_size, mine.stop)].to(device, non_blocking=True)
            out = run(preprocess(batch))  # B x D
            if features is None:
                features = torch.empty(len(mine), out.shape[1], device=keep or device)
            features[start - mine.start : start - mine.start + len(out)] = out
        if shared:
            features = gather_shares(features, len(images), batch_size)
    assert features is not None
    return finite(features)


def finite(features: Tensor) -> Tensor:
    """The features, once none of them is NaN or infinite."""
    if not bool(torch.isfinite(features).all()):
        raise PrelaxError("the backbone gives features that are not finite: the run diverged, see `prelax doctor RUN`")
    return features
