from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F

from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.evaluate.linear import BYOL, SIMSIAM, Protocol, Score, score, train_probes


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def by_torch(epochs, labels, classes, protocol, seed):
    """The protocol with nn.Linear, autograd and torch.optim.SGD, one probe."""
    first = epochs(0)
    layer = nn.Linear(first.shape[1], classes)
    with torch.no_grad():
        layer.weight.copy_(0.01 * Draws(seed, rows=classes).at("probe").normal("weight", first.shape[1]))
        layer.bias.zero_()
    optimiser = torch.optim.SGD(layer.parameters(), protocol.lr, protocol.momentum, nesterov=protocol.nesterov)
    for epoch in range(protocol.epochs):
        bank = epochs(epoch)
        order = Draws(seed, rows=len(bank)).at("probe", "order", epoch).bits("rank")[:, 0].argsort()
        for group in optimiser.param_groups:
            group["lr"] = protocol.lr * protocol.rate(epoch)
        for index in order.split(protocol.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(layer(bank[index]), labels[index]).backward()
            optimiser.step()
    return layer


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(lr=0.5, epochs=5, batch_size=64, milestones=(2, 4)),
        Protocol(lr=0.2, epochs=4, batch_size=100, nesterov=True),
    ],
)
def test_every_probe_is_the_one_torch_would_train_alone(protocol):
    x, y = digits()
    x, y = x[:500], y[:500]

    def epochs(e: int) -> torch.Tensor:  # features that change with the epoch, as augmented ones do
        return x + 0.1 * Draws(9, rows=len(x)).at(e).normal("noise", x.shape[1])

    probes = train_probes(epochs, y, 10, protocol, seeds=(0, 3, 4))
    for row, seed in enumerate((0, 3, 4)):
        layer = by_torch(epochs, y, 10, protocol, seed)
        torch.testing.assert_close(probes.weight[row], layer.weight.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(probes.bias[row], layer.bias.detach(), rtol=1e-3, atol=1e-4)


def test_the_papers_schedules():
    assert (SIMSIAM.lr, SIMSIAM.epochs, SIMSIAM.batch_size, SIMSIAM.momentum, SIMSIAM.nesterov) == (
        30.0,
        100,
        256,
        0.9,
        False,
    )
    assert [SIMSIAM.lr * SIMSIAM.rate(e) for e in (0, 59, 60, 79, 80, 99)] == pytest.approx([30, 30, 3, 3, 0.3, 0.3])
    assert (BYOL.lr, BYOL.epochs, BYOL.batch_size, BYOL.momentum, BYOL.nesterov) == (0.5, 80, 256, 0.9, True)
    assert BYOL.rate(0) == 1.0
    assert BYOL.rate(40) == pytest.approx(0.5)


def test_a_converged_probe_is_as_good_as_scikit_learns():
    x, y = digits()
    train, test = slice(0, 1300), slice(1300, None)
    probes = train_probes(lambda e: x[train], y[train], 10, Protocol(lr=0.5, epochs=60, batch_size=128), seeds=(0, 1))
    ours = score(probes.predict(x[test]), y[test])
    theirs = 100 * LogisticRegression(C=10, max_iter=500).fit(x[train], y[train]).score(x[test], y[test])
    assert ours.mean == pytest.approx(theirs, abs=1.5)


def test_seeds_differ_and_a_seed_repeats():
    x, y = digits()
    protocol = Protocol(lr=0.1, epochs=1, batch_size=256)
    both = train_probes(lambda e: x, y, 10, protocol, seeds=(0, 1))
    alone = train_probes(lambda e: x, y, 10, protocol, seeds=(1,))
    torch.testing.assert_close(both.weight[1], alone.weight[0])
    assert not torch.allclose(both.weight[0], both.weight[1], atol=1e-3)


def test_several_learning_rates_are_trained_at_once():
    x, y = digits()
    protocol = Protocol(lr=0.1, epochs=2, batch_size=256)
    grid = train_probes(lambda e: x, y, 10, protocol, seeds=(0, 1), lrs=(0.1, 1.0))
    alone = train_probes(lambda e: x, y, 10, Protocol(lr=1.0, epochs=2, batch_size=256), seeds=(1,))
    torch.testing.assert_close(grid.weight[3], alone.weight[0])


def test_training_a_probe_cannot_see_test_images():
    """The last epoch is all there is to report: no test set is passed in, so none can choose an epoch."""
    assert not [name for name in inspect.signature(train_probes).parameters if "test" in name or "valid" in name]


def test_predictions_do_not_depend_on_chunks(monkeypatch):
    x, y = digits()
    probes = train_probes(lambda e: x, y, 10, Protocol(lr=0.5, epochs=2), seeds=(0, 1))
    whole = probes.predict(x)
    monkeypatch.setattr("prelax.evaluate.linear.CHUNK", 1000)
    assert torch.equal(probes.predict(x), whole)


def test_score_is_sample_weighted_with_the_sample_standard_deviation():
    predicted = torch.tensor([[0, 1, 1], [0, 0, 1]])
    result = score(predicted, torch.tensor([0, 1, 0]))
    assert result.accuracies == pytest.approx([200 / 3, 100 / 3])
    assert result.std == pytest.approx(np.std(result.accuracies, ddof=1))
    assert Score([50.0]).std == 0.0


def test_a_probe_that_diverges_says_so():
    x, y = digits()
    with pytest.raises(PrelaxError, match="diverged"):
        train_probes(lambda e: x * 1e20, y, 10, Protocol(lr=1e10, epochs=2))


def test_labels_of_another_length_are_refused():
    x, y = digits()
    with pytest.raises(PrelaxError, match="labels"):
        train_probes(lambda e: x, y[:-1], 10, SIMSIAM)
