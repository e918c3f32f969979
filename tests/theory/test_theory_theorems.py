import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from prelax.errors import PrelaxError
from prelax.theory import (
    FAMILIES,
    Joint,
    noisy_copy,
    random_joint,
    six_and_nine,
    theorem_1,
    theorem_2,
    worked_example,
)

LOG2 = math.log(2)
sizes = {"x": st.integers(1, 8), "t": st.integers(1, 4), "sv": st.integers(1, 3), "sa": st.integers(1, 3)}
# Small counts put exact ties and zeros everywhere; the families reach the rest.
counted = (
    hnp.arrays(np.int64, st.tuples(*[st.integers(1, n) for n in (6, 3, 3, 2)]), elements=st.integers(0, 3))
    .filter(lambda table: table.sum() > 0)
    .map(Joint.of)
)


def drawn(*families):
    return st.builds(random_joint, st.sampled_from(families), st.integers(0, 2**31), **sizes)


def assert_holds_always(joint):
    """What is proved without H(Z|S) = 0, without S ⊥ T | X, without anything but z = f(x)."""
    one, two = theorem_1(joint), theorem_2(joint)
    assert one.sup_keeps_task
    assert one.sup_over_prelax
    assert one.prelax_over_both
    assert one.nested
    assert one.gaps_bounded
    for z in one.learned.values():
        assert z.sufficient
        assert z.information == pytest.approx(one.task - z.left + z.overlap + z.synergy, abs=1e-9)
        assert z.overlap <= z.spread + 1e-9
        assert z.interaction_z - z.interaction_x == pytest.approx(z.synergy, abs=1e-9)
    assert two.error_below_entropy
    assert two.fano
    assert two.bounded
    assert two.errors_ordered
    assert two.gap_bounds_ordered
    assert two.entropy_bounds_ordered
    assert two.classes > 3 or not any(two.informative.values())  # log 2 is more than 1 - 1/3
    for name, error in two.errors.items():
        assert error <= two.entropy_bounds[name] + 1e-9 <= 1 - 1 / two.classes + 2e-9
        assert two.thresholded[name] <= two.gap_bounds[name] + 1e-9 <= two.bounds[name] + 2e-9


@given(counted)
@settings(max_examples=1500, deadline=None)
def test_theorem_1_and_the_error_bounds_hold_on_every_table_of_counts(joint):
    assert_holds_always(joint)


@given(drawn(*FAMILIES))
@settings(max_examples=1000, deadline=None)
def test_theorem_1_and_the_error_bounds_hold_on_every_random_joint(joint):
    assert_holds_always(joint)


@given(drawn("structured"))
@settings(max_examples=500, deadline=None)
def test_both_theorems_and_the_gap_equality_hold_when_the_signals_are_functions_of_x(joint):
    one, two = theorem_1(joint), theorem_2(joint)
    assert one.assumption
    assert one.independent
    assert one.holds
    assert one.gaps_exact
    assert one.lefts_ordered
    assert two.holds


@given(drawn("noisy"))
@settings(max_examples=500, deadline=None)
def test_both_theorems_hold_without_the_assumption_when_signals_and_task_are_independent_given_x(joint):
    one, two = theorem_1(joint), theorem_2(joint)
    assert one.independent
    assert one.holds
    assert one.lefts_ordered
    assert two.holds
    for z in one.learned.values():  # the interaction step is sound here; H(Z|S) = 0 is the one that is not
        assert z.interactions_equal
        assert z.gap == pytest.approx(z.left - z.overlap, abs=1e-9)


@given(counted)
@settings(max_examples=500, deadline=None)
def test_either_condition_on_the_terms_decides_the_gap_equality(joint):
    for z in theorem_1(joint).learned.values():
        if z.overlap + z.synergy > 1e-6:
            assert not z.gap_exact
        if z.overlap + z.synergy < 1e-12:
            assert z.gap_exact


def test_six_and_nine_breaks_the_order_of_theorem_2_though_the_assumption_holds():
    joint = six_and_nine()
    one, two = theorem_1(joint), theorem_2(joint)
    assert one.assumption
    assert not one.independent
    assert one.leak == pytest.approx(LOG2)
    assert one.learned["mv"].left == pytest.approx(0.0)
    assert one.learned["prelax"].left == pytest.approx(LOG2)
    assert one.learned["prelax"].synergy == pytest.approx(LOG2)
    assert two.bounds["mv"] == pytest.approx(1.5 * LOG2)
    assert two.bounds["prelax"] == pytest.approx(2.5 * LOG2)
    assert two.bounds["prelax"] > min(two.bounds["mv"], two.bounds["pl"]) + 0.5
    assert not two.bounds_ordered
    assert not two.holds
    assert not one.lefts_ordered
    assert not one.learned["prelax"].interactions_equal
    assert set(two.errors.values()) == {0.5}
    assert_holds_always(joint)


def test_noisy_copy_is_flipped_a_quarter_of_the_time():
    assert noisy_copy().table("x", "sv").tolist() == [[0.375, 0.125], [0.125, 0.375]]
    assert np.array_equal(noisy_copy().table("x", "t"), np.eye(2) / 2)


def test_noisy_copy_breaks_the_gap_equality_through_the_assumption_alone():
    one = theorem_1(noisy_copy(0.25))
    mv = one.learned["mv"]
    noise = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert one.independent
    assert mv.interactions_equal
    assert mv.spread == pytest.approx(noise)
    assert mv.gap == pytest.approx(0.0)
    assert mv.left == pytest.approx(noise)
    assert not mv.gap_exact
    assert mv.gap_bounded


def test_theorem_1_fails_for_representations_that_are_sufficient_but_not_minimal():
    joint = worked_example()
    one = theorem_1(joint, given={"mv": range(16)})
    assert all(z.sufficient for z in one.learned.values())
    assert one.learned["mv"].information > one.learned["prelax"].information + 0.1
    assert not one.prelax_over_both
    assert not one.holds
    assert not theorem_2(joint, given={"mv": range(16)}).errors_ordered


def test_an_encoder_that_forgets_x_is_told_to_be_insufficient():
    z = theorem_1(worked_example(), given={"prelax": [0] * 16}).learned["prelax"]
    assert not z.sufficient
    assert z.information == 0.0
    assert not z.gap_bounded


def test_worked_example_has_the_figures_worked_by_hand():
    one, two = theorem_1(worked_example()), theorem_2(worked_example())
    task = 6 / 8 * math.log(8) + 2 / 16 * math.log(16) + 1 / 8 * math.log(8)  # six classes of 2, two of 1, one of 2
    assert one.task == pytest.approx(task)
    assert one.learned["prelax"].gap == pytest.approx(LOG2 / 4)  # texture decides for the last of four shapes
    assert one.learned["mv"].information == pytest.approx(math.log(4))
    assert two.errors == pytest.approx({"sup": 0.0, "prelax": 1 / 8, "mv": 1 / 2, "pl": 3 / 4})
    assert two.bounds["prelax"] == pytest.approx(1.25 * LOG2)
    assert two.informative == {"sup": True, "prelax": True, "mv": False, "pl": False}


def test_blur_costs_the_papers_formula_but_not_the_representation():
    sharp, blurred = theorem_1(worked_example()), theorem_1(worked_example(blur=0.25))
    assert blurred.learned["mv"].labels == sharp.learned["mv"].labels
    assert blurred.learned["mv"].gap == pytest.approx(sharp.learned["mv"].gap)
    assert blurred.learned["mv"].left > sharp.learned["mv"].left + 0.5
    assert not blurred.assumption


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_what_they_say(family):
    ones = [theorem_1(random_joint(family, seed)) for seed in range(20)]
    assert all(one.assumption == (family == "structured") for one in ones)
    assert all(one.independent == (family in ("structured", "noisy")) for one in ones)
    coarse = [len(set(one.learned["mv"].labels)) < 8 for one in ones]
    assert all(coarse) if family != "generic" else not any(coarse)
    if family in ("noisy", "tied"):  # ties between the marginals that the pair of signals tells apart
        assert any(len(set(one.learned["prelax"].labels)) > len(set(one.learned["mv"].labels)) for one in ones)


def test_random_joints_repeat_with_their_seed_and_differ_without():
    assert np.array_equal(random_joint("tied", 3).p, random_joint("tied", 3).p)
    assert not np.array_equal(random_joint("tied", 3).p, random_joint("tied", 4).p)


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(PrelaxError, match="unknown family"):
        random_joint("odd")
    for variable in ("x", "t", "sv", "sa"):
        with pytest.raises(PrelaxError, match="at least one value"):
            random_joint("tied", **{variable: 0})
    with pytest.raises(PrelaxError, match="unknown representation 'simclr'"):
        theorem_1(worked_example(), given={"simclr": [0] * 16})
    with pytest.raises(PrelaxError, match="blur"):
        worked_example(blur=2.0)
