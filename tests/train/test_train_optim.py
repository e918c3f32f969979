"""Optimisers and schedules against plain NumPy."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from prelax.config import MethodSettings, TrainSettings
from prelax.train import LARS, Muon, lr_schedule, tau_schedule
from prelax.train.optim import (
    constant_after_warmup,
    groups,
    optimizer,
    peak_lr,
    schedules,
    share_schedule,
)


def test_lars_equals_a_numpy_reference_for_several_steps() -> None:
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(4, 3)), "b": rng.normal(size=3)}
    weights = {name: nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    optimizer = LARS(
        [{"params": [weights["w"]]}, {"params": [weights["b"]], "adapt": False, "weight_decay": 0.0}],
        lr=0.3,
        momentum=0.9,
        weight_decay=0.01,
        trust=1e-3,
    )
    wanted, speed = {k: v.copy() for k, v in start.items()}, {k: np.zeros_like(v) for k, v in start.items()}
    for _ in range(5):
        grads = {name: rng.normal(size=value.shape) for name, value in start.items()}
        for name, grad in grads.items():
            weights[name].grad = torch.tensor(grad)
            if name == "w":
                grad = grad + 0.01 * wanted[name]
                grad = grad * 1e-3 * np.linalg.norm(wanted[name]) / np.linalg.norm(grad)
            speed[name] = 0.9 * speed[name] + grad
            wanted[name] = wanted[name] - 0.3 * speed[name]
        optimizer.step()
    for name, value in wanted.items():
        np.testing.assert_allclose(weights[name].detach().numpy(), value, rtol=1e-12)


def test_lars_leaves_a_weight_of_length_zero_to_plain_steps() -> None:
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    LARS([weight], lr=0.1, momentum=0.0).step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), -0.1))


@pytest.mark.parametrize("kind", [LARS, Muon])
def test_a_step_computes_the_gradients_that_it_is_asked_to_compute_first(kind: type[LARS | Muon]) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)

    def closure() -> torch.Tensor:  # as Lightning hands it over
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert (weight < 1).all()


def test_muon_turns_matrices_of_the_encoder_and_nothing_else() -> None:
    network = nn.Module()
    network.online = nn.ModuleDict(
        {"conv": nn.Conv2d(3, 4, 3), "depthwise": nn.Conv2d(4, 4, 3, groups=4), "linear": nn.Linear(4, 5)}
    )
    network.predictor, network.heads = nn.Linear(5, 5), nn.Linear(5, 2)
    parts = groups(network, TrainSettings(optimizer="muon"))
    (turned,) = [part for part in parts if part.get("matrix")]
    assert {id(weight) for weight in turned["params"]} == {
        id(network.online[name].weight) for name in ("conv", "linear")
    }
    assert sum(len(part["params"]) for part in parts) == len(list(network.parameters()))


@pytest.mark.parametrize("spread", [0.0, 1e-6])
def test_muon_leaves_weights_that_begin_at_nothing_to_grow(spread: float) -> None:
    network = nn.Module()
    network.online = nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3), "gate": nn.Linear(4, 4)})
    nn.init.normal_(network.online["gate"].weight, std=spread)
    stepper = optimizer(network, TrainSettings(optimizer="muon", lr=0.1, batch_size=256), torch.device("cpu"))
    network.online["gate"].weight.grad = torch.ones(4, 4)
    stepper.step()
    assert network.online["gate"].weight.norm() > 0.1


def test_how_far_matrices_turn_follows_the_rate() -> None:
    train = TrainSettings(epochs=4, lr=0.5, batch_size=512, warmup_epochs=1, turn=0.1)
    tables = schedules(MethodSettings(), train, steps=5)
    assert max(tables["turn"]) == pytest.approx(0.1)
    assert tables["turn"] == pytest.approx([0.1 * rate / 1.0 for rate in tables["lr"]])


def test_the_rate_warms_up_linearly_and_falls_by_cosine_to_nothing() -> None:
    settings = TrainSettings(epochs=10, batch_size=512, lr=0.03, warmup_epochs=2)
    rates = lr_schedule(settings, steps=5)
    assert len(rates) == 50
    assert rates[:10] == pytest.approx([0.06 * (i + 1) / 10 for i in range(10)])
    assert rates[10] == pytest.approx(peak_lr(settings))
    assert rates[30] == pytest.approx(0.03)
    assert rates[-1] < 1e-4
    constant = constant_after_warmup(rates)
    assert constant[:10] == rates[:10]
    assert set(constant[10:]) == {peak_lr(settings)}


def test_the_rate_falls_along_a_line_if_asked_and_ends_where_it_is_told() -> None:
    settings = TrainSettings(epochs=10, batch_size=256, lr=1.0, warmup_epochs=2, schedule="linear", final_lr=0.2)
    rates = lr_schedule(settings, steps=5)
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:] == pytest.approx([1.0 - 0.8 * i / 40 for i in range(40)])


def test_tau_rises_to_one() -> None:
    taus = tau_schedule(0.996, 100)
    assert taus[0] == pytest.approx(0.996)
    assert taus[50] == pytest.approx(0.998)
    assert all(a < b for a, b in itertools.pairwise(taus))
    assert taus[-1] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("end", [0.0, 0.25, 1.0])
def test_the_pretexts_share_falls_to_its_end(end: float) -> None:
    shares = share_schedule(end, 101)
    assert shares[0] == 1.0
    assert shares[50] == pytest.approx((1 + end) / 2)
    assert shares[-1] == end
    assert all(a > b or end == 1.0 for a, b in itertools.pairwise(shares))
    assert share_schedule(end, 1) == [1.0]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.predictor = nn.Sequential(nn.Linear(2, 2))


def test_lars_spares_biases_and_the_predictor_stands_apart() -> None:
    parts = groups(Two(), TrainSettings(optimizer="lars", predictor_lr="constant"))
    found = {(part["constant"], part.get("adapt", True)): len(part["params"]) for part in parts}
    assert found == {(False, True): 1, (False, False): 1, (True, True): 1, (True, False): 1}
    assert len(groups(Two(), TrainSettings(predictor_lr="cosine"))) == 1


def test_a_part_of_a_backbone_that_is_called_predictor_follows_the_schedule() -> None:
    network = Two()
    network.body = nn.ModuleDict({"depth_predictor": nn.Linear(2, 2), "predictor": nn.Linear(2, 2)})
    constant = [part for part in groups(network, TrainSettings(predictor_lr="constant")) if part["constant"]]
    assert [id(weight) for part in constant for weight in part["params"]] == [*map(id, network.predictor.parameters())]


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "muon"])
def test_norms_and_biases_are_spared_decay_where_asked(name: str) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    settings = TrainSettings(optimizer=name, weight_decay=0.5, decay_norms=False, lr=0.1, batch_size=256)
    made = optimizer(network, settings, torch.device("cpu"))
    before = [weight.detach().clone() for weight in network.parameters()]
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight)
    made.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)]
    assert moved == [True, False, False, False]  # the Linear's matrix alone


def test_everything_decays_unless_asked_as_in_simsiam() -> None:
    assert len(groups(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), TrainSettings())) == 1
