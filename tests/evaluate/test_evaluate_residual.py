from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from prelax.augment import operation, presets
from prelax.config import resolve
from prelax.evaluate import evaluate, residual
from prelax.evaluate.features import fingerprint
from prelax.evaluate.residual import ask, moved, probe_residual, read_numbers, read_off, relaxed_operation
from prelax.loading import load, views_of
from prelax.record import Target

ANGLE = Target("rotation.turns", "categorical", classes=4)
AREA = Target("crop.area", "continuous")
FLIP = Target("flip.applied", "binary")


def noise(n, d=6, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_a_residual_that_holds_a_parameter_tells_it_and_noise_does_not():
    truth = torch.arange(400) % 4
    telling = noise(400) + 4 * torch.nn.functional.one_hot(truth, 6)
    told = read_off(telling[:300], truth[:300], telling[300:], truth[300:], ANGLE)
    deaf = read_off(noise(300), truth[:300], noise(100, seed=1), truth[300:], ANGLE)
    assert told["accuracy"] > 85
    assert told["floor"] == 25
    assert deaf["accuracy"] < 40


def test_a_number_is_told_as_the_share_of_its_variance():
    x = noise(500)
    area = x[:, 2] + 0.5 * noise(500, 1, seed=3)[:, 0]  # 80 % of the variance is in x
    told = read_off(x[:400], area[:400], x[400:], area[400:], AREA)
    assert told["r2"] == pytest.approx(80, abs=8)
    assert told["floor"] == 0


def test_numbers_told_together_are_told_as_each_alone():
    x, drawn = noise(500), noise(500, 3, seed=3)
    drawn[:, 0] += 2 * x[:, 2]  # plain to see, a little, and not at all
    drawn[:, 1] += 0.3 * x[:, 1]
    together = read_numbers(x[:400], drawn[:400], x[400:], drawn[400:], 200)
    alone = [read_off(x[:400], column[:400], x[400:], column[400:], AREA, 200) for column in drawn.T]
    assert together == alone
    assert len({told["l2"] for told in together}) > 1  # each by a strength of its own
    assert together[0]["r2"] > together[1]["r2"] > together[2]["r2"]


def test_the_floor_of_a_yes_or_no_is_the_more_frequent_answer():
    answer = (torch.arange(200) % 5 == 0).float()  # a fifth are yes
    told = read_off(noise(150), answer[:150], noise(50, seed=1), answer[150:], FLIP)
    assert told["floor"] == 80


@pytest.mark.parametrize(("target", "fit", "outputs"), [(ANGLE, "fit_logistic", 4), (AREA, "fit_ridge", 1)])
def test_draws_of_one_image_never_sit_on_both_sides_when_the_strength_is_chosen(target, fit, outputs, monkeypatch):
    seen = []
    blind = lambda rows: torch.zeros(len(rows), outputs)  # noqa: E731
    monkeypatch.setattr(residual, fit, lambda x, *rest, **more: seen.append(x[:, 0]) or blind)
    image = torch.arange(20).repeat(5).float()  # 5 draws of 20 images
    x, truth = torch.stack([image, image], 1), (torch.arange(100) % 4).float()
    read_off(x, truth, x, truth, target, images=20)
    chosen_on = [set(rows.tolist()) for rows in seen[:-1]]  # the last fit is on all of them
    assert all(part == set(range(4, 20)) for part in chosen_on)
    assert set(seen[-1].tolist()) == set(range(20))


def test_a_small_set_is_drawn_several_times_and_never_alike(run):
    loaded = load(run.path)
    images = torch.randint(0, 256, (9, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    got = ask(loaded, loaded.encoder(), images, seed=0, rows=25)
    assert len(got.h1) == len(got.drawn["crop.x"]) == 27
    assert not torch.equal(got.drawn["crop.x"][:9], got.drawn["crop.x"][9:18])


def test_a_parameter_that_never_varies_is_not_asked_about():
    assert read_off(noise(50), torch.zeros(50), noise(20), torch.zeros(20), FLIP) is None


def test_every_recorded_parameter_is_asked_of_residual_and_features_on_held_out_images(run):
    (result,) = evaluate(run, ["residual"], device="cpu")
    for part in ("targets", "features"):
        assert set(result[part]) == {"crop.y", "crop.x", "crop.area", "crop.aspect", "noise.sigma", "rotation.turns"}
    assert "accuracy" in result["targets"]["rotation.turns"]
    assert "r2" in result["targets"]["crop.x"]
    assert "8000 views of 500 test images" in result["settings"]["asked_about"]
    assert run.evals()["residual"]["targets"] == result["targets"]
    for told in result["targets"].values():  # what random weights tell is not what the run tells
        assert told["random"] != told.get("accuracy", told.get("r2"))


def test_the_residual_is_the_difference_of_the_embeddings_of_the_recorded_views(run):
    loaded = load(run.path)
    encoder = loaded.encoder()
    images = torch.randint(0, 256, (9, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    got = ask(loaded, encoder, images, seed=5)
    still = got.relaxed["rotation.turns"] == 0  # not turned: x3 is x1
    assert bool(still.any())
    assert got.r31[still].abs().max() < 1e-4
    assert got.r31[~still].abs().max() > 1e-2
    torch.testing.assert_close(got.h1[still], got.h3[still], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["raw", "normalised"])
def test_a_residual_is_between_embeddings_and_none_between_views_alike(run, kind):
    loaded = load(run.path)
    plain = loaded.settings.augment.model_copy(update={"preset": "none"})
    method = loaded.settings.method.model_copy(update={"residual": kind})
    loaded = replace(loaded, settings=loaded.settings.model_copy(update={"augment": plain, "method": method}))
    images = torch.randint(0, 256, (9, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    got = ask(loaded, loaded.encoder(), images, seed=5)
    z1, z3 = (loaded.encoder().eval().projector(h) for h in (got.h1, got.h3))
    if kind == "normalised":
        z1, z3 = (z / z.norm(dim=1, keepdim=True) for z in (z1, z3))
    torch.testing.assert_close(got.r31, z3 - z1, atol=1e-5, rtol=1e-4)
    assert got.r12.abs().max() < 1e-4


def test_what_is_done_moves_features_less_than_another_image_and_the_backbone_is_not_moved(run):
    loaded = load(run.path)
    before = fingerprint(loaded.backbone)
    images = torch.randint(0, 256, (40, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cosine = moved(loaded, images, 0)
    assert set(cosine) == {"other images", "crop", "noise", "rotation"}
    assert all(-1 <= value <= 1.0001 for value in cosine.values())
    assert cosine["noise"] > cosine["other images"]
    assert fingerprint(loaded.backbone) == before


def test_a_method_without_a_third_view_is_asked_about_rotation_too(run):
    """SimSiam's residual is compared with Prelax's on the same views."""
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("name: prelax-rot", "name: simsiam"))
    result = probe_residual(run, load(run.path), images=200)
    assert result["method"] == "simsiam"
    assert "rotation.turns" in result["targets"]


def test_the_relaxed_augmentation_is_asked_about_as_it_was_trained_with(tmp_path):
    settings = resolve("digits/prelax-rot", ["method.relax=crop", "train.device=cpu"])
    engine = views_of(settings, 1, 16)
    loaded = SimpleNamespace(settings=settings, channels=1, size=16)
    assert relaxed_operation(loaded, engine) == engine.relax
    assert engine.relax.op.scale != operation("crop", size=16).scale


def test_how_far_features_move_is_told_of_augmentations_that_are_done(run, monkeypatch):
    loaded, asked = load(run.path), []
    monkeypatch.setattr(residual, "features_under", lambda loaded, images, ops, seeds: asked.extend(ops) or ())
    one = presets("simsiam-32", 16, 1)[0]
    monkeypatch.setattr(residual, "views_of", lambda *_: SimpleNamespace(pipelines={1: one, 2: one}, size=16))
    moved(loaded, torch.zeros(2, 1, 16, 16, dtype=torch.uint8), 0)
    flips = [op for op in asked if op.name == "flip"]
    assert [op.p for op in flips] == [1.0]


def test_images_of_another_size_are_seen_in_views_of_the_trained_one(run):
    loaded = load(run.path)
    sides = []
    watch = loaded.backbone.register_forward_pre_hook(lambda net, given: sides.append(given[0].shape[-1]))
    encoder = loaded.encoder()
    encoder.backbone.register_forward_pre_hook(lambda net, given: sides.append(given[0].shape[-1]))
    larger = torch.randint(0, 256, (6, 1, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ask(loaded, encoder, larger, seed=0)
    moved(loaded, larger, seed=0)
    watch.remove()
    assert set(sides) == {loaded.size} == {16}
