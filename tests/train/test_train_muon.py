"""Muon against plain NumPy."""

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from prelax.errors import PrelaxError
from prelax.train.muon import Muon, orthogonal, side_by_side


def newton_schulz(x: np.ndarray) -> np.ndarray:
    """As it is printed (Jordan et al. 2024), for one matrix."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def test_muon_equals_a_numpy_reference_for_several_steps() -> None:
    rng = np.random.default_rng(0)
    shapes = {"a": (4, 3, 3, 3), "b": (4, 27), "c": (5, 7), "tall": (6, 2), "plain": (5,)}  # a, b: one shape of matrix
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    weights = {name: nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    weights["a"].data = weights["a"].data.to(memory_format=torch.channels_last)
    turned = [weights[name] for name in ("a", "b", "c", "tall")]
    parts = [{"params": turned, "matrix": True, "lr": 0.05}, {"params": [weights["plain"]]}]
    optimizer = Muon(parts, lr=0.3, momentum=0.9, weight_decay=0.01)
    wanted, speed = {k: v.copy() for k, v in start.items()}, {k: np.zeros_like(v) for k, v in start.items()}
    for _ in range(5):
        for name, shape in shapes.items():
            grad = rng.normal(size=shape)
            weights[name].grad = torch.tensor(grad)
            if name == "plain":
                speed[name] = 0.9 * speed[name] + grad + 0.01 * wanted[name]
                wanted[name] = wanted[name] - 0.3 * speed[name]
                continue
            speed[name] = 0.9 * speed[name] + grad
            ahead = (grad + 0.9 * speed[name]).reshape(shape[0], -1)
            step = newton_schulz(ahead.T).T if name == "tall" else newton_schulz(ahead)
            length = np.linalg.norm(wanted[name])
            moved = wanted[name] - 0.05 * length * (step / np.linalg.norm(step)).reshape(shape)
            wanted[name] = moved * length / np.linalg.norm(moved)
        optimizer.step()
    for name, value in wanted.items():
        np.testing.assert_allclose(weights[name].detach().numpy(), value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 8, 72), (3, 72, 8), (1, 64, 27)])
def test_a_matrix_made_orthogonal_keeps_its_directions_and_evens_out_their_strength(shape: tuple[int, ...]) -> None:
    given = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    u, strength, v = torch.linalg.svd(given, full_matrices=False)
    seen = u.mT @ orthogonal(given) @ v.mT  # diagonal in the given directions
    diagonal = seen.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(seen, torch.diag_embed(diagonal), atol=1e-6, rtol=0)
    firm = strength > 0.02 * given.flatten(1).norm(dim=1)[:, None]  # five rounds bring up no weaker ones
    assert ((diagonal[firm] > 0.6) & (diagonal[firm] < 1.3)).all()


def test_a_matrix_without_a_gradient_to_follow_stays() -> None:
    weight = nn.Parameter(torch.randn(3, 4))
    before, weight.grad = weight.detach().clone(), torch.zeros(3, 4)
    Muon([{"params": [weight], "matrix": True}], lr=0.1).step()
    torch.testing.assert_close(weight.detach(), before)


def test_a_bias_among_the_matrices_is_refused_by_its_shape() -> None:
    with pytest.raises(PrelaxError, match=r"1 weight\(s\) that are no matrix \(of shape \(4,\)\): biases and norms"):
        Muon(nn.Linear(8, 4).parameters(), lr=0.02, matrix=True)


def test_a_copy_takes_the_steps_of_its_original() -> None:
    weight = nn.Parameter(torch.randn(3, 4))
    optimizer = Muon([{"params": [weight], "matrix": True}], lr=0.1)
    weight.grad = torch.randn(3, 4)
    optimizer.step()
    other = copy.deepcopy(optimizer)
    (twin,) = other.param_groups[0]["params"]
    twin.grad = weight.grad = torch.randn(3, 4)
    optimizer.step()
    other.step()
    torch.testing.assert_close(twin, weight, rtol=0, atol=0)


@dataclass
class Stream:
    """What stands for a stream where there is no card: it remembers what it waited for."""

    device: torch.device
    waited: list["Stream"] = field(default_factory=list)

    def wait_stream(self, other: "Stream") -> None:
        self.waited.append(other)


def test_streams_wait_for_their_own_card_whichever_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [Stream(torch.device("cuda", index)) for index in range(2)]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[device.index if device else 0])
    lanes = [Stream(torch.device("cuda", 1)) for _ in range(2)]
    with side_by_side(lanes):  # type: ignore[arg-type]
        assert all(lane.waited == [current[1]] for lane in lanes)
    assert (current[0].waited, current[1].waited) == ([], lanes)
