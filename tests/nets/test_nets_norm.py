"""Views in one batch are normalised as views sent one after another."""

import copy

import pytest
import torch
import torchvision
from torch import nn

from prelax.nets import MLP, Encoder, ViewNorm2d, backbone, keeps_views_apart, normalise_views, projector, set_views
from prelax.nets.norm import normalised, prepare_to_compile, silent_channels
from prelax.train.engine import BACKBONE


@pytest.mark.parametrize("views", [1, 2, 3])
def test_one_pass_equals_views_sent_one_after_another(views: int) -> None:
    torch.manual_seed(0)
    plain, together = nn.BatchNorm2d(4), ViewNorm2d(4)
    with torch.no_grad():
        plain.weight.uniform_(0.5, 2)
        plain.bias.normal_()
    together.load_state_dict(plain.state_dict())
    set_views(together, views)
    x = (torch.randn(views, 6, 4, 5, 5) * torch.rand(views, 1, 4, 1, 1) * 3 + 2).requires_grad_()
    y = x.detach().clone().requires_grad_()
    one_by_one = torch.stack([plain(view) for view in x])
    at_once = together(y.flatten(0, 1)).unflatten(0, (views, -1))
    weight = torch.randn_like(one_by_one)
    (one_by_one * weight).sum().backward()
    (at_once * weight).sum().backward()
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-5)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_sum_and_a_relu_in_the_same_call_have_autograds_gradients(relu: bool, adds: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    plain, together = nn.BatchNorm2d(3).double(), ViewNorm2d(3).double()
    with torch.no_grad():
        plain.weight.uniform_(-2, 2)  # a negative one turns what the ReLU cuts
        plain.bias.normal_()
    together.load_state_dict(plain.state_dict())
    set_views(together, 2)
    x, shortcut = (torch.randn(8, 3, 4, 4, dtype=torch.float64).to(memory_format=torch.channels_last) for _ in "ab")
    ends = [(x.clone().requires_grad_(), shortcut.clone().requires_grad_()) for _ in "ab"]
    wanted = torch.cat([plain(view) for view in ends[0][0].chunk(2)]) + (ends[0][1] if adds else 0)
    wanted = wanted.relu() if relu else wanted
    run = torch.compile(together, backend="aot_eager", fullgraph=True) if compiled else together
    found = run(ends[1][0], add=ends[1][1] if adds else None, relu=relu)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(wanted)
    for y in (wanted, found):
        (y * weight).sum().backward()
    torch.testing.assert_close(ends[1][0].grad, ends[0][0].grad)
    if adds:
        torch.testing.assert_close(ends[1][1].grad, ends[0][1].grad)
    torch.testing.assert_close(together.weight.grad, plain.weight.grad)
    torch.testing.assert_close(together.bias.grad, plain.bias.grad)
    torch.testing.assert_close(together.running_var, plain.running_var)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_resnet_is_torchvisions(name: str) -> None:
    ours, theirs = backbone(name, "imagenet"), getattr(torchvision.models, name)()
    theirs.fc = nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 40, 40)
    for mode in (True, False):
        torch.testing.assert_close(ours.train(mode)(images), theirs.train(mode)(images))


def test_eval_mode_uses_the_running_averages() -> None:
    norm = ViewNorm2d(2)
    set_views(norm, 2)
    norm(torch.randn(8, 2, 3, 3) + 5)
    norm.eval()
    x = torch.randn(3, 2, 3, 3)  # an odd number: no views here
    wanted = nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    torch.testing.assert_close(norm(x), wanted)


def test_a_borrowed_view_is_normalised_by_the_lender() -> None:
    norm = nn.BatchNorm1d(3, affine=False)
    x = torch.randn(2, 9, 3)
    x[1] *= 0.01  # its own statistics would blow it up to length one
    borrowed = normalise_views(x, norm, borrow=[0, 0])
    mean, std = x[0].mean(0), x[0].std(0, correction=0)
    torch.testing.assert_close(borrowed[1], (x[1] - mean) / (std**2 + 1e-5).sqrt())
    assert (normalise_views(x, norm)[1].std(0) > 10 * borrowed[1].std(0)).all()


def test_the_encoder_gives_the_same_features_together_or_apart() -> None:
    torch.manual_seed(0)
    one = Encoder(backbone("resnet8", channels=1), projector(64, 32, 16))
    two = copy.deepcopy(one)
    images = torch.randn(12, 1, 16, 16)
    torch.testing.assert_close(
        one.features(images, 3, together=True), two.features(images, 3, together=False), rtol=1e-4, atol=1e-5
    )
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_net_with_ordinary_batchnorm_is_not_given_views_together() -> None:
    assert keeps_views_apart(backbone("resnet8"))
    assert not keeps_views_apart(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)))


def test_mlp_keeps_the_statistics_of_views_apart() -> None:
    torch.manual_seed(0)
    net = MLP([4, 8, 3], last_norm=True)
    x = torch.randn(2, 10, 4)
    x[1] += 100
    torch.testing.assert_close(net(x)[0], net(x[0]), rtol=1e-4, atol=1e-5)


def test_compiled_blocks_give_the_outputs_and_gradients_of_plain_ones() -> None:
    torch.manual_seed(0)
    one, two = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
    layers = nn.ModuleList([one, ViewNorm2d(8), two, ViewNorm2d(8)])
    layers.to(memory_format=torch.channels_last)
    set_views(layers, 3)
    for norm in (layers[1], layers[3]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)

    def two_blocks(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            inner = layers[1](layers[0](x), relu=True)
            x = layers[3](layers[2](inner), add=x, relu=True)
        return x

    prepare_to_compile()
    images = torch.randn(6, 8, 5, 5).contiguous(memory_format=torch.channels_last)
    found = []
    for run in (two_blocks, torch.compile(two_blocks, dynamic=False, options=BACKBONE)):
        own, x = copy.deepcopy(layers), images.clone().requires_grad_()
        y = run(own, x)
        y.square().sum().backward()
        found.append([y, x.grad, *(p.grad for p in own.parameters()), *own.buffers()])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-3)


def test_without_momentum_the_running_averages_are_those_of_all_batches() -> None:
    torch.manual_seed(0)
    plain, together = nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, momentum=None)
    for batch in torch.randn(3, 2, 6, 4) * 3 + 1:
        for view in batch:
            plain(view)
        normalise_views(batch, together)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_normalised_by_moments_of_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, plain = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = (3 * torch.randn(2, 64, 4) + 2).to(dtype)
    found = normalise_views(x, norm)
    wanted = torch.stack([plain(view.float()) for view in x])
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(norm.running_mean, plain.running_mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var, plain.running_var, rtol=1e-3, atol=1e-3)


def test_another_norm_in_the_place_of_one_gives_the_same() -> None:
    torch.manual_seed(0)
    ours = ViewNorm2d(3).eval()
    nn.init.normal_(ours.weight)
    other = nn.BatchNorm2d(3).eval()
    other.load_state_dict(ours.state_dict())
    x, shortcut = torch.randn(2, 4, 3, 5, 5)
    for add in (None, shortcut):
        for relu in (False, True):
            plain = other(x) + (0 if add is None else add)
            wanted = plain.relu() if relu else plain
            torch.testing.assert_close(normalised(ours, x, add, relu), wanted)
            torch.testing.assert_close(normalised(other, x, add, relu), wanted)


def test_a_network_without_norms_has_no_share_of_silent_channels() -> None:
    assert silent_channels(nn.Linear(2, 2)) is None
    assert silent_channels(nn.BatchNorm1d(2, track_running_stats=False)) is None
