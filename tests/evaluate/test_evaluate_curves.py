from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional as F

from prelax.config import resolve
from prelax.doctor import examine_run
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.evaluate.curves import _heads, chance, diagnose, unlearnt
from prelax.evaluate.remedies import calmer
from prelax.loading import views_of
from prelax.objectives import PretextLoss
from prelax.record import Target
from prelax.report import report
from prelax.run import Run
from prelax.train.pretrain import trouble


def line(epoch, **changes):
    healthy = {"loss": 1.0 / epoch, "loss/rotpl": 0.6, "embedding_std": 0.98, "effective_rank": 20.0}
    return {"epoch": epoch, **healthy, "images_per_s": 1000.0, "seconds": 1.0, **changes}


def told(metrics, recipe="digits/prelax-rot"):
    return {finding.what: finding for finding in diagnose(metrics, resolve(recipe))}


def test_a_run_that_is_not_ahead_of_random_weights_by_anything_is_told_so() -> None:
    behind = {"protocol": "knn", "dataset": "photos", "accuracy": 53.3, "floor": 57.5}
    found = unlearnt({"knn": behind, "logistic": {**behind, "protocol": "logistic", "accuracy": 57.5}})
    assert found is not None
    assert "not ahead of random weights: 57.5 % by logistic on photos, random weights 57.5" in found.found
    assert unlearnt({"knn": behind, "logistic": {**behind, "accuracy": 58.0}}) is None
    assert unlearnt({}) is None


def test_a_healthy_run_is_called_healthy():
    findings = told([line(epoch) for epoch in range(1, 20)])
    assert all(finding.fine for finding in findings.values())
    assert {"divergence", "collapse", "speed", "pretext"} <= set(findings)


@pytest.mark.parametrize("changes", [{"embedding_std": 0.01}, {"effective_rank": 1.05}, {"embedding_std": math.nan}])
def test_collapse_is_seen_in_the_spread_and_in_the_rank(changes):
    finding = told([line(1), line(2, **changes)])["collapse"]
    assert not finding.fine
    assert "collapsed" in finding.found


def test_a_spread_pinned_by_batchnorm_does_not_hide_a_collapsed_rank():
    assert "one line" in told([line(1), line(2, embedding_std=1.0, effective_rank=1.05)])["collapse"].found


def test_the_rank_of_two_images_says_nothing():
    lines = [line(1), line(2, effective_rank=1.0)]
    found = {f.what: f for f in diagnose(lines, resolve("digits/prelax-rot", ["train.batch_size=2"]))}["collapse"]
    assert found.fine
    assert "rank" not in found.found


def test_embeddings_near_one_line_are_a_warning_and_not_yet_a_collapse():
    finding = told([line(1), line(2, embedding_std=0.8, effective_rank=1.4)])["collapse"]
    assert not finding.fine
    assert finding.found.startswith("close to collapse: the embeddings lie near one line")


@pytest.mark.parametrize(
    ("batch", "images", "judged"), [(2, None, False), (3, 50, False), (512, 3, False), (4, None, True), (512, 4, True)]
)
def test_the_rank_of_two_or_three_images_is_left_alone_as_training_leaves_it(batch, images, judged):
    settings = resolve("digits/simsiam", [f"train.batch_size={batch}"])
    lines = [line(epoch, effective_rank=1.0) for epoch in range(1, 11)]
    finding = {finding.what: finding for finding in diagnose(lines, settings, images)}["collapse"]
    assert finding.fine is not judged
    assert ("effective rank" in finding.found) is judged
    assert (trouble(lines, settings, min(batch, images or batch)) is not None) is judged


@pytest.mark.parametrize("name", ["prelax-rot", "prelax-turns"])
def test_a_guess_at_a_number_is_its_variance_as_it_is_drawn_for_the_relaxed_view(name):
    settings = resolve("digits/prelax-rot", [f"method.name={name}", "method.relax=crop"])
    (_, specs, drawn) = _heads(settings)[1]
    assert chance(specs, "mean", drawn) == pytest.approx(1.0, abs=0.05)  # it is standardised for views of that size


@pytest.mark.parametrize(("name", "shown"), [("prelax-rot", 24), ("prelax-turns", 4)])
def test_a_guess_at_a_permutation_is_among_those_that_are_shown(name, shown):
    (_, specs, drawn) = _heads(resolve("digits/prelax-rot", [f"method.name={name}", "method.relax=jigsaw"]))[1]
    assert chance(specs, "mean", drawn) == pytest.approx(math.log(shown))


def test_the_doctor_goes_by_how_many_images_a_run_was_trained_on(run):
    for images, fine in ((3, True), (4, False), ("many", False)):
        run.write("data.json", json.dumps({"images": images}))
        run.write("metrics.jsonl", json.dumps(line(1, effective_rank=1.0)) + "\n")
        assert {finding.what: finding.fine for finding in examine_run(run.path)}["collapse"] is fine


def test_only_what_has_not_been_tried_is_proposed_against_a_collapse():
    def proposed(recipe, *changes):
        lines = [line(1), line(2, effective_rank=1.05)]
        return {f.what: f for f in diagnose(lines, resolve(recipe, changes))}["collapse"].found.split("; try ")[1]

    assert proposed("digits/simsiam", "train.warmup_epochs=1") == "a lower train.turn"
    assert proposed("digits/simsiam", "train.warmup_epochs=1", "train.optimizer=sgd") == "a lower train.lr"
    assert "a lower method.gamma," in proposed("digits/prelax-rot")
    assert "a lower method.gamma2," in proposed("digits/prelax-rot", "method.gamma2=0.5")  # the weight that is in force
    assert "a lower method.gamma or a lower method.gamma2" in proposed("folder", "train.warmup_epochs=1")
    assert "detach-in-g" in proposed("digits/prelax-all")
    assert "detach-in-g" not in proposed("digits/prelax-all", "method.residual_gradient=detach-in-g")
    assert "method.alpha=0" in proposed("digits/prelax-std", "method.alpha=0.5")
    assert "method.alpha" not in proposed("digits/prelax-rot", "method.alpha=0.5")
    assert "detach-in-g" not in proposed("digits/prelax-all", "method.alpha=0")  # no residual goes through G
    assert "method.gamma" not in proposed("digits/prelax-all", "method.gamma=0", "method.gamma2=none")
    assert "a lower method.gamma2" in proposed("digits/prelax-all", "method.gamma=0", "method.gamma2=1")
    both = proposed("digits/prelax-all", "method.gamma=1", "method.gamma2=1")
    assert "a lower method.gamma, a lower method.gamma2" in both


def test_divergence_names_the_loss_and_the_epoch():
    finding = told([line(1), line(2, **{"loss/rotpl": math.nan}), line(3)])["divergence"]
    assert not finding.fine
    assert "loss/rotpl is no number at epoch 2" in finding.found


def test_a_run_whose_losses_are_no_numbers_has_that_ailment_alone_and_is_told_what_it_has_not_tried():
    lost = {"loss": None, "loss/rotpl": None, "embedding_std": None, "effective_rank": 1.0}  # as a file has them
    wrong = [finding for finding in told([line(1), line(2, **lost)]).values() if not finding.fine]
    assert [finding.what for finding in wrong] == ["divergence"]
    muon = resolve("digits/prelax-rot", ["train.optimizer=muon", "train.warmup_epochs=0", "method.pl_reduction=sum"])
    assert calmer(muon) == "a lower train.turn, a lower train.lr, train.warmup_epochs=10 or method.pl_reduction=mean"
    assert calmer(resolve("cifar10/simsiam-tuned")) == "a lower train.lr"


def test_one_test_image_more_or_less_is_no_fall_of_the_probe():
    lines = [line(1, knn=27.3), line(2, knn=18.2)]
    few = resolve("folder", ["data.root=photos", "data.test_fraction=0.1"])
    assert {f.what: f for f in diagnose(lines, few, images=99)}["kNN"].fine  # 11 test images
    assert not {f.what: f for f in diagnose(lines, few, images=9900)}["kNN"].fine


def test_a_loss_that_ends_above_its_start_diverged_and_noise_did_not():
    assert not told([line(1, loss=1.0), line(2, loss=0.5), line(3, loss=4.0)])["divergence"].fine
    assert told([line(1, loss=1.0), line(2, loss=0.5), line(3, loss=0.52)])["divergence"].fine


def jumping(*epochs, height=1.6):
    return [line(epoch, loss=0.3 * (height if epoch in epochs else 1.0)) for epoch in range(1, 80)]


def test_a_loss_that_jumps_again_and_again_is_unsteady():
    finding = told(jumping(20, 21, 45, 70))["steadiness"]
    assert not finding.fine
    assert "3 times (epochs 20, 45, 70)" in finding.found
    assert finding.found.endswith("try a lower train.turn")


@pytest.mark.parametrize("metrics", [jumping(20, 45), jumping(20, 45, 70, height=1.15), jumping(1, 3, 5)])
def test_a_jump_or_two_small_ones_and_the_first_epochs_are_not(metrics):
    assert "steadiness" not in told(metrics)


def test_channels_that_decay_has_silenced_are_counted():
    def found(share, *changes):
        metrics = [line(1, silent_channels=0.0), line(2, silent_channels=share)]
        return {f.what: f for f in diagnose(metrics, resolve("digits/simsiam", changes))}.get("channels")

    assert found(0.05) is None
    assert found(0.4).fine  # as the best runs of many epochs have it
    assert found(0.4).found.startswith("40 %")
    assert not found(0.6).fine
    assert found(0.6).found.startswith("60 %")
    assert "train.decay_norms=false" in found(0.6).found
    assert "try" not in found(0.6, "train.decay_norms=false").found


def test_waiting_for_images_is_loader_bound():
    finding = told([line(epoch, data_wait=0.45) for epoch in range(1, 6)])["speed"]
    assert not finding.fine
    assert "45 %" in finding.found
    assert told([line(epoch, data_wait=0.02) for epoch in range(1, 6)])["speed"].fine


def test_of_shards_no_store_is_proposed():
    waits = [line(epoch, data_wait=0.45) for epoch in range(1, 6)]
    slows = [line(epoch, images_per_s=300.0 if epoch > 15 else 1000.0) for epoch in range(1, 21)]
    for metrics in (waits, slows):
        for shards in ("photos-{000..099}.tar", None):
            settings = resolve("folder", [f"data.shards={shards}"])
            found = {finding.what: finding for finding in diagnose(metrics, settings)}["speed"]
            assert not found.fine
            assert ("data.store" in found.found) == (shards is None)


def test_epochs_that_slowed_down_are_counted():
    finding = told([line(epoch, images_per_s=300.0 if epoch > 15 else 1000.0) for epoch in range(1, 21)])["speed"]
    assert not finding.fine
    assert "5 of 19" in finding.found


def test_the_first_epoch_may_be_slow():
    assert told([line(1, images_per_s=5.0), *(line(epoch) for epoch in range(2, 6))])["speed"].fine


def test_a_residual_at_chance_ignores_its_pretext():
    finding = told([line(1), line(2, **{"loss/rotpl": 1.385})])["pretext"]
    assert not finding.fine
    assert "1.386" in finding.found
    assert "no up and down" not in finding.found  # the relative angle can always be told
    alone = resolve("digits/prelax-rot", ["method.pl_anchor=none"])
    finding = next(f for f in diagnose([line(1), line(2, **{"loss/rotpl": 1.385})], alone) if f.what == "pretext")
    assert "no up and down" in finding.found
    assert finding.found.startswith("the embedding ignores its pretext")  # no residual was asked


def test_of_two_pretexts_the_one_that_is_ignored_is_named_with_its_own_weight():
    def finding(*changes, **losses):
        settings = resolve("digits/prelax-all", [*changes])
        found = diagnose([line(1), line(2, **{f"loss/{name}": loss for name, loss in losses.items()})], settings)
        return next(f for f in found if f.what == "pretext").found

    said = finding("method.gamma2=0.5", pl=1.0, rotpl=0.6)
    assert "ignores a part of its pretext, loss/pl 1.000 (a guess: 0.833), but not loss/rotpl 0.600" in said
    assert "a higher method.gamma or train" in said
    assert "a higher method.gamma2 or train" in finding("method.gamma2=0.5", pl=0.6, rotpl=1.385)
    assert "a higher method.gamma or train" in finding("method.gamma2=null", pl=0.6, rotpl=1.385)
    assert "a higher method.gamma or method.gamma2 or train" in finding("method.gamma2=0.5", pl=1.0, rotpl=1.385)


def test_a_pretext_that_faded_is_judged_by_what_was_known_before():
    lines = [line(epoch, **{"loss/rotpl": loss}) for epoch, loss in enumerate((1.386, 0.3, 1.385), 1)]
    fading = resolve("digits/prelax-rot", ["method.gamma_end=0"])
    finding = next(f for f in diagnose(lines, fading) if f.what == "pretext")
    assert finding.fine
    assert "loss/rotpl 0.300 at its lowest (a guess: 1.386)" in finding.found
    assert not told(lines)["pretext"].fine
    never = [line(1), line(2, **{"loss/rotpl": 1.385})]
    assert not next(f for f in diagnose(never[1:], fading) if f.what == "pretext").fine


def test_a_relative_angle_that_is_read_without_effort_teaches_little():
    easy = [line(1), line(2, **{"loss/rotpl": 0.013})]
    assert "method.pl_anchor=none" in told(easy)["pretext"].found
    assert not told(easy)["pretext"].fine
    alone = diagnose(easy, resolve("digits/prelax-rot", ["method.pl_anchor=none"]))
    assert next(finding for finding in alone if finding.what == "pretext").fine


def test_a_knn_that_fell_is_told():
    assert not told([line(1, knn=60.0), line(2, knn=70.0), line(3, knn=50.0)])["kNN"].fine


def test_a_run_without_an_epoch_has_nothing_to_judge_by():
    (finding,) = diagnose([], resolve("digits/simsiam"))
    assert not finding.fine


def test_simsiam_has_no_pretext_to_ignore():
    assert "pretext" not in told([{k: v for k, v in line(1).items() if k != "loss/rotpl"}], "digits/simsiam")


def test_a_preset_that_draws_nothing_has_nothing_to_be_told():
    settings = resolve("digits/prelax-all", ["augment.preset=none"])
    lines = [line(1), line(2, **{"loss/pl": 0.14})]
    found = next(f for f in diagnose(lines, settings) if f.what == "pretext")
    assert found.fine
    assert "loss/pl" not in found.found


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_chance_is_the_loss_of_the_best_head_that_sees_nothing(reduction):
    specs = [Target("turns", "categorical", classes=4), Target("applied", "binary"), Target("area", "continuous")]
    rng = np.random.default_rng(0)
    n = 20_000
    targets = {
        "turns": torch.tensor(rng.integers(0, 4, n)),
        "applied": torch.tensor(rng.random(n) < 0.2).float(),
        "area": torch.tensor(rng.normal(size=n)).float(),
    }
    blind = torch.tensor([0.0, 0, 0, 0, math.log(0.2 / 0.8), 0.0]).expand(n, -1)
    loss = float(PretextLoss(specs, reduction)(blind, targets))
    assert chance(specs, reduction, {"applied": 0.2}) == pytest.approx(loss, rel=0.02)


@pytest.mark.parametrize("recipe", ["digits/prelax-all", "cifar10/prelax-std"])
def test_a_guess_is_what_the_best_constant_has_on_the_recipes_own_draws(recipe):
    settings = resolve(recipe)
    (_, specs, drawn), _ = _heads(settings)
    channels, size = (1, 16) if "digits" in recipe else (3, 32)  # so few pixels that boxes are rounded by much
    views = views_of(settings, channels).pipelines[1]
    record = views.sample((20_000, channels, size, size), Draws(7, 20_000))
    losses = []
    for spec in specs:
        value = spec.value(record[spec.name])
        constant = value.mean().expand_as(value)
        loss = F.mse_loss if spec.kind == "continuous" else F.binary_cross_entropy
        losses.append(float(loss(constant, value)))
    assert chance(specs, "mean", drawn) == pytest.approx(np.mean(losses), rel=0.02)


def test_a_guess_of_how_two_draws_differ_is_of_both_pipelines():
    """BYOL's views are blurred always and one time in ten, and solarised never and one time in five."""
    (_, _, drawn), _ = _heads(resolve("imagenette/byol-prelax-all", ["method.std_tells=difference"]))
    assert drawn["blur.applied"] == pytest.approx(0.1 * 0.9, abs=0.02)
    assert drawn["solarise.applied"] == pytest.approx(0.2 * 0.8, abs=0.02)


def test_how_often_a_target_is_yes_is_taken_from_the_recipes_own_draws():
    heads = {key: rates for key, _, rates in _heads(resolve("cifar10/prelax-std"))}
    assert heads["loss/pl"]["grey.applied"] == pytest.approx(0.2, abs=0.03)


def with_a_class_that_is_gone(run):
    """The run as it looks where the module of its own augmentation cannot be imported."""
    config = run.path / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["method"]["relax"] = "nowhere_to_be_found:Thing"
    config.write_text(yaml.safe_dump(tree))


def test_a_question_that_cannot_be_asked_is_a_finding_and_the_others_are_answered(run):
    with_a_class_that_is_gone(run)
    findings = {finding.what: finding for finding in examine_run(run.path)}
    assert not findings["pretext"].fine
    assert findings["pretext"].found.startswith("cannot be judged: ")
    assert "nowhere_to_be_found:Thing" in findings["pretext"].found
    assert {"run", "epochs", "backbone", "divergence", "collapse"} <= set(findings)


def test_the_report_shows_the_rest_of_such_a_run(run):
    with_a_class_that_is_gone(run)
    page = report([run.path], points=0).read_text()
    assert "cannot be judged" in page
    assert "nowhere_to_be_found:Thing" in page


def test_metrics_that_cannot_be_read_are_a_finding(run, monkeypatch):
    def unreadable(self):
        raise PrelaxError("cannot read metrics.jsonl: Permission denied")

    monkeypatch.setattr(Run, "metrics", unreadable)
    (finding,) = examine_run(run.path)
    assert not finding.fine
    assert "Permission denied" in finding.found


def test_images_that_were_moved_are_named_with_what_to_do(run):
    assert "images" not in {finding.what for finding in examine_run(run.path)}
    config = run.path / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["data"]["root"] = "/no/such/photos"
    config.write_text(yaml.safe_dump(tree))
    found = {finding.what: finding for finding in examine_run(run.path)}["images"]
    assert not found.fine
    assert "/no/such/photos is not there" in found.found
    assert "--resume data.root=FOLDER" in found.found
