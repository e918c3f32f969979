"""Joint distributions to try the theorems on: a worked example, counterexamples small enough to read, random ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.theory.joint import Joint

FAMILIES = {
    "structured": "each signal is a function of x, so H(Z|S) = 0 and S, T are independent given X",
    "noisy": "each signal is noisy, groups of x share p(s|x), and S, T are independent given X",
    "tied": "groups of x share p(s|x), and the signals know of the task what x does not show",
    "generic": "a uniformly drawn table; every x has a p(s|x) of its own, so every minimal Z is X",
}


def worked_example(blur: float = 0.0) -> Joint:
    """Sixteen images, nine classes: each method loses something, and Prelax loses least of the self-supervised.

    An image is one of 4 shapes, 2 ways up and 2 textures, all equally likely. Views keep the shape (s_v) and the
    rotation tells the way up (s_a). Shape and way up make 8 classes, but the last shape, when rough, is class 8 either
    way up; texture is in neither signal. With ``blur`` the view shows a random shape that often, so that H(Z|S) > 0.

    >>> worked_example().sizes
    (16, 9, 4, 2)
    """
    if not 0.0 <= blur <= 1.0:
        raise PrelaxError(f"worked_example needs a blur between 0 and 1, got {blur}")
    p = np.zeros((16, 9, 4, 2))  # X x T x Sv x Sa
    for x in range(16):
        shape, way_up, rough = x // 4, x // 2 % 2, x % 2
        task = 8 if shape == 3 and rough else 2 * shape + way_up
        p[x, task, :, way_up] += blur / 4 / 16
        p[x, task, shape, way_up] += (1.0 - blur) / 16
    return Joint(p)


def six_and_nine() -> Joint:
    """The counterexample to the order of theorem 2's bounds: a six turned upside down is a nine.

    The digit t is a 6 or a 9, the picture x is it turned by 0 or 180 degrees (s_a), and the other view s_v is the same
    digit turned by an angle of its own; all equally likely. H(Z|S) = 0 for every signal, yet I(X;T|S_v) = 0 and
    I(X;T|S_v,S_a) = log 2: the angle makes x tell the digit, and the bound charges Prelax for that.

    >>> joint = six_and_nine()
    >>> joint.table("x", "t").tolist()  # alone, the picture says nothing of the digit
    [[0.25, 0.25], [0.25, 0.25]]
    """
    p = np.zeros((2, 2, 2, 2))  # X x T x Sv x Sa
    for digit in range(2):
        for angle in range(2):
            for other in range(2):
                p[digit ^ angle, digit, digit ^ other, angle] = 1 / 8
    return Joint(p)


def noisy_copy(noise: float = 0.25) -> Joint:
    """The counterexample to the gap I(X;T) - I(Z;T) = I(X;T|S): x is the task, s_v is x flipped now and then.

    Z must be X to be sufficient, so nothing is lost; the paper's formula says that I(X;T|S_v) > 0 is.
    """
    p = np.zeros((2, 2, 2, 1))  # X x T x Sv x Sa
    for x in range(2):
        p[x, x, x, 0], p[x, x, 1 - x, 0] = (1.0 - noise) / 2, noise / 2
    return Joint(p)


def random_joint(family: str = "structured", seed: int = 0, x: int = 8, t: int = 3, sv: int = 3, sa: int = 2) -> Joint:
    """A random joint of one of FAMILIES, the same for the same seed and sizes.

    >>> random_joint("tied", seed=1).sizes
    (8, 3, 3, 2)
    """
    if family not in FAMILIES:
        raise PrelaxError(f"unknown family of joints {family!r}: use one of {', '.join(FAMILIES)}")
    if min(x, t, sv, sa) < 1:
        raise PrelaxError(f"random_joint needs at least one value of each variable, got {(x, t, sv, sa)}")
    draws = Draws(seed, rows=1).at("theory", family)
    if family == "generic":
        return Joint(_simplex(draws, "cells", 1, x * t * sv * sa).reshape(x, t, sv, sa))
    px = _simplex(draws, "x", 1, x)[0]  # X
    task = _simplex(draws, "task", x, t)  # X x T, p(t|x)
    if family == "structured":
        signal = np.eye(sv * sa)[_integers(draws, "signal", sv * sa, x)]  # X x (Sv Sa), p(s|x)
    else:
        signal = _tied_signals(draws, x, sv, sa)
    mix = _simplex(draws, "mix", x, 2)[:, 0] if family == "tied" else np.zeros(x)
    p = np.empty((x, t, sv * sa))
    for i in range(x):
        together = _couple(task[i], signal[i], draws.at("x", i))
        p[i] = px[i] * (mix[i] * together + (1.0 - mix[i]) * np.outer(task[i], signal[i]))
    return Joint.of(p.reshape(x, t, sv, sa))


def _tied_signals(draws: Draws, x: int, sv: int, sa: int) -> NDArray[np.float64]:
    """p(s|x), X x (Sv Sa), with ties: some x share p(s_v|x), some p(s_a|x), and of these some differ only in how the
    two signals go together."""
    groups = max(1, (x + 1) // 3)
    of_view, of_angle = _simplex(draws, "view", groups, sv), _simplex(draws, "angle", groups, sa)
    g, h = _integers(draws, "view group", groups, x), _integers(draws, "angle group", groups, x)
    joined = _integers(draws, "joined", 2, x)
    rows = [
        _couple(of_view[i], of_angle[j]) if k else np.outer(of_view[i], of_angle[j])
        for i, j, k in zip(g, h, joined, strict=True)
    ]
    return np.stack(rows).reshape(x, sv * sa)


def _couple(a: NDArray[np.float64], b: NDArray[np.float64], draws: Draws | None = None) -> NDArray[np.float64]:
    """A table with the marginals a and b that ties them as far as it goes (in a random order of values, if drawn)."""
    first = np.arange(len(a)) if draws is None else draws.permutation("first", len(a))[0].numpy()
    second = np.arange(len(b)) if draws is None else draws.permutation("second", len(b))[0].numpy()
    high_a, high_b = np.cumsum(a[first])[:, None], np.cumsum(b[second])[None]
    low_a, low_b = high_a - a[first][:, None], high_b - b[second][None]
    table = np.empty((len(a), len(b)))
    table[np.ix_(first, second)] = np.clip(np.minimum(high_a, high_b) - np.maximum(low_a, low_b), 0.0, None)
    return table


def _simplex(draws: Draws, name: str, rows: int, n: int) -> NDArray[np.float64]:
    """Rows x n probabilities, uniform on the simplex (exponentials over their sum)."""
    unit = draws.uniform(name, n=rows * n).numpy().astype(np.float64).reshape(rows, n)
    weights = -np.log1p(-(unit + 2.0**-26))  # the shift keeps a draw of exactly 0 from being a weight of 0
    return weights / weights.sum(axis=1, keepdims=True)


def _integers(draws: Draws, name: str, high: int, n: int) -> NDArray[np.int64]:
    """n integers in [0, high)."""
    unit = draws.uniform(name, n=n)[0].numpy().astype(np.float64)
    return (unit * high).astype(np.int64)
