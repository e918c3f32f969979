"""A finite joint distribution p(x, t, s_v, s_a), and exact information quantities on it.

Everything is a sum over the cells of one table, in nats; nothing is estimated or sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prelax.errors import PrelaxError

AXES = ("x", "t", "sv", "sa")

# What an information quantity is taken of: an axis by name, "s" for both signals together, or a representation, that
# is an integer label for each value of x (so z = labels[x], the paper's deterministic encoder).
Variable = str | Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Joint:
    """The probabilities of every (input, task, view signal, augmentation signal), checked to be a distribution.

    >>> Joint(np.full((2, 1, 1, 1), 0.5)).sizes
    (2, 1, 1, 1)
    """

    p: NDArray[np.float64]  # X x T x Sv x Sa
    # The theorems ask for the same few dozen entropies again and again.
    _entropies: dict[frozenset[Variable], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        p = np.array(self.p, dtype=np.float64)
        if p.ndim != 4 or p.size == 0:
            raise PrelaxError(f"Joint needs a non-empty table with the axes x, t, sv, sa; got the shape {p.shape}")
        if not np.isfinite(p).all() or (p < 0).any():
            raise PrelaxError("Joint needs finite probabilities that are not negative")
        if abs(p.sum() - 1.0) > 1e-9:
            raise PrelaxError(f"Joint needs probabilities that sum to 1, got {p.sum():.9g}; for counts use Joint.of")
        p.flags.writeable = False
        object.__setattr__(self, "p", p)

    @classmethod
    def of(cls, weights: NDArray[np.float64] | NDArray[np.int64]) -> Joint:
        """The joint proportional to a table of counts or weights."""
        weights = np.asarray(weights, dtype=np.float64)
        total = weights.sum()
        if not np.isfinite(total) or total <= 0:
            raise PrelaxError("Joint.of needs weights with a positive, finite sum")
        return cls(weights / total)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values x, t, sv and sa can take."""
        return self.p.shape

    def table(self, *variables: Variable) -> NDArray[np.float64]:
        """The joint table of some variables, an axis for each, in the order asked.

        >>> xor = Joint.of(np.array([[1, 0], [0, 1]]).reshape(2, 2, 1, 1))
        >>> xor.table("t", "x").tolist()
        [[0.5, 0.0], [0.0, 0.5]]
        >>> xor.table([0, 0], "t").tolist()  # an encoder that forgets x
        [[0.5, 0.5]]
        """
        codes, sizes = zip(*(self._codes(v) for v in variables), strict=True) if variables else ((), ())
        flat = np.zeros(self.p.shape, dtype=np.int64)
        for code, size in zip(codes, sizes, strict=True):
            flat = flat * size + code
        shape = tuple(int(size) for size in sizes)
        counts = np.bincount(flat.ravel(), weights=self.p.ravel(), minlength=math.prod(shape))
        return np.asarray(counts, dtype=np.float64).reshape(shape)

    def _codes(self, variable: Variable) -> tuple[NDArray[np.int64], int]:
        """The value of a variable in every cell (broadcastable to p), and how many values it has."""
        if isinstance(variable, str):
            if variable == "s":
                sv, sa = self._codes("sv")[0], self._codes("sa")[0]
                return sv * self.sizes[3] + sa, self.sizes[2] * self.sizes[3]
            if variable not in AXES:
                raise PrelaxError(f"unknown variable {variable!r}: use x, t, sv, sa, s (both signals) or labels of x")
            axis = AXES.index(variable)
            shape = [1, 1, 1, 1]
            shape[axis] = self.sizes[axis]
            return np.arange(self.sizes[axis]).reshape(shape), self.sizes[axis]
        labels = np.asarray(variable)
        if labels.shape != (self.sizes[0],) or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise PrelaxError(f"a representation is one label (0, 1, ...) for each of the {self.sizes[0]} values of x")
        return labels.reshape(-1, 1, 1, 1).astype(np.int64), int(labels.max()) + 1


def entropy(joint: Joint, *variables: Variable, given: Variable | None = None) -> float:
    """H(variables | given) in nats.

    >>> coin = Joint(np.full((2, 1, 1, 1), 0.5))
    >>> round(entropy(coin, "x"), 4), entropy(coin, "x", given="x")
    (0.6931, 0.0)
    """
    if given is not None:
        return max(entropy(joint, *variables, given) - entropy(joint, given), 0.0)  # rounding may leave -1e-16
    key = frozenset(v if isinstance(v, str) else tuple(v) for v in variables)
    if key not in joint._entropies:
        p = joint.table(*variables).ravel()
        p = p[p > 0]
        joint._entropies[key] = float(-(p * np.log(p)).sum()) + 0.0  # + 0.0 turns -0.0 into 0.0
    return joint._entropies[key]


def mutual_information(joint: Joint, a: Variable, b: Variable) -> float:
    """I(a; b) in nats."""
    return max(entropy(joint, a) + entropy(joint, b) - entropy(joint, a, b), 0.0)


def conditional_mutual_information(joint: Joint, a: Variable, b: Variable, *given: Variable) -> float:
    """I(a; b | given) in nats; several conditions are taken together."""
    return entropy(joint, a, *given) + entropy(joint, b, *given) - entropy(joint, a, b, *given) - entropy(joint, *given)


def interaction_information(joint: Joint, a: Variable, b: Variable, c: Variable) -> float:
    """I(a; b; c) = I(a; b) - I(a; b | c) in nats: symmetric in its three variables, and it may be negative."""
    return mutual_information(joint, a, b) - conditional_mutual_information(joint, a, b, c)


def bayes_error(joint: Joint, z: Variable = "x") -> float:
    """The error P^e of the best classifier of t that sees z alone.

    >>> bayes_error(Joint(np.full((1, 4, 1, 1), 0.25)))
    0.75
    """
    return max(float(1.0 - joint.table(z, "t").max(axis=1).sum()), 0.0)


def minimal_sufficient(joint: Joint, signal: Variable, tolerance: float = 1e-9) -> NDArray[np.int64]:
    """The labels z of the minimal sufficient statistic of x for a signal: two x share a label when p(s|x) is equal.

    This is the paper's definition: among the encoders with the largest I(Z; S), the one with the smallest H(Z|S). The
    labels count up from 0 in order of first appearance; an x of probability zero is given label 0, which changes
    nothing. Probabilities closer than ``tolerance`` count as equal.

    >>> p = np.array([[0.2, 0.1], [0.2, 0.1], [0.1, 0.3]]).reshape(3, 1, 2, 1)  # x x 1 x sv x 1
    >>> minimal_sufficient(Joint(p), "sv").tolist()
    [0, 0, 1]
    """
    table = joint.table("x", signal)  # X x S
    mass = table.sum(axis=1)
    labels = np.zeros(len(mass), dtype=np.int64)
    rows: list[NDArray[np.float64]] = []
    for x in np.flatnonzero(mass > 0):
        row = table[x] / mass[x]
        match = next((z for z, seen in enumerate(rows) if np.abs(seen - row).max() <= tolerance), len(rows))
        if match == len(rows):
            rows.append(row)
        labels[x] = match
    return labels
