"""The table of methods says what the paper prints."""

import pytest

from prelax.config import MethodSettings
from prelax.errors import PrelaxError
from prelax.objectives import METHODS, base_of, loss_scale, method, terms_of


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
