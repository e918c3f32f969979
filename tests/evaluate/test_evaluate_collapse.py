from __future__ import annotations

import pytest

from prelax.config import resolve
from prelax.errors import PrelaxWarning
from prelax.evaluate import collapse
from prelax.evaluate.curves import diagnose
from prelax.train import pretrain


def narrow(low, epochs=200):
    """Epochs of 97 steps: embeddings of 8 directions in those of ``low``, of 40 in the others."""
    return [
        {"epoch": epoch, "loss": 1.0 / epoch, "effective_rank": 8.0 if epoch in low else 40.0}
        for epoch in range(1, epochs + 1)
    ]


def directions(metrics, *changes, images=50_000):
    settings = resolve("cifar10/prelax-std", ["train.epochs=200", *changes])
    return {f.what: f for f in diagnose(metrics, settings, images)}.get("directions")


def test_embeddings_that_a_pretext_fills_are_told_with_what_to_try():
    finding = directions(narrow(range(1, 151)))
    assert not finding.fine
    assert finding.found.startswith("embeddings of about 8 directions (from epoch 104 to 150)")
    assert "method.std_reads=backbone or train.optimizer=muon" in finding.found
    assert "muon" not in directions(narrow(range(1, 151)), "train.optimizer=muon").found


@pytest.mark.parametrize(
    ("low", "changes", "images"),
    [
        (range(1, 104), [], 50_000),  # before 10,000 steps every run is there
        (range(110, 120), [], 50_000),  # for a twentieth of the epochs
        (range(1, 151), ["method.std_reads=backbone"], 50_000),
        (range(1, 151), ["method.gamma=0"], 50_000),
        (range(1, 151), ["method.name=simsiam"], 50_000),
        (range(1, 151), ["model.projector_dim=32"], 50_000),
        (range(1, 151), [], 5_000),  # nor are these 10,000 steps
        (range(1, 151), [], None),
    ],
)
def test_few_directions_are_no_finding_where_nothing_is_known_of_their_harm(low, changes, images):
    assert directions(narrow(low), *changes, images=images) is None


def test_a_run_is_told_once_while_it_is_trained(monkeypatch, tmp_path):
    monkeypatch.setattr(collapse, "SETTLED", 0)  # an epoch of the digits is late enough,
    monkeypatch.setattr(collapse, "CROWDED", 64.0)  # and their embeddings have fewer directions
    settings = resolve("digits/prelax-std", ["train.epochs=3"])
    with pytest.warns(PrelaxWarning, match="hardly more than PL asks for") as told:
        run = pretrain(settings, tmp_path / "run", progress=False)
    assert len([w for w in told if "directions" in str(w.message)]) == 1
    assert (run.path / "log.txt").read_text().count("directions (from epoch 1 to 1)") == 1
