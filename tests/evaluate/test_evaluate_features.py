from __future__ import annotations

import pytest
import torch
from torch import nn

from prelax.errors import PrelaxError
from prelax.evaluate.features import extract, fingerprint, fold_norms, frozen, in_half, state_of
from prelax.export import plain_norms
from prelax.nets import backbone


def test_features_are_those_of_the_backbone_in_eval_mode_whatever_the_batch(tiny, pixels, preprocess):
    tiny.train()
    got = extract(tiny, pixels, preprocess, batch_size=8)
    assert torch.equal(got[8:16], extract(tiny, pixels[8:16], preprocess))
    tiny.eval()
    with torch.no_grad():
        torch.testing.assert_close(got, tiny(preprocess(pixels)), rtol=1e-5, atol=1e-6)
    assert got.dtype == torch.float32
    assert not got.requires_grad


def test_a_cpu_gets_photos_in_batches_of_a_megapixel_and_small_images_by_the_hundred():
    seen: list[int] = []
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    for side, count, batches in ((256, 40, [16, 16, 8]), (16, 600, [600])):
        seen.clear()
        images = torch.zeros(1, 1, side, side, dtype=torch.uint8).expand(count, 1, side, side)
        extract(backbone, images, lambda batch: batch.float())
        assert seen == batches


def test_a_backbone_in_training_mode_comes_back_in_training_mode_with_the_same_weights(tiny, pixels, preprocess):
    tiny.train()
    tiny.conv1.requires_grad_(False)
    before = fingerprint(tiny)
    extract(tiny, pixels, preprocess)
    assert tiny.training
    assert tiny.bn1.training
    assert fingerprint(tiny) == before
    assert not tiny.conv1.weight.requires_grad
    assert tiny.conv2.weight.requires_grad


def test_a_step_on_the_backbone_during_an_evaluation_voids_it(tiny):
    with pytest.raises(PrelaxError, match="weights changed"), frozen(tiny), torch.no_grad():
        tiny.conv2.weight[0, 0, 0, 0] += 1e-6


def test_running_statistics_moved_during_an_evaluation_void_it(tiny):
    def forget_eval_mode() -> None:
        tiny.bn1.train()
        tiny.bn1(torch.randn(4, 8, 2, 2))
        tiny.bn1.eval()

    with pytest.raises(PrelaxError, match="weights changed"), frozen(tiny):
        forget_eval_mode()


def test_a_part_put_in_training_mode_voids_the_evaluation(tiny):
    with pytest.raises(PrelaxError, match="bn2 was put in training mode"), frozen(tiny):
        tiny.bn2.train()


def test_gradients_cannot_reach_the_backbone_while_frozen(tiny, pixels, preprocess):
    with frozen(tiny):
        assert not tiny(preprocess(pixels)).requires_grad


def test_folded_norms_give_the_same_features(tiny, pixels, preprocess):
    folded = fold_norms(tiny)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    tiny.eval()
    with torch.no_grad():
        torch.testing.assert_close(folded(preprocess(pixels)), tiny(preprocess(pixels)), rtol=1e-4, atol=1e-4)


def test_norms_that_keep_views_apart_are_folded_too(pixels, preprocess):
    net, x = backbone("resnet8"), preprocess(pixels)
    net.train()(x)
    folded = fold_norms(net)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    with torch.no_grad():
        torch.testing.assert_close(folded(x), net.eval()(x), rtol=1e-4, atol=1e-4)


def test_a_backbone_that_cannot_be_traced_is_used_as_it_is(pixels, preprocess):
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3)) * (self.scale if images.mean() > 0 else -self.scale)

    net = Branching()
    assert torch.equal(fold_norms(net)(preprocess(pixels)), net(preprocess(pixels)))


def test_features_that_are_not_finite_are_refused_in_one_line(tiny, pixels, preprocess):
    with torch.no_grad():
        tiny.conv1.weight.fill_(float("nan"))
    with pytest.raises(PrelaxError, match="diverged"):
        extract(tiny, pixels, preprocess)


class NormAct(nn.BatchNorm2d):
    """A norm with its activation inside, as timm's BatchNormAct2d."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_norms_that_do_more_than_normalise_stay_what_they_are(pixels, preprocess):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), NormAct(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = preprocess(pixels).expand(-1, 3, -1, -1)
    net.train()(x)
    with torch.no_grad():
        wanted = net.eval()(x)
        torch.testing.assert_close(fold_norms(net)(x), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(plain_norms(net)(x), wanted)


def test_a_backbone_of_one_size_is_used_as_it_is(pixels, preprocess):
    class Picky(nn.Conv2d):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            torch._assert(images.shape[-1] == 16, "of one size")
            return super().forward(images)

    net = nn.Sequential(Picky(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    x = torch.rand(2, 1, 16, 16)
    found = fold_norms(net)
    assert isinstance(found, nn.Sequential)  # not a folded one, which nobody could compare with it
    torch.testing.assert_close(found(x), net(x))


def test_a_copy_in_half_precision_is_used_where_it_gives_the_same_features(tiny, pixels, preprocess):
    class Anchored(nn.Conv2d):
        """Makes a float32 tensor of its own."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) @ torch.eye(images.shape[-1] - 2)

    class Waves(nn.Conv2d):
        """Filters by complex weights."""

        def __init__(self) -> None:
            super().__init__(1, 4, 3)
            self.filter = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    x = preprocess(pixels)
    folded = fold_norms(tiny)
    quick = in_half(folded, x[:4], folded, torch.float16)
    assert quick is not None
    with torch.no_grad():
        wanted = folded(x)
        torch.testing.assert_close(quick(x), wanted, rtol=0, atol=0.01 * float(wanted.abs().max()))
    assert next(folded.parameters()).dtype == torch.float32  # a copy
    for net in (tiny.eval(), Anchored(1, 4, 3), Waves()):  # the first has norms
        assert in_half(net, x[:4], net, torch.float16) is None
    assert in_half(folded, x[:4], lambda images: 2 * folded(images), torch.float16) is None


def test_any_change_of_a_networks_weights_is_told_without_reading_them() -> None:
    net = backbone("resnet8", channels=1)
    seen = {state_of(net)}
    net(torch.randn(4, 1, 16, 16)).sum().backward()  # moves the running statistics
    seen.add(state_of(net))
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    seen.add(state_of(net))
    net.load_state_dict(backbone("resnet8", channels=1).state_dict())
    seen.add(state_of(net))
    net.conv1.weight.data = torch.zeros_like(net.conv1.weight)  # type: ignore[union-attr]
    seen.add(state_of(net))
    assert len(seen) == 5
    with torch.no_grad():
        net.eval()(torch.randn(4, 1, 16, 16))
    assert state_of(net) in seen
