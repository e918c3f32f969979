"""Each term against a plain NumPy float64 reference, and what its gradient reaches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prelax.config import MethodSettings
from prelax.objectives import PretextLoss, distance, looc, margin, nt_xent, r2s, sim
from prelax.record import Target


def batch(seed: int, rows: int = 6, dim: int = 5, n: int = 3) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(n, rows, dim)))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def squared_distance(p: np.ndarray, z: np.ndarray) -> np.ndarray:
    return ((unit(p) - unit(z)) ** 2).sum(-1)


def tensors(arrays: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(a) for a in arrays]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_sim_is_the_squared_distance_of_unit_vectors(seed: int) -> None:
    p, z, _ = batch(seed)
    assert sim(*tensors([p, z])).item() == pytest.approx(squared_distance(p, z).mean(), rel=1e-10)


@given(seed=st.integers(0, 10_000), alpha=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_r2s_is_the_distance_of_the_relaxed_prediction(seed: int, alpha: float) -> None:
    p, g, z = batch(seed)
    wanted = squared_distance(p - alpha * g, z).mean()
    assert r2s(*tensors([p, g, z]), alpha=alpha).item() == pytest.approx(wanted, rel=1e-9)


@given(seed=st.integers(0, 10_000), eta=st.floats(0, 4))
@settings(max_examples=30, deadline=None)
def test_margin_forgives_up_to_eta(seed: int, eta: float) -> None:
    p, z, _ = batch(seed)
    wanted = np.maximum(squared_distance(p, z) - eta, 0).mean()
    assert margin(*tensors([p, z]), eta=eta).item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_only_directions_count_however_short_the_vectors() -> None:
    p, z, _ = (x.float() for x in tensors(batch(4)))
    torch.testing.assert_close(sim(1e-10 * p, 1e10 * z), sim(p, z))


def test_half_precision_is_measured_in_float32() -> None:
    p = torch.cat([torch.zeros(1, 3), torch.eye(3)]).half()  # the first has no direction
    found = distance(p, torch.eye(4, 3).half())
    assert found.dtype == torch.float32
    assert found.tolist() == [2.0, 2.0, 2.0, 2.0]


def test_what_is_not_said_is_as_in_the_paper_and_the_settings() -> None:
    p, g, z = tensors(batch(5))
    known = MethodSettings()
    assert (known.alpha, known.eta, known.temperature) == (1.0, 0.5, 0.5)
    assert r2s(p, g, z) == r2s(p, g, z, alpha=1.0)
    assert margin(p, z) == margin(p, z, eta=0.5)
    assert nt_xent(p, z) == nt_xent(p, z, temperature=0.5)
    assert looc(p, z, [g]) == looc(p, z, [g], temperature=0.5)
    targets = {"crop.area": torch.ones(6), "flip.applied": torch.ones(6), "rotation.turns": torch.ones(6).long()}
    assert known.pl_reduction == "mean"
    assert PretextLoss(SPECS)(torch.zeros(6, 6), targets) == PretextLoss(SPECS, "mean")(torch.zeros(6, 6), targets)


def test_alpha_zero_is_plain_similarity_with_the_same_gradient() -> None:
    p, g, z = tensors(batch(0))
    a, b = p.clone().requires_grad_(), p.clone().requires_grad_()
    r2s(a, g, z, alpha=0.0).backward()
    sim(b, z).backward()
    assert torch.equal(a.grad, b.grad)


def test_two_printed_distances_are_four_times_simsiams_own_gradient() -> None:
    p1, p2, z = tensors(batch(3))
    a, b = p1.clone().requires_grad_(), p1.clone().requires_grad_()
    (sim(a, z) + sim(p2, z)).backward()
    own = -(torch.cosine_similarity(b, z).mean() + torch.cosine_similarity(p2, z).mean()) / 2
    own.backward()
    torch.testing.assert_close(a.grad, 4 * b.grad)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.05, 2))
@settings(max_examples=30, deadline=None)
def test_nt_xent_is_simclrs_loss(seed: int, temperature: float) -> None:
    z1, z2, _ = batch(seed)
    both = unit(np.concatenate([z1, z2]))
    logits = both @ both.T / temperature
    n = len(z1)
    total = 0.0
    for i in range(2 * n):  # SimCLR's Algorithm 1, row by row
        positive = (i + n) % (2 * n)
        others = [logits[i, k] for k in range(2 * n) if k != i]
        top = max(others)
        total += -logits[i, positive] + top + np.log(np.sum(np.exp(np.array(others) - top)))
    a, b = tensors([z1, z2])
    ours = (nt_xent(a, b, temperature) + nt_xent(b, a, temperature)) / 2
    assert ours.item() == pytest.approx(total / (2 * n), rel=1e-4)


@given(seed=st.integers(0, 10_000), temperature=st.floats(0.1, 2))
@settings(max_examples=20, deadline=None)
def test_looc_finds_the_key_that_shares_the_augmentation(seed: int, temperature: float) -> None:
    q, key, other = (unit(x) for x in batch(seed))
    total = 0.0
    for i in range(len(q)):
        logits = np.array([*(q[i] @ k for k in key), q[i] @ other[i]]) / temperature
        total += -logits[i] + np.log(np.exp(logits).sum())
    a, b, c = tensors([q, key, other])
    assert looc(a, b, [c], temperature).item() == pytest.approx(total / len(q), rel=1e-4)


SPECS = (
    Target("crop.area", "continuous", mean=0.6, std=0.2),
    Target("flip.applied", "binary"),
    Target("rotation.turns", "categorical", classes=4),
)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_pl_is_cross_entropy_and_squared_error(reduction: str) -> None:
    rng = np.random.default_rng(1)
    out = rng.normal(size=(7, 6))
    area, flip, turns = rng.uniform(size=7), rng.integers(2, size=7), rng.integers(4, size=7)
    square = (out[:, 0] - (area - 0.6) / 0.2) ** 2
    sigmoid = 1 / (1 + np.exp(-out[:, 1]))
    entropy = -(flip * np.log(sigmoid) + (1 - flip) * np.log(1 - sigmoid))
    shifted = out[:, 2:] - out[:, 2:].max(1, keepdims=True)
    angle = -(shifted[np.arange(7), turns] - np.log(np.exp(shifted).sum(1)))
    parts = [square.mean(), entropy.mean(), angle.mean()]
    columns = {
        "crop.area": torch.tensor(area),
        "flip.applied": torch.tensor(flip),
        "rotation.turns": torch.tensor(turns),
    }
    targets = {spec.name: spec.value(columns[spec.name]) for spec in SPECS}
    ours = PretextLoss(SPECS, reduction)(torch.tensor(out), targets).item()
    assert ours == pytest.approx(sum(parts) if reduction == "sum" else sum(parts) / 3, rel=1e-5)


def test_pl_names_each_of_its_parts() -> None:
    columns = {"crop.area": torch.rand(3), "flip.applied": torch.ones(3), "rotation.turns": torch.tensor([0, 1, 2])}
    each = PretextLoss(SPECS).each(torch.zeros(3, 6), {s.name: s.value(columns[s.name]) for s in SPECS})
    assert list(each) == ["crop.area", "flip.applied", "rotation.turns"]
    assert each["rotation.turns"].item() == pytest.approx(np.log(4))
