"""What a method is said not to read changes neither its loss nor a gradient."""

import pytest
import torch

from prelax.config import Settings, merge, resolve, validate
from prelax.objectives import METHODS, unread
from prelax.train import Objective, ViewMaker

SMALL = ["model.projector_hidden=16", "model.projector_dim=12", "model.predictor_hidden=8", "model.head_hidden=8"]
OTHERWISE: dict[str, object] = {
    "alpha": 0.3,
    "alpha2": 0.4,
    "beta": 3.0,
    "gamma": 0.7,
    "gamma2": 0.8,
    "eta": 0.01,
    "residual": "normalised",
    "residual_gradient": "detach",
    "residual_norm": "shared",
    "reverse": True,
    "pl_anchor": "other",
    "std_anchor": "none",
    "std_reads": "backbone",
    "std_tells": "difference",
    "asks": "crop",
    "similarity": "one-way",
    "pl_reduction": "sum",
    "temperature": 0.2,
}


def chosen(**method: object) -> Settings:
    return validate(merge(resolve("digits/simsiam", SMALL).model_dump(), {"method": method}))


def taught(**method: object) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of features that are given, and its gradients: of all but the backbone."""
    settings, generator = chosen(**method), torch.Generator().manual_seed(1)
    maker = ViewMaker(settings, 1, 16, torch.device("cpu"))
    pixels = torch.randint(0, 256, (8, 1, 16, 16), dtype=torch.uint8, generator=generator)
    given = maker(pixels, torch.arange(8), 1, torch.arange(8) % 3)
    torch.manual_seed(0)
    net = Objective(settings, 1, maker.size, maker.specs, maker.relaxed_specs, classes=3)
    h, aim = (torch.randn(len(net.views), 8, 64, generator=generator, requires_grad=True) for _ in range(2))
    target = aim[: net.aims].detach() if net.network.target is not None else None
    loss, _ = net.judge(h, target, given.targets, given.relaxed, given.labels)
    loss.backward()
    grads = {name: weight.grad for name, weight in net.named_parameters() if weight.grad is not None}
    return loss.item(), grads | ({"h": h.grad} if h.grad is not None else {})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("start", [{}, {"alpha": 0.0, "gamma": 0.0}, {"pl_anchor": "none", "std_anchor": "none"}])
def test_a_setting_that_a_method_does_not_read_changes_nothing(name: str, start: dict[str, object]) -> None:
    loss, grads = taught(name=name, **start)
    for key in unread(chosen(name=name, **start).method) & OTHERWISE.keys():
        other, others = taught(**{"name": name, **start, key: OTHERWISE[key]})
        assert other == loss, key
        assert all(torch.equal(grad, others[weight]) for weight, grad in grads.items()), key


@pytest.mark.parametrize("key", [key for key in OTHERWISE if key not in ("eta", "temperature")])
def test_prelax_all_reads_every_setting_but_those_of_other_bases(key: str) -> None:
    assert unread(chosen(name="prelax-all").method) == {"eta", "temperature", "tau"}
    loss, grads = taught(name="prelax-all")
    other, others = taught(**{"name": "prelax-all", key: OTHERWISE[key]})
    same = grads.keys() == others.keys() and all(
        grad.shape == others[weight].shape and torch.equal(grad, others[weight]) for weight, grad in grads.items()
    )
    assert loss != other or not same
