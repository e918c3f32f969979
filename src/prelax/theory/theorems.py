"""The paper's two theorems on a given joint distribution: every quantity of their proofs, and whether each step holds.

The paper (section 3.3 and appendix B) takes four representations of x, each the minimal sufficient statistic of its
signal: sup of t, prelax of (s_v, s_a), mv of s_v, pl of s_a. ``docs/theory.md`` says which steps need what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prelax.errors import PrelaxError
from prelax.theory.joint import (
    Joint,
    Variable,
    bayes_error,
    conditional_mutual_information,
    entropy,
    interaction_information,
    minimal_sufficient,
    mutual_information,
)

SIGNALS = {"sup": "t", "prelax": "s", "mv": "sv", "pl": "sa"}
SELF_SUPERVISED = ("prelax", "mv", "pl")
TOLERANCE = 1e-9  # nats; sums of a few hundred float64 logarithms are far inside it


def _at_most(a: float, b: float) -> bool:
    return a <= b + TOLERANCE


def _equal(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE


@dataclass(frozen=True)
class Learned:
    """What one representation z of x keeps, and each term of the proof's decomposition of I(Z;T), in nats.

    For every sufficient z = f(x): I(Z;T) = I(X;T) - left + overlap + synergy, and no term is negative. The paper has
    ``left`` alone.
    """

    signal: str
    labels: tuple[int, ...]
    information: float  # I(Z;T)
    gap: float  # I(X;T) - I(Z;T)
    left: float  # I(X;T|S), the paper's value of the gap
    overlap: float  # I(Z;T|S), which the paper bounds by H(Z|S) and takes to be 0
    synergy: float  # I(X;S|T,Z), which is 0 where the paper has I(Z;S|T) = I(X;S|T)
    spread: float  # H(Z|S), the paper's assumption is that it is 0
    signal_information: float  # I(Z;S)
    signal_available: float  # I(X;S)
    interaction_z: float  # I(Z;S;T)
    interaction_x: float  # I(X;S;T)
    sufficient: bool  # I(Z;S) = I(X;S)
    interactions_equal: bool  # I(Z;S;T) = I(X;S;T)
    determined: bool  # H(Z|S) = 0
    gap_exact: bool  # I(Z;T) = I(X;T) - I(X;T|S), the paper's equality
    gap_bounded: bool  # I(Z;T) >= I(X;T) - I(X;T|S), what holds without any assumption


@dataclass(frozen=True)
class Theorem1:
    """I(X;T) = I(Z_sup;T) >= I(Z_prelax;T) >= max(I(Z_mv;T), I(Z_pl;T)): each link, and the steps of the proof."""

    task: float  # I(X;T)
    learned: dict[str, Learned]
    sup_keeps_task: bool  # I(X;T) = I(Z_sup;T)
    sup_over_prelax: bool
    prelax_over_both: bool
    holds: bool  # the three links
    nested: bool  # z_mv and z_pl are functions of z_prelax: the reason that prelax_over_both holds
    assumption: bool  # H(Z|S) = 0 for the three self-supervised representations
    leak: float  # I(S;T|X): what the signals know of the task beyond x
    independent: bool  # leak = 0, that is S and T are independent given X
    gaps_exact: bool  # the paper's equality for the three
    gaps_bounded: bool
    lefts_ordered: bool  # I(X;T|S_v,S_a) <= min(I(X;T|S_v), I(X;T|S_a)), the proof's last step


@dataclass(frozen=True)
class Theorem2:
    """The Bayes errors, the paper's upper bounds u^e, and the bounds that stay ordered without any assumption."""

    classes: int  # K
    errors: dict[str, float]  # P^e
    thresholded: dict[str, float]  # min(max(P^e, 0), 1 - 1/K)
    entropies: dict[str, float]  # H(T|Z)
    bounds: dict[str, float]  # u^e = log 2 + P^e_sup log K + I(X;T|S)
    gap_bounds: dict[str, float]  # the same with I(X;T|Z) for I(X;T|S): never larger, always ordered
    entropy_bounds: dict[str, float]  # 1 - exp(-H(T|Z)): at most 1 - 1/K, always ordered
    informative: dict[str, bool]  # u^e < 1 - 1/K: the bound says more than guessing does
    error_below_entropy: bool  # P^e <= -log(1 - P^e) <= H(T|Z)
    fano: bool  # H(T|Z_sup) <= log 2 + P^e_sup log K
    bounded: bool  # thresholded P^e <= u^e
    bounds_ordered: bool  # u_sup <= u_prelax <= min(u_mv, u_pl)
    holds: bool  # bounded and bounds_ordered: the theorem as stated
    errors_ordered: bool  # P_sup <= P_prelax <= min(P_mv, P_pl)
    gap_bounds_ordered: bool
    entropy_bounds_ordered: bool


def representations(joint: Joint, given: Mapping[str, Variable] | None = None) -> dict[str, tuple[int, ...]]:
    """The labels of the four representations: minimal sufficient, but for those given by the caller."""
    given = given or {}
    if unknown := set(given) - set(SIGNALS):
        raise PrelaxError(f"unknown representation {sorted(unknown)[0]!r}: use sup, prelax, mv or pl")
    return {
        name: tuple(int(z) for z in np.asarray(given[name] if name in given else minimal_sufficient(joint, signal)))
        for name, signal in SIGNALS.items()
    }


def is_function_of(joint: Joint, coarse: Variable, fine: Variable) -> bool:
    """Whether the first representation can be computed from the second, up to events of probability zero."""
    return _equal(entropy(joint, coarse, given=fine), 0.0)


def learned(joint: Joint, z: Variable, signal: str) -> Learned:
    """Every quantity of the proof of theorem 1 for one representation and its signal."""
    task = mutual_information(joint, "x", "t")
    information = mutual_information(joint, z, "t")
    left = conditional_mutual_information(joint, "x", "t", signal)
    spread = entropy(joint, z, given=signal)
    kept, available = mutual_information(joint, z, signal), mutual_information(joint, "x", signal)
    of_z, of_x = interaction_information(joint, z, signal, "t"), interaction_information(joint, "x", signal, "t")
    return Learned(
        signal=signal,
        labels=tuple(int(label) for label in z),
        information=information,
        gap=task - information,
        left=left,
        overlap=conditional_mutual_information(joint, z, "t", signal),
        synergy=conditional_mutual_information(joint, "x", signal, "t", z),
        spread=spread,
        signal_information=kept,
        signal_available=available,
        interaction_z=of_z,
        interaction_x=of_x,
        sufficient=_equal(kept, available),
        interactions_equal=_equal(of_z, of_x),
        determined=_equal(spread, 0.0),
        gap_exact=_equal(task - information, left),
        gap_bounded=_at_most(task - information, left),
    )


def theorem_1(joint: Joint, given: Mapping[str, Variable] | None = None) -> Theorem1:
    """Theorem 1 on a joint distribution; ``given`` replaces representations by other encoders of x.

    >>> from prelax.theory import worked_example
    >>> result = theorem_1(worked_example())
    >>> result.holds, result.assumption
    (True, True)
    """
    z = representations(joint, given)
    task = mutual_information(joint, "x", "t")
    each = {name: learned(joint, z[name], signal) for name, signal in SIGNALS.items()}
    sup, prelax, mv, pl = (each[name] for name in SIGNALS)
    own = [each[name] for name in SELF_SUPERVISED]
    leak = conditional_mutual_information(joint, "s", "t", "x")
    sup_keeps_task = _equal(task, sup.information)
    sup_over_prelax = _at_most(prelax.information, sup.information)
    prelax_over_both = _at_most(max(mv.information, pl.information), prelax.information)
    return Theorem1(
        task=task,
        learned=each,
        sup_keeps_task=sup_keeps_task,
        sup_over_prelax=sup_over_prelax,
        prelax_over_both=prelax_over_both,
        holds=sup_keeps_task and sup_over_prelax and prelax_over_both,
        nested=all(is_function_of(joint, z[name], z["prelax"]) for name in ("mv", "pl")),
        assumption=all(one.determined for one in own),
        leak=leak,
        independent=_equal(leak, 0.0),
        gaps_exact=all(one.gap_exact for one in own),
        gaps_bounded=all(one.gap_bounded for one in own),
        lefts_ordered=_at_most(prelax.left, min(mv.left, pl.left)),
    )


def theorem_2(joint: Joint, given: Mapping[str, Variable] | None = None) -> Theorem2:
    """Theorem 2 on a joint distribution; ``given`` replaces representations by other encoders of x.

    >>> from prelax.theory import six_and_nine
    >>> result = theorem_2(six_and_nine())
    >>> result.bounded, result.bounds_ordered, result.errors_ordered
    (True, False, True)
    """
    z = representations(joint, given)
    classes = joint.sizes[1]
    guess = 1.0 - 1.0 / classes
    errors = {name: bayes_error(joint, z[name]) for name in SIGNALS}
    thresholded = {name: min(max(error, 0.0), guess) for name, error in errors.items()}
    entropies = {name: entropy(joint, "t", given=z[name]) for name in SIGNALS}
    fano = math.log(2.0) + errors["sup"] * math.log(classes)
    # I(X;T|T) = 0 and I(X;T|Z_sup) = 0, so that u_sup is Fano's own bound in both forms.
    bounds = {n: fano + conditional_mutual_information(joint, "x", "t", s) for n, s in SIGNALS.items()}
    gap_bounds = {n: fano + conditional_mutual_information(joint, "x", "t", z[n]) for n in SIGNALS}
    entropy_bounds = {name: -math.expm1(-h) for name, h in entropies.items()}
    bounded = all(_at_most(thresholded[name], bounds[name]) for name in SIGNALS)
    bounds_ordered = _ordered(bounds)
    return Theorem2(
        classes=classes,
        errors=errors,
        thresholded=thresholded,
        entropies=entropies,
        bounds=bounds,
        gap_bounds=gap_bounds,
        entropy_bounds=entropy_bounds,
        informative={name: bound < guess for name, bound in bounds.items()},
        error_below_entropy=all(
            _at_most(errors[n], -math.log1p(-errors[n])) and _at_most(-math.log1p(-errors[n]), entropies[n])
            for n in SIGNALS
        ),
        fano=_at_most(entropies["sup"], fano),
        bounded=bounded,
        bounds_ordered=bounds_ordered,
        holds=bounded and bounds_ordered,
        errors_ordered=_ordered(errors),
        gap_bounds_ordered=_ordered(gap_bounds),
        entropy_bounds_ordered=_ordered(entropy_bounds),
    )


def _ordered(values: Mapping[str, float]) -> bool:
    """sup <= prelax <= min(mv, pl)."""
    below = _at_most(values["sup"], values["prelax"])
    return below and _at_most(values["prelax"], min(values["mv"], values["pl"]))
