"""The table of methods says what the paper prints."""

from collections.abc import Callable
from pathlib import Path

import pytest

from prelax.config import MethodSettings
from prelax.errors import PrelaxError
from prelax.objectives import METHODS, Method, Term, ViewSpec, base_of, loss_scale, method, terms_of


def weights(**changes: object) -> dict[tuple[str, tuple[int, ...]], float]:
    settings = MethodSettings(**changes)  # type: ignore[arg-type]
    return {(t.kind, t.views): t.weight(settings) for t in terms_of(settings)}


def test_prelax_all_is_the_half_sum_the_paper_prints() -> None:
    assert weights(name="prelax-all", similarity="one-way", gamma=0.1, gamma2=0.3, beta=2.0) == {
        ("relax", (1, 2, 2)): 0.5,
        ("relax", (3, 1, 2)): 0.5,
        ("pl", (1, 2)): 0.05,
        ("relaxpl", (3, 1)): 0.15,
        ("sim", (2, 1)): 2.0,
    }


def test_similarity_both_ways_adds_the_other_direction() -> None:
    assert weights(name="prelax-rot", similarity="both") == {
        ("relax", (3, 1, 2)): 1.0,
        ("relaxpl", (3, 1)): 0.1,
        ("sim", (2, 1)): 1.0,
        ("sim", (1, 2)): 1.0,
    }


def test_relaxed_coefficients_default_to_the_standard_ones() -> None:
    assert weights(name="prelax-rot", gamma=0.3)["relaxpl", (3, 1)] == 0.3


BOTH = {("sim", (1, 2)): 1.0, ("sim", (2, 1)): 1.0}
SIM = {("sim", (2, 1)): 3.0}
R2S, R3S = {("relax", (1, 2, 2)): 1.0}, {("relax", (3, 1, 2)): 1.0}
PL, ROTPL = {("pl", (1, 2)): 0.2}, {("relaxpl", (3, 1)): 0.4}
PLAIN = [(1, False, None), (2, False, None)]  # draw, relaxed, fixed
THIRD = [*PLAIN, (1, True, None)]  # view 1 once more, relaxed
TURNS = [(1, True, 0), (1, True, 1), (1, True, 2), (1, True, 3)]
LINES: dict[str, tuple[dict, list, str | None]] = {
    "simsiam": (BOTH, PLAIN, "simsiam"),
    "byol": (BOTH, PLAIN, "byol"),
    "simclr": (BOTH, PLAIN, "simclr"),
    "prelax-std": (R2S | PL | SIM, PLAIN, None),
    "prelax-rot": (R3S | ROTPL | SIM, THIRD, None),
    "prelax-all": (halved := {k: w / 2 for k, w in (R2S | R3S | PL | ROTPL).items()} | SIM, THIRD, None),
    "prelax-turns": (halved, [*PLAIN, *TURNS], None),
    "prelax-crops": (
        {("sim", (1, 2)): 0.5, ("sim", (3, 2)): 0.5, ("pl", (1, 2)): 0.1, ("relaxpl", (3, 1)): 0.2} | SIM,
        [*PLAIN, *((draw, True, None) for draw in (3, 4, 5, 6))],
        None,
    ),
    "sim+pl": (BOTH | PL, PLAIN, None),
    "sim+r2s": (R2S | SIM, PLAIN, None),
    "r2s+pl": (R2S | PL, PLAIN, None),
    "sim+rotpl": (BOTH | ROTPL, THIRD, None),
    "sim+r3s": (R3S | SIM, THIRD, None),
    "r3s+rotpl": (R3S | ROTPL, THIRD, None),
    "simsiam-margin": ({("margin", (1, 2)): 1.0, ("margin", (2, 1)): 1.0}, PLAIN, "simsiam"),
    "simsiam-rotation-aug": (BOTH, [(1, True, None), (2, True, None)], "simsiam"),
    "simsiam-rotation-loss": (BOTH | {("predict", (3,)): 0.4}, THIRD, "simsiam"),
    "rotation": ({("predict", (1, 2, 3, 4)): 1.0}, TURNS, "simsiam"),
    "supervised": ({("classify", (1,)): 1.0}, PLAIN[:1], "simsiam"),
    "augself": (BOTH | {("compare", (1, 2)): 0.2}, PLAIN, None),
    "essl": (BOTH | {("predict", (3, 4, 5, 6)): 1.6}, [*PLAIN, *((3, True, turns) for turns in range(4))], None),
    "looc": (
        {("sim", (1, 2)): 1.0, ("looc", (1, 3, 2, 4)): 1.0, ("looc", (1, 4, 2, 3)): 1.0},
        [(draw, True, None) for draw in (1, 2, 3, 4)],
        "simclr",
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_line_has_the_terms_views_and_base_of_its_row(name: str) -> None:
    terms, views, base = LINES[name]
    assert weights(name=name, similarity="one-way", beta=3.0, gamma=0.2, gamma2=0.4) == terms
    assert [(view.draw, view.relaxed, view.fixed) for view in method(name).views] == views
    assert method(name).base == base


def test_only_copies_and_crops_beside_two_views_are_small() -> None:
    small = {name: [n for n, view in enumerate(line.views, start=1) if view.small] for name, line in METHODS.items()}
    assert {name: views for name, views in small.items() if views} == {
        "prelax-turns": [3, 4, 5, 6],
        "prelax-crops": [3, 4, 5, 6],
        "essl": [3, 4, 5, 6],
    }


def test_loocs_keys_share_with_the_query_what_their_space_keeps() -> None:
    assert [view.shares for view in method("looc").views] == [(), (), ("jitter", "grey"), ("relax",)]
    assert not any(view.shares for name, line in METHODS.items() if name != "looc" for view in line.views)


def test_only_the_relaxed_views_term_has_the_relaxed_views_alpha() -> None:
    assert {term.alpha for line in METHODS.values() for term in line.terms if term.name == "r3s"} == {"alpha2"}
    assert {term.alpha for line in METHODS.values() for term in line.terms if term.name == "r2s"} == {"alpha"}


@pytest.mark.parametrize("name", METHODS)
def test_every_line_says_what_it_is_and_reads_views_it_has(name: str) -> None:
    line = method(name)
    assert line.line
    assert line.equation
    for term in line.terms:
        assert all(1 <= view <= len(line.views) for view in term.views), term


def test_a_method_of_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(PrelaxError, match="did you mean prelax-rot"):
        method("prelax-rott")


def test_base_is_the_methods_own_or_the_settings() -> None:
    assert base_of(MethodSettings(name="byol")) == "byol"
    assert base_of(MethodSettings(name="prelax-all", base="byol")) == "byol"
    assert loss_scale(MethodSettings(name="simsiam")) == 0.25
    assert loss_scale(MethodSettings(name="byol")) == 1.0
    assert loss_scale(MethodSettings(name="byol", loss_scale=0.3)) == 0.3
    assert loss_scale(MethodSettings(name="simclr")) == 0.5
    assert [loss_scale(MethodSettings(name=name)) for name in ("supervised", "rotation")] == [1.0, 1.0]


OWN = """
from prelax.objectives import Method, Term, ViewSpec

TURNED = Method(
    "similarity beside the angle",
    "sim(1>2) + gamma RotPL(r31; a)",
    views=(ViewSpec(1), ViewSpec(2), ViewSpec(1, relaxed=True)),
    terms=(Term("sim", "sim", (1, 2)), Term("rotpl", "relaxpl", (3, 1), coefficient="gamma2")),
)
other = 3
"""


def test_a_method_of_ones_own_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("x = = 1")
    (tmp_path / "own_wrong.py").write_text(OWN.replace('"relaxpl"', '"relaxedpl"'))
    monkeypatch.chdir(tmp_path)
    assert weights(name="own_methods:TURNED", gamma2=0.5) == {("sim", (1, 2)): 1.0, ("relaxpl", (3, 1)): 0.5}
    for name, says in [
        ("own_methods:other", "it is a int, not a prelax.objectives.Method"),
        ("own_methods:Missing", "must be MODULE:NAME, importable from here"),
        ("no_such_module:TURNED", "no_such_module"),
        ("own_broken:TURNED", r"importing own_broken failed \(SyntaxError"),
        ("own_wrong:TURNED", "term rotpl: no kind 'relaxedpl'; did you mean relaxpl"),
    ]:
        with pytest.raises(PrelaxError, match=says):
            method(name)


@pytest.mark.parametrize(
    ("term", "says"),
    [
        (lambda: Term("sim", "sim", (1,)), "sim names 2 view"),
        (lambda: Term("turn", "predict", ()), "predict names 1 or more view"),
        (lambda: Term("space", "looc", (1, 2)), "looc names 3 or more view"),
        (lambda: Term("sim", "sim", (1, 2), coefficient="betta"), "no coefficient 'betta'; did you mean beta"),
        (lambda: Term("sim", "sim", (1, 4)), "names view 4; views are 1 to 2"),
        (lambda: Term("turn", "relaxpl", (2, 1)), "view 2, which is not relaxed"),
        (lambda: Term("sim", "sim", (1, 2), coefficient="relax"), "no coefficient 'relax'"),
        (lambda: Term("sim", "sim", (1, 2), coefficient="loss_scale"), "no coefficient 'loss_scale'"),
        (lambda: Term("a.b", "pl", (1, 2)), "without dots"),
        (lambda: Term("half", "pl", (1, 2)), "torch takes no head of that name"),
    ],
)
def test_a_line_that_cannot_be_computed_is_refused_where_it_is_written(term: Callable[[], Term], says: str) -> None:
    with pytest.raises(PrelaxError, match=says):
        Method("", "", (ViewSpec(1), ViewSpec(2)), (term(),))


def test_a_small_view_before_a_full_one_is_refused() -> None:
    with pytest.raises(PrelaxError, match="view 2 is small and view 3 is not: small views come last"):
        Method("", "", (ViewSpec(1), ViewSpec(3, small=True), ViewSpec(2)), (Term("sim", "sim", (1, 3)),))


def test_a_small_view_that_is_not_read_alone_is_refused() -> None:
    small = (ViewSpec(1), ViewSpec(2), ViewSpec(3, relaxed=True, small=True), ViewSpec(4, relaxed=True, small=True))
    with pytest.raises(PrelaxError, match="term crops names view 4: all small views are read as view 3"):
        Method("", "", small, (Term("crops", "sim", (4, 2)),))
    Method("", "", small, (Term("crops", "sim", (3, 2)), Term("turn", "predict", (4,))))  # features are read one by one


@pytest.mark.parametrize("kind", ["sim", "margin", "pl", "relaxpl"])
def test_small_views_are_read_and_nothing_is_held_against_them(kind: str) -> None:
    views = (ViewSpec(1, relaxed=True), ViewSpec(2), *(ViewSpec(n, relaxed=True, small=True) for n in (3, 4)))
    Method("", "", views, (Term("copies", kind, (3, 2)),))
    with pytest.raises(PrelaxError, match="held against view 3, which is small"):
        Method("", "", views, (Term("copies", kind, (1, 3)),))
    with pytest.raises(PrelaxError, match="held against view 3, which is small"):  # method.similarity=both turns it
        Method("", "", views, (Term("copies", kind, (3, 2), constraint=True),))


def test_views_that_cannot_be_made_are_refused() -> None:
    sim = (Term("sim", "sim", (1, 2)),)
    for one in (ViewSpec(1, small=True), ViewSpec(1, relaxed=True, shares=("relax",))):
        with pytest.raises(PrelaxError, match="view 1 is there, of full size"):
            Method("", "", (one, ViewSpec(2, small=True)), sim)
    with pytest.raises(PrelaxError, match="view 2 shares what relaxed view 1, which is not relaxed"):
        Method("", "", (ViewSpec(1), ViewSpec(2, relaxed=True, shares=("relax",))), sim)


def test_terms_of_two_kinds_do_not_share_a_name() -> None:
    told = (Term("angle", "relaxpl", (1, 2)), Term("angle", "predict", (1,)))
    with pytest.raises(PrelaxError, match="terms of two kinds are called angle"):
        Method("", "", (ViewSpec(1, relaxed=True), ViewSpec(2)), told)


def test_a_base_that_there_is_not_is_refused() -> None:
    with pytest.raises(PrelaxError, match="no base 'simsam'; did you mean simsiam"):
        Method("", "", (ViewSpec(1), ViewSpec(2)), (Term("sim", "sim", (1, 2)),), base="simsam")
