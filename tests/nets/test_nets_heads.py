"""Heads are the plain layers they are said to be, and a network has those it was asked for."""

import copy

import pytest
import torch
from torch import nn

from prelax.config import ModelSettings
from prelax.nets import MLP, Encoder, Network, backbone, predictor, pretext_head, projector

SIZES = ModelSettings(
    backbone="resnet8", projector_layers=2, projector_hidden=10, projector_dim=6, predictor_hidden=3, head_hidden=5
)


def hidden(a: int, b: int) -> list[nn.Module]:
    return [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()]


HEADS = [
    (projector(6, 5, 4), [*hidden(6, 5), *hidden(5, 5), nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4, affine=False)]),
    (projector(6, 5, 4, layers=2, last_norm=False), [*hidden(6, 5), nn.Linear(5, 4)]),
    (projector(6, 5, 4, layers=1), [nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4, affine=False)]),
    (predictor(4, 3), [*hidden(4, 3), nn.Linear(3, 4)]),
    (pretext_head(4, 7), [*hidden(4, 512), nn.Linear(512, 7)]),
    (pretext_head(4, 7, 5, layers=1), [nn.Linear(4, 7)]),
    (pretext_head(4, 7, 5, layers=3), [*hidden(4, 5), *hidden(5, 5), nn.Linear(5, 7)]),
]


def twin(ours: MLP, layers: list[nn.Module]) -> tuple[MLP, nn.Sequential]:
    """A head and plain layers of the same weights, drawn anew, in float64."""
    torch.manual_seed(0)
    ours, theirs = copy.deepcopy(ours).double(), nn.Sequential(*copy.deepcopy(layers)).double()
    for kind, mine in ((nn.Linear, ours.linears), (nn.BatchNorm1d, ours.norms)):
        for one, other in zip(mine, [layer for layer in theirs if isinstance(layer, kind)], strict=True):
            for weight in other.parameters():
                nn.init.normal_(weight)
            one.load_state_dict(other.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("ours", "layers"), HEADS)
def test_a_head_is_its_plain_layers_view_after_view(ours: MLP, layers: list[nn.Module]) -> None:
    ours, theirs = twin(ours, layers)
    x = torch.randn(2, 9, ours.linears[0].in_features, dtype=torch.float64) * torch.tensor([1.0, 4.0]).view(2, 1, 1)
    torch.testing.assert_close(ours(x), torch.stack([theirs(view) for view in x]))
    torch.testing.assert_close(ours(x[1]), theirs(x[1]))
    ours.eval()  # by the running averages of those three batches
    theirs.eval()
    torch.testing.assert_close(ours(x), torch.stack([theirs(view) for view in x]))
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))


def test_a_head_stands_on_embeddings_features_or_two_of_them() -> None:
    network = Network(SIZES, 1, 16, {"pl": ("z", 7), "angle": ("h", 4), "both": ("hh", 2)})
    sizes = {name: [(x.in_features, x.out_features) for x in head.linears] for name, head in network.heads.items()}
    assert sizes == {"pl": [(6, 5), (5, 7)], "angle": [(64, 5), (5, 4)], "both": [(128, 5), (5, 2)]}
    assert [(x.in_features, x.out_features) for x in network.online.projector.linears] == [(64, 10), (10, 6)]
    assert [(x.in_features, x.out_features) for x in network.predictor.linears] == [(6, 3), (3, 6)]


def test_a_network_has_no_target_and_no_predictor_but_where_they_are_asked_for() -> None:
    network = Network(SIZES, 1, 16, {}, predicts=False)
    assert network.predictor is None
    assert network.target is None
    network.follow(0.5)  # nothing to move
    assert Network(SIZES, 1, 16, {}, moving_target=True).target is not None


def test_every_batch_is_predicted_by_its_own_statistics_or_by_those_it_borrows() -> None:
    torch.manual_seed(0)
    network = Network(SIZES, 1, 16, {})
    asked = [torch.randn(8, 6), 0.01 * torch.randn(8, 6)]
    for found, batch in zip(network.predict(asked), asked, strict=True):
        torch.testing.assert_close(found, network.predictor(batch), rtol=1e-4, atol=1e-5)
    lent = network.predict(asked, borrow=[0, 0])
    torch.testing.assert_close(lent[0], network.predictor(asked[0]), rtol=1e-4, atol=1e-5)
    assert lent[1].std(0).max() < 0.1 * lent[0].std(0).max()


def test_a_batch_of_single_images_after_one_of_views_is_one_batch() -> None:
    torch.manual_seed(0)
    encoder = Encoder(backbone("resnet8", channels=1), projector(64, 8, 4))
    images = torch.randn(12, 1, 16, 16)
    alone = torch.stack([encoder.backbone(view) for view in images.chunk(3)])
    whole = encoder(images)
    torch.testing.assert_close(encoder.features(images, 3, together=True), alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder.features(images, 3, together=False), alone)
    encoder.features(images, 3, together=True)
    torch.testing.assert_close(encoder(images), whole)
