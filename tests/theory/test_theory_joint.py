import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from prelax.errors import PrelaxError
from prelax.theory import (
    Joint,
    bayes_error,
    conditional_mutual_information,
    entropy,
    interaction_information,
    minimal_sufficient,
    mutual_information,
)

# Small counts: exact ties between rows, zeros and missing values of x come up all the time.
counts = hnp.arrays(np.int64, st.tuples(*[st.integers(1, n) for n in (4, 3, 2, 2)]), elements=st.integers(0, 3)).filter(
    lambda table: table.sum() > 0
)


def plain_conditional_information(p, a, b, c):
    """I(a;b|c) by the definition, cell by cell, in plain Python; a, b, c map a cell to a value."""
    abc, ac, bc, cc = {}, {}, {}, {}
    for cell, mass in np.ndenumerate(p):
        key = a(cell), b(cell), c(cell)
        for table, part in ((abc, key), (ac, (key[0], key[2])), (bc, key[1:]), (cc, key[2])):
            table[part] = table.get(part, 0.0) + mass
    return sum(m * math.log(m * cc[k[2]] / (ac[k[0], k[2]] * bc[k[1:]])) for k, m in abc.items() if m > 0)


def partitions(n):
    """Every encoder of n inputs, up to the names of its labels."""
    for labels in product(range(n), repeat=n):
        if all(label <= max(labels[:i], default=-1) + 1 for i, label in enumerate(labels)):
            yield labels


@given(counts)
@settings(max_examples=200, deadline=None)
def test_information_is_the_sum_of_its_definition(table):
    joint = Joint.of(table)
    z = [i % 2 for i in range(joint.sizes[0])]
    expected = plain_conditional_information(joint.p, lambda c: c[0], lambda c: c[1], lambda c: c[2:])
    assert conditional_mutual_information(joint, "x", "t", "s") == pytest.approx(expected, abs=1e-12)
    assert conditional_mutual_information(joint, "x", "t", "sv", "sa") == pytest.approx(expected, abs=1e-12)
    expected = plain_conditional_information(joint.p, lambda c: z[c[0]], lambda c: c[3], lambda c: 0)
    assert mutual_information(joint, z, "sa") == pytest.approx(expected, abs=1e-12)
    expected = plain_conditional_information(joint.p, lambda c: c[0], lambda c: c[2], lambda c: (c[1], z[c[0]]))
    assert conditional_mutual_information(joint, "x", "sv", "t", z) == pytest.approx(expected, abs=1e-12)


@given(counts)
@settings(max_examples=200, deadline=None)
def test_interaction_information_is_symmetric(table):
    joint = Joint.of(table)
    first = interaction_information(joint, "x", "t", "s")
    assert interaction_information(joint, "s", "x", "t") == pytest.approx(first, abs=1e-12)
    assert interaction_information(joint, "t", "s", "x") == pytest.approx(first, abs=1e-12)


def test_interaction_information_of_xor_is_negative():
    joint = Joint.of(np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]]]).reshape(2, 2, 2, 1))
    assert interaction_information(joint, "x", "t", "sv") == pytest.approx(-math.log(2))


def test_entropy_of_a_uniform_table_is_the_logarithm_of_its_size():
    joint = Joint(np.full((2, 3, 2, 2), 1 / 24))
    assert entropy(joint, "x", "t", "s") == pytest.approx(math.log(24))
    assert entropy(joint, "t", given="s") == pytest.approx(math.log(3))
    assert joint.table("sa", "x").shape == (2, 2)


@given(counts)
@settings(max_examples=300, deadline=None)
def test_minimal_sufficient_joins_the_inputs_with_equal_fractions(table):
    joint = Joint.of(table)
    for signal, of_signal in (("sv", table.sum(axis=(1, 3))), ("s", table.sum(axis=1).reshape(len(table), -1))):
        labels = minimal_sufficient(joint, signal)
        rows = [[Fraction(int(c), int(row.sum())) for c in row] if row.sum() else None for row in of_signal]
        for i, j in product(range(len(rows)), repeat=2):
            if rows[i] is not None and rows[j] is not None:
                assert (labels[i] == labels[j]) == (rows[i] == rows[j])


@given(counts.filter(lambda table: (table.sum(axis=(1, 2, 3)) > 0).all()))
@settings(max_examples=150, deadline=None)
def test_minimal_sufficient_is_the_papers_definition_among_all_encoders(table):
    """Of all encoders, the largest I(Z;S) is I(X;S), and of those that reach it ours alone has the least H(Z|S)."""
    joint = Joint.of(table)
    ours = tuple(minimal_sufficient(joint, "s").tolist())
    available = mutual_information(joint, "x", "s")
    kept = {z: mutual_information(joint, z, "s") for z in partitions(joint.sizes[0])}
    assert max(kept.values()) == pytest.approx(available, abs=1e-12)
    spread = {z: entropy(joint, z, given="s") for z, value in kept.items() if value > available - 1e-12}
    assert [z for z, h in spread.items() if h < min(spread.values()) + 1e-12] == [ours]


@given(counts)
@settings(max_examples=150, deadline=None)
def test_bayes_error_is_the_error_of_the_best_of_all_classifiers(table):
    joint = Joint.of(table)
    xt = joint.p.sum(axis=(2, 3))
    classifiers = product(range(xt.shape[1]), repeat=xt.shape[0])
    best = min(1 - sum(xt[x, guess] for x, guess in enumerate(classifier)) for classifier in classifiers)
    assert bayes_error(joint) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "says"),
    [
        (np.full((2, 2), 0.25), "axes"),
        (np.full((2, 1, 1, 1), 1.0), "sum to 1"),
        (np.array([1.5, -0.5]).reshape(2, 1, 1, 1), "negative"),
        (np.array([np.nan, 1.0]).reshape(2, 1, 1, 1), "finite"),
        (np.zeros((0, 1, 1, 1)), "non-empty"),
    ],
)
def test_a_table_that_is_no_distribution_is_refused(p, says):
    with pytest.raises(PrelaxError, match=says):
        Joint(p)


def test_bad_variables_and_weights_are_refused():
    joint = Joint(np.full((2, 1, 1, 1), 0.5))
    with pytest.raises(PrelaxError, match="unknown variable 'y'"):
        entropy(joint, "y")
    with pytest.raises(PrelaxError, match="one label"):
        entropy(joint, [0, 1, 2])
    with pytest.raises(PrelaxError, match="one label"):
        bayes_error(joint, [0.5, 0.5])
    with pytest.raises(PrelaxError, match="positive"):
        Joint.of(np.zeros((1, 1, 1, 1)))


def test_a_joint_keeps_its_own_table():
    table = np.full((2, 1, 1, 1), 0.5)
    joint = Joint(table)
    before = entropy(joint, "x")
    table[:] = [[[[1.0]]], [[[0.0]]]]
    assert entropy(joint, "x") == before == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="read-only"):
        joint.p[0] = 1.0
