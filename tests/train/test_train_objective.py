"""The objective: what it equals, and what its gradient reaches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from prelax.config import Settings, merge, validate
from prelax.errors import PrelaxError
from prelax.objectives import sim
from prelax.record import Target, differences
from prelax.train import Objective
from prelax.train.step import Views

SPECS = (Target("crop.area", "continuous"), Target("flip.applied", "binary"))
RELAXED = (Target("rotation.turns", "categorical", classes=4, turns=True),)
SMALL = {
    "backbone": "resnet8",
    "projector_layers": 2,
    "projector_hidden": 16,
    "projector_dim": 12,
    "predictor_hidden": 8,
    "head_hidden": 8,
}


def settings(**method: object) -> Settings:
    return validate(merge({"model": SMALL}, {"method": method}))


def objective(**method: object) -> Objective:
    torch.manual_seed(0)
    return Objective(settings(**method), 1, 16, SPECS, RELAXED, classes=3)


def views(count: int, rows: int = 8) -> Views:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count * rows, 1, 16, 16, generator=generator)
    drawn = [
        {"crop.area": torch.randn(rows, generator=generator), "flip.applied": torch.ones(rows)} for _ in range(count)
    ]
    relaxed = [{"rotation.turns": torch.randint(4, (rows,), generator=generator)} for _ in range(count)]
    return Views(images, drawn, relaxed, torch.randint(3, (rows,), generator=generator))


def gradients(net: Objective, given: Views) -> dict[str, torch.Tensor]:
    loss, _ = net(given)
    loss.backward()
    return {name: weight.grad for name, weight in net.named_parameters() if weight.grad is not None}


def test_alpha_zero_gamma_zero_is_exactly_simsiam_in_loss_and_gradient() -> None:
    plain = objective(name="simsiam")
    prelax = objective(name="prelax-std", alpha=0.0, gamma=0.0, similarity="one-way")
    prelax.load_state_dict(plain.state_dict())
    assert plain(views(2))[0].item() == pytest.approx(prelax(views(2))[0].item(), abs=1e-7)
    plain.load_state_dict(prelax.state_dict())
    ours, theirs = gradients(prelax, views(2)), gradients(plain, views(2))
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("alpha", "alpha2", "asked"), [(0.0, 0.0, 3), (0.0, 1.0, 4), (1.0, 0.0, 4), (0.5, 0.5, 5)])
@pytest.mark.parametrize("norm", ["own", "shared"])
def test_g_sees_no_residual_that_weighs_nothing(alpha: float, alpha2: float, asked: int, norm: str) -> None:
    net = objective(name="prelax-all", alpha=alpha, alpha2=alpha2, residual_norm=norm)
    seen = net(views(3))[1]
    assert net.network.predictor.norms[0].num_batches_tracked.item() == asked  # of z1, z2, z3, r12 and r31
    z = net.network.online.projector(net.features(net.network.online, views(3).images))
    if alpha == 0.0:
        torch.testing.assert_close(seen["loss/r2s"], sim(net.network.predict([z[0]])[0], z[1]).detach())
    if alpha2 == 0.0:
        torch.testing.assert_close(seen["loss/r3s"], sim(net.network.predict([z[2]])[0], z[1]).detach())


def test_simsiam_is_the_mean_of_two_negative_cosines_up_to_a_constant() -> None:
    net = objective(name="simsiam")
    given = views(2)
    h = net.features(net.network.online, given.images)
    z = net.network.online.projector(h)
    p = net.network.predictor(z)
    cosine = torch.cosine_similarity
    own = -(cosine(p[0], z[1].detach()).mean() + cosine(p[1], z[0].detach()).mean()) / 2
    torch.testing.assert_close(net(given)[0], own + 1.0)


def test_prelax_all_is_the_printed_sum_of_its_parts() -> None:
    net = objective(name="prelax-all", similarity="one-way", alpha=0.7, alpha2=0.9, beta=1.5, gamma=0.2, gamma2=0.4)
    _, seen = net(views(3))
    part = {name.removeprefix("loss/"): value.item() for name, value in seen.items() if name.startswith("loss/")}
    printed = (part["r2s"] + part["r3s"]) / 2 + 0.2 / 2 * part["pl"] + 0.4 / 2 * part["rotpl"] + 1.5 * part["sim"]
    assert seen["loss"].item() == pytest.approx(printed / 4, rel=1e-6)


def test_r3s_compares_the_relaxed_prediction_of_view_3_with_view_2() -> None:
    net = objective(name="sim+r3s", alpha=0.6)
    given = views(3)
    z = net.network.online.projector(net.features(net.network.online, given.images))
    p3, g31 = net.network.predict([z[2], z[2] - z[0]])
    relaxed = (p3 - 0.6 * g31).detach().double().numpy()
    z2 = z[1].detach().double().numpy()
    relaxed /= np.linalg.norm(relaxed, axis=1, keepdims=True)
    z2 /= np.linalg.norm(z2, axis=1, keepdims=True)
    assert net(given)[1]["loss/r3s"].item() == pytest.approx(((relaxed - z2) ** 2).sum(1).mean(), rel=1e-4)


def copies(of: int, small: bool) -> Views:
    """Views whose last ``of`` are copies of one in the four turns, of half the size or of the same."""
    generator = torch.Generator().manual_seed(2)
    side = 8 if small else 16
    one = torch.randn(8, 1, side, side, generator=generator)
    turned = torch.cat([torch.rot90(one, -turns, (2, 3)) for turns in range(4)])
    relaxed = [{"rotation.turns": torch.full((8,), turns)} for turns in range(4)]
    if not small:
        return Views(turned, [{}] * 4, relaxed)
    return Views(views(2).images, [{}] * of, [{}, {}, *relaxed], small=turned)


@pytest.mark.parametrize(("name", "small", "weight"), [("essl", True, 1.6), ("rotation", False, 1.0)])
def test_the_angle_is_read_off_all_four_copies_as_one_batch(name: str, small: bool, weight: float) -> None:
    net, given = objective(name=name), copies(6, small)
    turned = given.small if given.small is not None else given.images
    h = net.network.backbone(turned)  # one batch, as E-SSL's and Gidaris's code has it: statistics over all turns
    logits = net.network.heads[name](h).detach().double().numpy()  # (4 B) x 4
    true = np.repeat(np.arange(4), 8)
    wanted = (np.log(np.exp(logits).sum(1)) - logits[np.arange(32), true]).mean()
    loss, seen = net(given)
    assert seen[f"loss/{name}"].item() == pytest.approx(wanted, rel=1e-5)
    printed = weight * wanted + (2 * seen["loss/sim"].item() if small else 0.0)
    assert loss.item() == pytest.approx(printed * net.scale, rel=1e-5)


def test_augself_reads_the_difference_of_two_draws_off_both_features() -> None:
    net, given = objective(name="augself", gamma=0.3), views(2)
    h = net.features(net.network.online, given.images)
    said = net.network.heads["augself"](torch.cat([h[0], h[1]], dim=-1)).detach().double().numpy()  # B x 2
    one, two = (np.stack([drawn[spec.name].numpy() for spec in SPECS], axis=1) for drawn in given.targets)
    wanted = ((said - (one - two)) ** 2).mean(0).mean()  # a squared error of each parameter, the mean of them
    loss, seen = net(given)
    assert seen["loss/augself"].item() == pytest.approx(wanted, rel=1e-5)
    assert loss.item() == pytest.approx((2 * seen["loss/sim"].item() + 0.3 * wanted) / 4, rel=1e-5)


@pytest.mark.parametrize("reads", ["embedding", "backbone"])
def test_a_residual_tells_how_two_draws_differ_if_asked(reads: str) -> None:
    net = objective(name="prelax-std", gamma=0.3, std_tells="difference", std_reads=reads)
    given = views(2)
    h = net.features(net.network.online, given.images)
    z = net.network.online.projector(h)
    r = h[0] - h[1] if reads == "backbone" else z[0] - z[1]
    said = net.network.heads["pl"](r).detach().double().numpy()  # B x 2
    one, two = (np.stack([drawn[spec.name].numpy() for spec in SPECS], axis=1) for drawn in given.targets)
    wanted = ((said - (one - two)) ** 2).mean(0).mean()
    assert net(given)[1]["loss/pl"].item() == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(PrelaxError, match=r"asks of two views: set method\.std_anchor=other"):
        objective(name="prelax-std", std_tells="difference", std_anchor="none")


@pytest.mark.parametrize("name", ["prelax-std", "augself"])
def test_only_what_is_asked_for_has_to_be_told(name: str) -> None:
    both, area = objective(name=name), objective(name=name, asks="crop")
    term = "pl" if name == "prelax-std" else name
    assert (both.losses[term].width, area.losses[term].width) == (2, 1)
    given = views(2)
    other = replace(given, targets=[{**drawn, "flip.applied": 1 - drawn["flip.applied"]} for drawn in given.targets])
    assert area(given)[0] == area(other)[0]
    assert [spec.name for spec in objective(name=name, asks="-flip").losses[term].specs] == ["crop.area"]


def test_a_place_is_asked_for_as_the_views_show_it_when_flips_are_not() -> None:
    """A mirrored view shows its box on the other side, whether or not the flip is asked for."""
    specs = (Target("crop.x", "continuous"), Target("flip.applied", "binary", mirrors="x"))
    one = {"crop.x": torch.tensor([0.5, 0.5]), "flip.applied": torch.tensor([0.0, 1.0])}
    two = {"crop.x": torch.tensor([0.2, 0.2]), "flip.applied": torch.tensor([0.0, 0.0])}
    found = differences(one, two, specs)
    torch.testing.assert_close(found["crop.x"], torch.tensor([0.3, -0.7]))


@pytest.mark.parametrize(("asks", "said"), [("flop", "did you mean flip"), ("-crop,-flip", "leaves nothing to ask")])
def test_asking_for_what_is_not_drawn_is_refused(asks: str, said: str) -> None:
    with pytest.raises(PrelaxError, match=said):
        objective(name="prelax-std", asks=asks)
    objective(name="simsiam", asks=asks)  # which asks nothing


def test_augself_names_the_turn_between_two_turned_views() -> None:
    torch.manual_seed(0)
    net, given = Objective(settings(name="augself"), 1, 16, RELAXED, ()), views(2)
    given = replace(given, targets=given.relaxed)  # the pipeline itself turns, as for images from above
    h = net.features(net.network.online, given.images)
    said = net.network.heads["augself"](torch.cat([h[0], h[1]], dim=-1)).detach()
    assert said.shape == (8, 4)
    one, two = (drawn["rotation.turns"].numpy() for drawn in given.relaxed)
    turn = (one - two) % 4  # from 270 degrees to 0 it is a quarter, not three
    wanted = -said.double().log_softmax(-1).numpy()[np.arange(8), turn].mean()
    assert net(given)[1]["loss/augself"].item() == pytest.approx(wanted, rel=1e-5)


def test_essls_small_views_reach_the_backbone_and_not_the_projector() -> None:
    net, given = objective(name="essl"), copies(6, small=True)
    before = net.network.online.projector.norms[0].num_batches_tracked.item()
    given.small.requires_grad_()
    net(given)[0].backward()
    assert net.network.online.projector.norms[0].num_batches_tracked.item() == before + 2
    assert (given.small.grad.unflatten(0, (4, 8)).abs().sum((1, 2, 3, 4)) > 0).all()


def of_all_turns(**method: object) -> tuple[Objective, Views, torch.Tensor, torch.Tensor]:
    """prelax-turns, views for it, and their embeddings: of views 1 and 2, and of the four copies as one batch."""
    net, given = objective(**{"name": "prelax-turns"} | method), copies(6, small=True)
    given = replace(given, targets=[*views(2).targets, {}, {}, {}, {}])
    project = net.network.online.projector
    z = project(net.features(net.network.online, given.images))
    return net, given, z, project(net.network.backbone(given.small))


def test_prelax_turns_relaxes_each_turn_of_the_small_crop_by_its_own_residual() -> None:
    net, given, z, turned = of_all_turns(alpha2=0.6, residual_gradient="full")
    assert turned.shape == (32, z.shape[-1])
    p, g = net.network.predict([turned, turned - torch.cat([z[0]] * 4)])  # one batch: statistics over all turns
    relaxed, target = (p - 0.6 * g).detach().double().numpy(), torch.cat([z[1]] * 4).detach().double().numpy()
    relaxed /= np.linalg.norm(relaxed, axis=1, keepdims=True)
    target /= np.linalg.norm(target, axis=1, keepdims=True)
    assert net(given)[1]["loss/r3s"].item() == pytest.approx(((relaxed - target) ** 2).sum(1).mean(), rel=1e-4)


@pytest.mark.parametrize(("anchor", "reads"), [("same", "embedding"), ("none", "embedding"), ("none", "backbone")])
def test_prelax_turns_reads_the_angle_of_all_four_copies(anchor: str, reads: str) -> None:
    net, given, z, turned = of_all_turns(pl_anchor=anchor, pl_reads=reads, gamma=0.2, gamma2=0.4)
    read = turned if reads == "embedding" else net.network.backbone(given.small)
    logits = net.network.heads["rotpl"](read - torch.cat([z[0]] * 4) if anchor == "same" else read)
    wanted = torch.nn.functional.cross_entropy(logits, torch.arange(4).repeat_interleave(8)).item()
    loss, seen = net(given)
    assert seen["loss/rotpl"].item() == pytest.approx(wanted, rel=1e-4)
    part = {name.removeprefix("loss/"): value.item() for name, value in seen.items() if name.startswith("loss/")}
    printed = (part["r2s"] + part["r3s"]) / 2 + 0.1 * part["pl"] + 0.2 * part["rotpl"] + 2 * part["sim"]
    assert loss.item() == pytest.approx(printed / 4, rel=1e-5)


def test_prelax_crops_predicts_view_2_from_every_crop_and_asks_each_its_angle() -> None:
    net, given, z, crops = of_all_turns(name="prelax-crops", pl_anchor="none", gamma=0.2, gamma2=0.4)
    loss, seen = net(given)
    predicted, target = net.network.predict([crops])[0], torch.cat([z[1]] * 4)
    distance = 2 - 2 * torch.nn.functional.cosine_similarity(predicted, target).mean()
    assert seen["loss/crops"].item() == pytest.approx(distance.item(), rel=1e-4)
    angle = torch.nn.functional.cross_entropy(net.network.heads["rotpl"](crops), torch.arange(4).repeat_interleave(8))
    assert seen["loss/rotpl"].item() == pytest.approx(angle.item(), rel=1e-4)
    one_two, two_one = (
        (2 - 2 * torch.nn.functional.cosine_similarity(p, t).mean()).item()
        for p, t in zip(net.network.predict([z[0], z[1]]), (z[1], z[0]), strict=True)
    )
    printed = (one_two + distance.item()) / 2 + 0.1 * seen["loss/pl"].item() + 0.2 * angle.item() + two_one + one_two
    assert loss.item() == pytest.approx(printed / 4, rel=1e-4)


@pytest.mark.parametrize("name", ["prelax-turns", "prelax-crops"])
@pytest.mark.parametrize("base", ["simsiam", "byol", "simclr"])
@pytest.mark.parametrize("norm", ["own", "shared"])
def test_small_copies_train_every_base(name: str, base: str, norm: str) -> None:
    net, given = objective(name=name, base=base, residual_norm=norm, pl_anchor="none"), copies(6, small=True)
    given = replace(given, targets=[*views(2).targets, {}, {}, {}, {}])
    given.small.requires_grad_()
    net(given)[0].backward()
    assert (given.small.grad.unflatten(0, (4, 8)).abs().sum((1, 2, 3, 4)) > 0).all()


def weighted(seen: dict[str, torch.Tensor], share: float) -> float:
    """Prelax-all's printed sum on SimSiam's scale, with a share of the pretexts' weights."""
    part = {name.removeprefix("loss/"): value.item() for name, value in seen.items() if name.startswith("loss/")}
    pretexts = 0.3 * part["pl"] + 0.4 * part["rotpl"]
    return ((part["r2s"] + part["r3s"]) / 2 + share * pretexts + 2 * part["sim"]) / 4


@pytest.mark.parametrize(("end", "used"), [(0.0, 0.25), (0.5, 0.25), (1.0, 1.0)])
def test_the_pretexts_have_the_share_of_their_weights_that_the_engine_says(end: float, used: float) -> None:
    net = objective(name="prelax-all", gamma=0.6, gamma2=0.8, gamma_end=end)
    net.share.fill_(0.25)
    loss, seen = net(views(3))
    assert loss.item() == pytest.approx(weighted(seen, used), rel=1e-5)
    assert loss.item() != pytest.approx(weighted(seen, 1.25 - used), rel=1e-3)
    assert "share" not in net.state_dict()


def reached(**method: object) -> list[bool]:
    """Which views' features the gradient of a method's loss reaches."""
    net = objective(**method)
    count = len(net.views)
    given = views(count)
    h = net.features(net.network.online, given.images).detach().requires_grad_()
    loss, _ = net.judge(h, None, given.targets, given.relaxed, given.labels)
    loss.backward()
    assert h.grad is not None
    return [bool((h.grad[view].abs() > 1e-9).any()) for view in range(count)]


@pytest.mark.parametrize(
    ("gradient", "wanted"),
    [
        ("full", [True, False, True]),  # the target z2 never; z1 through the residual
        ("detach-in-g", [False, False, True]),
        ("detach-anchor", [False, False, True]),
        ("detach", [False, False, True]),
    ],
)
def test_the_relaxed_term_reaches_the_residual_as_configured(gradient: str, wanted: list[bool]) -> None:
    assert reached(name="r3s+rotpl", gamma=0.0, residual_gradient=gradient) == wanted


@pytest.mark.parametrize(
    ("gradient", "wanted"),
    [
        ("full", [True, False, True]),
        ("detach-in-g", [True, False, True]),  # the pretext loss still trains the residual
        ("detach-anchor", [False, False, True]),
    ],
)
def test_the_pretext_loss_reaches_both_ends_unless_the_anchor_is_detached(gradient: str, wanted: list[bool]) -> None:
    assert reached(name="r3s+rotpl", gamma=1.0, residual_gradient=gradient) == wanted


def test_reverse_changes_r2s_and_not_r3s() -> None:
    normal, reverse = (objective(name="prelax-all", reverse=r)(views(3))[1] for r in (False, True))
    assert normal["loss/r2s"].item() != pytest.approx(reverse["loss/r2s"].item(), rel=1e-3)
    assert normal["loss/r3s"].item() == pytest.approx(reverse["loss/r3s"].item(), rel=1e-6)


def test_reverse_turns_r3s_where_there_is_no_r2s() -> None:
    normal, reverse = (objective(name="prelax-rot", reverse=r)(views(3))[1] for r in (False, True))
    assert normal["loss/r3s"].item() != pytest.approx(reverse["loss/r3s"].item(), rel=1e-3)


def test_reverse_turns_r3s_where_r2s_is_plain() -> None:
    lone = {"name": "prelax-all", "alpha": 0.0, "alpha2": 1.0}  # R2S is plain: its residual weighs nothing
    normal, reverse = (objective(**lone, reverse=r)(views(3))[1] for r in (False, True))
    assert normal["loss/r3s"].item() != pytest.approx(reverse["loss/r3s"].item(), rel=1e-3)
    assert normal["loss/r2s"].item() == pytest.approx(reverse["loss/r2s"].item(), rel=1e-6)


def test_the_angle_may_be_read_against_the_other_view() -> None:
    assert reached(name="r3s+rotpl", gamma=1.0, pl_anchor="other", residual_gradient="detach-in-g") == [
        False,
        True,
        True,
    ]


def test_the_angle_may_be_read_off_the_rotated_view_alone() -> None:
    asked = {"name": "r3s+rotpl", "gamma": 1.0, "residual_gradient": "detach-in-g"}
    assert reached(pl_anchor="none", **asked) == [False, False, True]
    assert reached(pl_anchor="same", **asked) == [True, False, True]
    std = {"name": "r2s+pl", "gamma": 1.0, "residual_gradient": "detach-in-g"}
    assert reached(std_anchor="none", **std) == [True, False]
    assert reached(std_anchor="other", **std) == [True, True]


def test_the_pretext_may_read_the_backbone_instead_of_the_embedding() -> None:
    net = objective(name="prelax-rot", pl_reads="backbone")
    assert net.network.heads["rotpl"].linears[0].in_features == 64
    assert objective(name="prelax-rot").network.heads["rotpl"].linears[0].in_features == 12
    net(views(3))[0].backward()


def test_each_pretext_may_read_something_else() -> None:
    for given, widths in ((None, (64, 64)), ("embedding", (12, 64)), ("backbone", (64, 64))):
        net = objective(name="prelax-all", pl_reads="backbone", std_reads=given)
        assert tuple(net.network.heads[name].linears[0].in_features for name in ("pl", "rotpl")) == widths
        net(views(3))[0].backward()
    heads = objective(name="prelax-all", std_reads="backbone").network.heads
    assert (heads["pl"].linears[0].in_features, heads["rotpl"].linears[0].in_features) == (64, 12)


def test_byols_target_gets_no_gradient_and_keeps_its_own_statistics() -> None:
    net = objective(name="byol")
    grads = gradients(net, views(2))
    assert not any(name.startswith("network.target") for name in grads)
    online, target = net.network.online.backbone, net.network.target.backbone
    torch.testing.assert_close(online.bn1.running_mean, target.bn1.running_mean)  # same weights, same views so far
    assert target.bn1.num_batches_tracked.item() == 2


def test_a_moving_target_sees_no_view_that_nothing_aims_at() -> None:
    for name, seen in (("prelax-all", 2), ("prelax-rot", 2), ("byol", 2), ("sim+r3s", 2)):
        net = objective(name=name, base="byol")
        net(views(len(net.views)))[0].backward()
        assert net.network.online.backbone.bn1.num_batches_tracked.item() == len(net.views), name
        assert net.network.target.backbone.bn1.num_batches_tracked.item() == seen, name


def test_the_length_of_the_residual_is_of_unit_embeddings() -> None:
    net = objective(name="prelax-rot")
    given = views(3)
    z = net.network.online.projector(net.features(net.network.online, given.images)).detach()
    unit = z / z.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(net(given)[1]["residual_norm"], (unit[2] - unit[0]).norm(dim=-1).mean())
