"""Muon: steps that turn a matrix in all of its directions alike."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from prelax.errors import PrelaxError

Closure = Callable[[], Any] | None  # what computes the loss and its gradients: Lightning hands it to the optimiser
LANES = 4  # streams on which matrices are turned


class Muon(torch.optim.Optimizer):
    """Momentum steps that turn a matrix in all of its directions alike (Jordan et al. 2024), by a share of its length.

    Groups with ``matrix=True`` hold weights whose lengths say nothing because a normalisation follows them, as in
    ResNets (in transformers it does not; that has not been tried): a length stays what it was, and the rate is the
    share of it that a step is long. A convolution's weight is a matrix with a
    row for each filter. Other groups take plain momentum steps.

    >>> layer, norm = torch.nn.Linear(8, 4, bias=False), torch.nn.BatchNorm1d(4)
    >>> groups = [{"params": layer.parameters(), "matrix": True, "lr": 0.02}, {"params": norm.parameters()}]
    >>> optimizer, length = Muon(groups, lr=0.1), layer.weight.norm().item()
    >>> norm(layer(torch.randn(16, 8))).square().mean(0).prod().backward()
    >>> optimizer.step()
    >>> abs(layer.weight.norm().item() - length) < 1e-6
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        matrix: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "matrix": matrix})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["matrix"] and (flat := [w for w in group["params"] if w.ndim < 2]):
            raise PrelaxError(
                f"a group with matrix=True holds {len(flat)} weight(s) that are no matrix (of shape "
                f"{tuple(flat[0].shape)}): biases and norms belong into a group without it"
            )

    @torch.no_grad()
    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        loss = loss_of(closure)
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            if not weights:
                continue
            grads: Any = [w.grad for w in weights]
            if group["weight_decay"] and not group["matrix"]:
                grads = torch._foreach_add(grads, weights, alpha=group["weight_decay"])
            buffers = gather_momentum(self, weights, grads, group["momentum"])
            if not group["matrix"]:
                torch._foreach_sub_(weights, torch._foreach_mul(buffers, group["lr"]))
                continue
            ahead = torch._foreach_add(grads, buffers, alpha=group["momentum"])  # Nesterov's momentum
            with side_by_side(lanes_of(weights[0].device)) as lane:
                for n, alike in enumerate(by_shape(weights)):
                    with lane(n):
                        turn([weights[place] for place in alike], [ahead[place] for place in alike], group["lr"])
        return loss


@functools.cache  # an optimiser that held them could not be copied
def lanes_of(device: torch.device) -> list[torch.cuda.Stream]:
    """Streams on which matrices are turned at once: most are too small to fill a card."""
    return [torch.cuda.Stream(device) for _ in range(LANES)] if device.type == "cuda" else []


def loss_of(closure: Closure) -> Any:
    """What a closure gives, its gradients computed; None where the gradients are there already."""
    with torch.enable_grad():
        return None if closure is None else closure()


def gather_momentum(
    optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], steps: list[Tensor], momentum: float
) -> list[Tensor]:
    """Adds steps to what is left of those before, and gives the sums."""
    for w in weights:
        if "momentum_buffer" not in optimizer.state[w]:
            optimizer.state[w]["momentum_buffer"] = torch.zeros_like(w)
    buffers = [optimizer.state[w]["momentum_buffer"] for w in weights]
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, steps)
    return buffers


@contextlib.contextmanager
def side_by_side(lanes: list[torch.cuda.Stream]) -> Iterator[Callable[[int], contextlib.AbstractContextManager[Any]]]:
    """Streams that begin when the current one has come here, and that it waits for at the end.

    Gives where to launch the n-th of several jobs: the first, which takes longest, has a stream to itself. Without
    streams they follow one another.
    """
    here: Any = torch.cuda.current_stream(lanes[0].device) if lanes else None  # the current device may be another
    for stream in lanes:
        stream.wait_stream(here)
    yield lambda n: torch.cuda.stream(lanes[n and 1 + n % (len(lanes) - 1)]) if lanes else contextlib.nullcontext()
    for stream in lanes:
        here.wait_stream(stream)


def turn(weights: list[Tensor], ahead: Sequence[Tensor], share: float | Tensor) -> None:
    """Turns weights that are matrices of one shape by a share of their lengths, all at once."""
    moves = orthogonal(torch.stack([rows(step, w) for step, w in zip(ahead, weights, strict=True)]))
    moves = moves.to(weights[0].dtype)
    matrices = torch.stack([rows(w, w) for w in weights])  # N x rows x columns
    before = lengths(matrices)
    matrices = matrices - moves * (share * before / lengths(moves))
    matrices *= before / lengths(matrices)
    torch._foreach_copy_(weights, [filters(matrix, w) for matrix, w in zip(matrices.unbind(), weights, strict=True)])


def rows(tensor: Tensor, weight: Tensor) -> Tensor:
    """A weight, or a step of it, as a matrix with a row for each filter, in the order the weight has in memory."""
    return (tensor.permute(0, 2, 3, 1) if channels_last(weight) else tensor).flatten(1)


def filters(matrix: Tensor, weight: Tensor) -> Tensor:
    """The matrix of ``rows`` in the shape of its weight."""
    if not channels_last(weight):
        return matrix.view(weight.shape)
    out, channels, height, width = weight.shape
    return matrix.view(out, height, width, channels).permute(0, 3, 1, 2)


def channels_last(weight: Tensor) -> bool:
    return weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)


def lengths(matrices: Tensor) -> Tensor:
    """The length of each of N matrices: N x 1 x 1."""
    return torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp(min=1e-12)


def by_shape(weights: Sequence[Tensor]) -> list[list[int]]:
    """The places of weights that are matrices of the same shape, together; those with most to compute come first."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, weight in enumerate(weights):
        found.setdefault((weight.shape[0], weight[0].numel()), []).append(place)
    return sorted(found.values(), key=lambda places: -len(places) * weights[places[0]].numel())


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices with about the same singular vectors and singular values near 1 (0.7 to 1.2): N x rows x columns.

    Newton and Schulz's iteration with the coefficients of Jordan et al., in bfloat16 on cards that have it.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / lengths(x)
    if x.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False):
        x = x.bfloat16()
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
