"""Methods of one's own: what a line of terms computes, asks for and refuses, whatever its terms are called."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prelax.config import Settings, resolve
from prelax.data import ImageSet
from prelax.errors import PrelaxError
from prelax.objectives import METHODS, Method, Term, ViewSpec
from prelax.record import Target
from prelax.train import Engine, Objective, Process, pretrain
from prelax.train.step import Views

SMALL = [
    "model.backbone=resnet8",
    "model.projector_hidden=16",
    "model.projector_dim=12",
    "model.predictor_hidden=8",
    "model.head_hidden=8",
    "train.epochs=1",
    "train.batch_size=16",
    "train.device=cpu",
    "data.limit=64",
]
DRAWN = (Target("crop.area", "continuous"),)
RELAXED = (Target("rotation.turns", "categorical", classes=4),)


def tiny(*changes: str) -> Settings:
    return resolve("digits/prelax-all", [*SMALL, *changes])


def objective(**method: object) -> Objective:
    torch.manual_seed(0)
    return Objective(tiny(*(f"method.{key}={value}" for key, value in method.items())), 1, 16, DRAWN, RELAXED)


def views(count: int, rows: int = 8) -> Views:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count * rows, 1, 16, 16, generator=generator)
    drawn = [{"crop.area": torch.randn(rows, generator=generator)} for _ in range(count)]
    relaxed = [{"rotation.turns": torch.randint(4, (rows,), generator=generator)} for _ in range(count)]
    return Views(images, drawn, relaxed, None)


@pytest.mark.parametrize("pair", [(1, 2), (2, 1), (3, 1)])
def test_pl_reads_the_residual_of_the_views_that_its_term_names(
    pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (ViewSpec(1), ViewSpec(2), ViewSpec(3))
    monkeypatch.setitem(METHODS, "told", Method("", "", shown, (Term("pl", "pl", pair),)))
    net, given, read = objective(name="told"), views(3), []
    net.network.heads["pl"].register_forward_pre_hook(lambda head, inputs: read.append(inputs[0]))
    net(given)
    z = net.network.online.projector(net.features(net.network.online, given.images))
    torch.testing.assert_close(read[0], z[pair[0] - 1] - z[pair[1] - 1])


def test_a_term_that_repels_counts_and_a_line_without_any_weight_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factor in (("repels", -0.5), ("idle", 0.0)):
        line = Method("", "", (ViewSpec(1), ViewSpec(2)), (Term("sim", "sim", (1, 2), factor=factor),))
        monkeypatch.setitem(METHODS, name, line)
    _, seen = objective(name="repels")(views(2))
    assert seen["loss"].item() == pytest.approx(-0.5 * 0.25 * seen["loss/sim"].item())
    with pytest.raises(PrelaxError, match="idle has no term of any weight"):
        objective(name="idle")


def test_another_view_to_read_against_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Method("", "", (ViewSpec(1, relaxed=True),), (Term("rotpl", "relaxpl", (1, 1)),))
    monkeypatch.setitem(METHODS, "one-view", line)
    with pytest.raises(PrelaxError, match=r"method\.pl_anchor=other reads against view 2"):
        objective(name="one-view", pl_anchor="other")


def test_reverse_turns_a_term_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = (ViewSpec(1), ViewSpec(2), ViewSpec(1, relaxed=True))
    told = {}
    for name in ("up", "r3s"):
        terms = (Term(name, "relax", (3, 1, 2), alpha="alpha2"), Term("sim", "sim", (2, 1)))
        monkeypatch.setitem(METHODS, "own", Method("", "", shown, terms))
        told[name] = [objective(name="own", reverse=r)(views(3))[0].item() for r in (False, True)]
    assert told["up"] == told["r3s"]
    assert told["up"][0] != pytest.approx(told["up"][1], rel=1e-3)


def test_a_method_of_ones_own_that_classifies_needs_labels_and_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = (Term("sim", "sim", (1, 2)), Term("sim", "sim", (2, 1)))
    own = Method("", "", (ViewSpec(1), ViewSpec(2)), (*pair, Term("cls", "classify", (1,), factor=0.5)))
    monkeypatch.setitem(METHODS, "semi", own)
    labels = torch.arange(40) % 4 - 1
    images = ImageSet("folder", torch.zeros(40, 1, 16, 16, dtype=torch.uint8), labels, ["a", "b", "c"])
    with pytest.raises(PrelaxError, match="method semi needs a label for every image, and 10 of 40 have none"):
        Engine(tiny("method.name=semi"), images, torch.device("cpu"), Process())
    with pytest.raises(PrelaxError, match="method semi needs labels, and digits has none"):
        Engine(tiny("method.name=semi"), replace(images, labels=None), torch.device("cpu"), Process())

    def broken(*given: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(Engine, "compute", broken)
    with pytest.raises(KeyError):
        pretrain(tiny(), tmp_path / "run", progress=False)
    monkeypatch.undo()
    assert len(pretrain(tiny(), tmp_path / "run", progress=False).metrics()) == 1
