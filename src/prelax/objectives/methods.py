"""Every method as data: the views it takes and the weighted terms it sums. Adding a row is adding a line.

A view is (draw, relaxed): views of one draw share all of its record; a relaxed view carries one more augmentation
(``method.relax``, rotation by default). Views are numbered from 1 as in the paper. A term names the views it reads:

    sim      (i, k)      ||G(z_i) - z_k||^2                       similarity; NT-Xent on a SimCLR base
    margin   (i, k)      max(||G(z_i) - z_k||^2 - eta, 0)
    relax    (i, j, k)   ||G(z_i) - alpha G(z_i - z_j) - z_k||^2  R2S is (1, 2, 2), R3S is (3, 1, 2)
    pl       (i, j)      H(z_i - z_j) against what the pipeline drew for view i
    relaxpl  (i, j)      H(z_i - z_j) against what the relaxed augmentation drew for view i
    predict  (i, ...)    H(backbone features of these views, as one batch) against what the relaxed augmentation drew
    compare  (i, j)      H(features of i, features of j) against the difference of what the pipeline drew (AugSelf)
    classify (i,)        H(backbone features of view i) against the label
    looc     (q, k, ...) in a space of its own, q must find its key k among its other keys and other images' k
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prelax.config import MethodSettings, nearest
from prelax.errors import PrelaxError
from prelax.objectives.parts import Method, Term, ViewSpec, coefficient
from prelax.own import find_own

ONE, TWO = ViewSpec(1), ViewSpec(2)
THREE = ViewSpec(1, relaxed=True)
TURNS = tuple(ViewSpec(1, relaxed=True, fixed=turns, small=True) for turns in range(4))
CROPS = tuple(ViewSpec(draw, relaxed=True, small=True) for draw in range(3, 7))

SIM_12 = Term("sim", "sim", (1, 2))
SIM_21 = Term("sim", "sim", (2, 1))
SIM = Term("sim", "sim", (2, 1), coefficient="beta", constraint=True)
R2S = Term("r2s", "relax", (1, 2, 2))
R3S = Term("r3s", "relax", (3, 1, 2), alpha="alpha2")
PL = Term("pl", "pl", (1, 2), coefficient="gamma")
ROTPL = Term("rotpl", "relaxpl", (3, 1), coefficient="gamma2")


def half(term: Term) -> Term:
    return replace(term, factor=term.factor / 2)


METHODS: dict[str, Method] = {
    # -- bases
    "simsiam": Method(
        "SimSiam: two views predict each other, targets without gradient",
        "sim(1>2) + sim(2>1)",
        (ONE, TWO),
        (SIM_12, SIM_21),
        base="simsiam",
    ),
    "byol": Method(
        "BYOL: two views predict each other's embedding by a moving-average network",
        "sim(1>2) + sim(2>1), target phi <- tau phi + (1 - tau) theta",
        (ONE, TWO),
        (SIM_12, SIM_21),
        base="byol",
    ),
    "simclr": Method(
        "SimCLR: two views find each other among all other images of the batch",
        "NT-Xent(1>2) + NT-Xent(2>1)",
        (ONE, TWO),
        (SIM_12, SIM_21),
        base="simclr",
    ),
    # -- the paper's method
    "prelax-std": Method(
        "Prelax on the base's own augmentations",
        "R2S(1>2) + gamma PL(r12; t1) + beta sim(2>1)",
        (ONE, TWO),
        (R2S, PL, SIM),
    ),
    "prelax-rot": Method(
        "Prelax with a third, rotated view (or any other: method.relax)",
        "R3S(3>2) + gamma RotPL(r31; a) + beta sim(2>1)",
        (ONE, TWO, THREE),
        (R3S, ROTPL, SIM),
    ),
    "prelax-all": Method(
        "Prelax with both: half of std's and half of rot's relaxation",
        "(R2S(1>2) + R3S(3>2))/2 + gamma/2 PL(r12; t1) + gamma/2 RotPL(r31; a) + beta sim(2>1)",
        (ONE, TWO, THREE),
        (half(R2S), half(R3S), half(PL), half(ROTPL), SIM),
    ),
    "prelax-turns": Method(
        "beyond the paper: Prelax-all whose relaxed view is view 1 made smaller, in all four rotations",
        "(R2S(1>2) + mean_a R3S(3a>2))/2 + gamma/2 PL(r12; t1) + gamma/2 mean_a RotPL(r_3a1; a) + beta sim(2>1)",
        (ONE, TWO, *TURNS),
        (half(R2S), half(R3S), half(PL), half(ROTPL), SIM),
    ),
    "prelax-crops": Method(
        "beyond the paper: four small crops, each rotated; view 2 is predicted from each, and each tells its angle",
        "(sim(1>2) + mean_k sim(3k>2))/2 + gamma/2 PL(r12; t1) + gamma/2 mean_k RotPL(r_3k1; a_k) + beta sim(2>1)",
        (ONE, TWO, *CROPS),
        (half(SIM_12), half(Term("crops", "sim", (3, 2))), half(PL), half(ROTPL), SIM),
    ),
    # -- Tab. 3b: what each part does
    "sim+pl": Method(
        "ablation: residual told its pretext, no relaxation",
        "sim(1>2) + sim(2>1) + gamma PL(r12; t1)",
        (ONE, TWO),
        (SIM_12, SIM_21, PL),
    ),
    "sim+r2s": Method(
        "ablation: relaxed, the residual untold",
        "R2S(1>2) + beta sim(2>1)",
        (ONE, TWO),
        (R2S, SIM),
    ),
    "r2s+pl": Method(
        "ablation: no similarity constraint",
        "R2S(1>2) + gamma PL(r12; t1)",
        (ONE, TWO),
        (R2S, PL),
    ),
    "sim+rotpl": Method(
        "ablation: rotated view's residual told its angle, no relaxation",
        "sim(1>2) + sim(2>1) + gamma RotPL(r31; a)",
        (ONE, TWO, THREE),
        (SIM_12, SIM_21, ROTPL),
    ),
    "sim+r3s": Method(
        "ablation: rotated view relaxed, its residual untold",
        "R3S(3>2) + beta sim(2>1)",
        (ONE, TWO, THREE),
        (R3S, SIM),
    ),
    "r3s+rotpl": Method(
        "ablation: rotated view, no similarity constraint",
        "R3S(3>2) + gamma RotPL(r31; a)",
        (ONE, TWO, THREE),
        (R3S, ROTPL),
    ),
    # -- Tab. 3a: other ways to relax, or to use rotation
    "simsiam-margin": Method(
        "SimSiam that tolerates a fixed mismatch eta",
        "max(sim(1>2) - eta, 0) + max(sim(2>1) - eta, 0)",
        (ONE, TWO),
        (Term("margin", "margin", (1, 2)), Term("margin", "margin", (2, 1))),
        base="simsiam",
    ),
    "simsiam-rotation-aug": Method(
        "SimSiam with the relaxed augmentation as an ordinary one",
        "sim(1>2) + sim(2>1), both views rotated",
        (ViewSpec(1, relaxed=True), ViewSpec(2, relaxed=True)),
        (SIM_12, SIM_21),
        base="simsiam",
    ),
    "simsiam-rotation-loss": Method(
        "SimSiam and, beside it, the angle read off the backbone's features of a rotated view",
        "sim(1>2) + sim(2>1) + gamma CE(H(h3), a)",
        (ONE, TWO, THREE),
        (SIM_12, SIM_21, Term("rotation", "predict", (3,), coefficient="gamma2")),
        base="simsiam",
    ),
    "rotation": Method(
        "Rotation (Gidaris et al. 2018): the angle read off the backbone's features, nothing else",
        "CE(H(h), a) over the four rotated copies of an image",
        tuple(ViewSpec(1, relaxed=True, fixed=turns) for turns in range(4)),
        (Term("rotation", "predict", (1, 2, 3, 4)),),
        base="simsiam",
    ),
    "supervised": Method(
        "labels and the same augmentations: the upper reference",
        "CE(H(h1), label)",
        (ONE,),
        (Term("classify", "classify", (1,)),),
        base="simsiam",
    ),
    # -- peers
    "augself": Method(
        "AugSelf (Lee et al. 2021): the difference of augmentation parameters read off two features, beside the base",
        "sim(1>2) + sim(2>1) + gamma compare(h1, h2; t1 - t2)",
        (ONE, TWO),
        (SIM_12, SIM_21, Term("augself", "compare", (1, 2), coefficient="gamma")),
    ),
    "essl": Method(
        "E-SSL (Dangovski et al. 2022): the angle read off the backbone for a third, small crop in all four rotations",
        "sim(1>2) + sim(2>1) + 1.6/4 sum_a CE(H(h_3a), a)",
        (ONE, TWO, *(replace(turn, draw=3) for turn in TURNS)),
        # 0.4 on SimSiam's own scale, a quarter of the printed one.
        (SIM_12, SIM_21, Term("essl", "predict", (3, 4, 5, 6), factor=1.6)),
    ),
    "looc": Method(
        "LooC (Xiao et al. 2021): a space invariant to all, and one that keeps colour and one that keeps rotation",
        "NT-Xent(1>2) + sum_i -log E_i(1, k_i) / (sum_j E_i(1, k_j) + sum_others E_i(1, k_i))",
        (
            ViewSpec(1, relaxed=True),
            ViewSpec(2, relaxed=True),
            ViewSpec(3, relaxed=True, shares=("jitter", "grey")),
            ViewSpec(4, relaxed=True, shares=("relax",)),
        ),
        (SIM_12, Term("looc-colour", "looc", (1, 3, 2, 4)), Term("looc-rotation", "looc", (1, 4, 2, 3))),
        base="simclr",
    ),
}


def method(name: str) -> Method:
    """A line of the table by name, or a user's own as ``MODULE:NAME``."""
    if name not in METHODS and ":" in name:
        found = find_own(name, "method")
        if not isinstance(found, Method):
            raise PrelaxError(f"method {name}: it is a {type(found).__name__}, not a prelax.objectives.Method")
        return found
    if name not in METHODS:
        raise PrelaxError(f"no method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def base_of(settings: MethodSettings) -> str:
    """What the method stands on: fixed by its line, or ``method.base``."""
    return method(settings.name).base or settings.base


def terms_of(settings: MethodSettings) -> list[Term]:
    """The method's terms as they are computed: the similarity constraint in one direction or both."""
    found: list[Term] = []
    for term in method(settings.name).terms:
        found.append(term)
        if term.constraint and settings.similarity == "both":
            found.append(replace(term, views=term.views[::-1]))
    return found


def weighed(settings: MethodSettings) -> list[Term]:
    """The method's terms that have a weight; refuses settings that do not go together."""
    found = [term for term in terms_of(settings) if term.weight(settings)]
    kinds = {term.kind for term in found}
    if not found:
        raise PrelaxError(f"method {settings.name} has no term of any weight: there is nothing to learn")
    whole = sum(not view.small for view in method(settings.name).views)
    if whole < 2 and settings.pl_anchor == "other" and "relaxpl" in kinds:
        raise PrelaxError("method.pl_anchor=other reads against view 2, and there is none of full size: use same")
    if "pl" in kinds and settings.std_tells == "difference" and settings.std_anchor == "none":
        raise PrelaxError("method.std_tells=difference asks of two views: set method.std_anchor=other with it")
    return found


def turned(settings: MethodSettings, terms: Sequence[Term]) -> list[Term]:
    """The relaxed terms whose residual ``reverse`` turns: those of ordinary views, or all where there are none."""
    views = method(settings.name).views
    relaxed = [term for term in terms if term.kind == "relax" and coefficient(settings, term.alpha) > 0]
    plain = [term for term in relaxed if not any(views[at - 1].relaxed for at in term.views[:2])]
    return plain or relaxed


def unread(settings: MethodSettings) -> set[str]:
    """The settings of a method that change nothing in it.

    >>> sorted(unread(MethodSettings(name="simsiam-margin")) & {"alpha", "eta", "relax", "tau"})
    ['alpha', 'relax', 'tau']
    """
    line, base = method(settings.name), base_of(settings)
    terms = [term for term in terms_of(settings) if term.weight(settings)]
    kinds, weights = {term.kind for term in terms}, {term.coefficient for term in line.terms}
    alphas = {term.alpha for term in terms if term.kind == "relax"}
    relaxed = any(coefficient(settings, name) > 0 for name in alphas)
    anchored = ("pl" in kinds and settings.std_anchor != "none") or (
        "relaxpl" in kinds and settings.pl_anchor != "none"
    )
    read = {
        "base": line.base is None,
        "alpha": "alpha" in alphas or ("alpha2" in alphas and settings.alpha2 is None),
        "alpha2": "alpha2" in alphas,
        "beta": "beta" in weights,
        "gamma": "gamma" in weights or ("gamma2" in weights and settings.gamma2 is None),
        "gamma2": "gamma2" in weights,
        "gamma_end": not weights.isdisjoint(("gamma", "gamma2")),
        "eta": "margin" in kinds,
        "relax": any(view.relaxed for view in line.views),
        "residual": relaxed or anchored,
        "residual_gradient": relaxed or anchored,
        "residual_norm": relaxed,
        "reverse": relaxed,
        "pl_anchor": "relaxpl" in kinds,
        "std_anchor": "pl" in kinds,
        "pl_reads": "relaxpl" in kinds or ("pl" in kinds and settings.std_reads is None),
        "std_reads": "pl" in kinds,
        "std_tells": "pl" in kinds,
        "asks": not kinds.isdisjoint(("pl", "compare")),
        "similarity": any(term.constraint for term in terms),
        "pl_reduction": not kinds.isdisjoint(("pl", "relaxpl", "predict", "compare")),
        "temperature": base == "simclr",
        "tau": base == "byol",
    }
    return {name for name, is_read in read.items() if not is_read}


def without_angle(settings: MethodSettings) -> str:
    """The method to take for images that have no up and down: what is asked of two ordinary views is asked still.

    Only how they differ: PL off one view, at such weights, ruins a long run (results/log.md, 06 and 43).
    """
    return "prelax-std" if settings.std_tells == "difference" else "simsiam"


def loss_scale(settings: MethodSettings) -> float:
    """What the printed sum is multiplied by.

    A quarter makes SimSiam's two squared distances its own mean of two negative cosines; a half makes two directions
    of NT-Xent their mean; BYOL's own loss is the sum as printed. Losses of labels and angles alone are not distances.
    """
    if settings.loss_scale is not None:
        return settings.loss_scale
    if settings.name in ("supervised", "rotation"):
        return 1.0
    return {"simsiam": 0.25, "byol": 1.0, "simclr": 0.5}[base_of(settings)]
