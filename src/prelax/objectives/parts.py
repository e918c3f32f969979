"""What a method is made of: views and weighted terms, refused where they are written if they cannot be computed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import get_args

from torch import nn

from prelax.config import MethodSettings, nearest
from prelax.errors import PrelaxError

# The kinds of terms and how many views each names; of OPEN ones that many or more.
KINDS = {
    "sim": 2,
    "margin": 2,
    "relax": 3,
    "pl": 2,
    "relaxpl": 2,
    "predict": 1,
    "compare": 2,
    "classify": 1,
    "looc": 3,
}
OPEN = ("predict", "looc")
ALL_SMALL = ("sim", "margin", "relax", "pl", "relaxpl")  # they read all small views under the number of the first
BASES = get_args(MethodSettings.model_fields["base"].annotation)
OPTIONAL = {"alpha2": "alpha", "gamma2": "gamma"}  # coefficients that are others' where they are not set
COEFFICIENTS = {*OPTIONAL, *(name for name, field in MethodSettings.model_fields.items() if field.annotation is float)}


def coefficient(settings: MethodSettings, name: str) -> float:
    """A coefficient by its name; those of the relaxed view default to those of the standard one."""
    given = getattr(settings, name)
    return float(given if given is not None else getattr(settings, OPTIONAL[name]))


@dataclass(frozen=True)
class ViewSpec:
    """One view: which draw of the pipeline it shows, and whether the relaxed augmentation is on top of it.

    ``fixed`` gives the relaxed augmentation a value of its k-way target instead of a draw (quarter turns): such views
    are copies of one, and BatchNorm takes them together where they are all the views of a method, or small (alone, a
    copy would have its own turn normalised away).
    ``shares`` names operations whose parameters are view 1's (``relax`` for the relaxed one). ``small``: of
    ``augment.small_size`` pixels, a crop of its own or, where a full view has the same draw, that view made smaller;
    small views come last, and a term that reads the embedding of the first of them reads those of all.
    """

    draw: int
    relaxed: bool = False
    fixed: int | None = None
    shares: tuple[str, ...] = ()
    small: bool = False


@dataclass(frozen=True)
class Term:
    """A weighted term. ``weight`` is a factor times a coefficient of ``MethodSettings`` (or 1)."""

    name: str
    kind: str
    views: tuple[int, ...]
    factor: float = 1.0
    coefficient: str | None = None
    alpha: str = "alpha"
    constraint: bool = False  # the paper's similarity constraint, which `method.similarity=both` doubles

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PrelaxError(f"term {self.name}: no kind {self.kind!r}{nearest(self.kind, KINDS)}")
        least, given = KINDS[self.kind], len(self.views)
        if given < least or (given > least and self.kind not in OPEN):
            more = " or more" if self.kind in OPEN else ""
            raise PrelaxError(f"term {self.name}: {self.kind} names {least}{more} view(s), not {self.views}")
        for name in (self.alpha, self.coefficient):
            if name is not None and name not in COEFFICIENTS:
                raise PrelaxError(f"term {self.name}: no coefficient {name!r}{nearest(name, COEFFICIENTS)}")
        if "." in self.name or hasattr(nn.ModuleDict, self.name):
            raise PrelaxError(f"term {self.name}: torch takes no head of that name; choose another, without dots")

    def weight(self, settings: MethodSettings) -> float:
        return self.factor * (1.0 if self.coefficient is None else coefficient(settings, self.coefficient))


@dataclass(frozen=True)
class Method:
    """A line of the table."""

    line: str
    equation: str
    views: tuple[ViewSpec, ...]
    terms: tuple[Term, ...]
    base: str | None = None  # fixed by the method; None: `method.base`

    def __post_init__(self) -> None:
        if self.base not in (None, *BASES):
            raise PrelaxError(f"no base {self.base!r}{nearest(str(self.base), BASES)}")
        if not self.views or self.views[0].small or self.views[0].shares:
            raise PrelaxError(
                "view 1 is there, of full size, and what it draws is its own: it is not small, nor shares"
            )
        for number, shown in enumerate(self.views, start=1):
            if "relax" in shown.shares and not self.views[0].relaxed:
                raise PrelaxError(f"view {number} shares what relaxed view 1, which is not relaxed")
        for number, (one, next_one) in enumerate(itertools.pairwise(self.views), start=1):
            if one.small and not next_one.small:
                raise PrelaxError(f"view {number} is small and view {number + 1} is not: small views come last")
        first = next((number for number, view in enumerate(self.views, start=1) if view.small), len(self.views))
        for term in self.terms:
            for view in term.views:
                if not 1 <= view <= len(self.views):
                    raise PrelaxError(f"term {term.name} names view {view}; views are 1 to {len(self.views)}")
                if view > first and term.kind in ALL_SMALL:
                    raise PrelaxError(f"term {term.name} names view {view}: all small views are read as view {first}")
            aims = term.views if term.constraint else term.views[1:]  # a constraint goes both ways
            for view in aims if term.kind in ALL_SMALL else ():
                if self.views[view - 1].small:
                    raise PrelaxError(f"term {term.name} is held against view {view}, which is small: use a full one")
            if any(other.name == term.name and other.kind != term.kind for other in self.terms):
                raise PrelaxError(f"terms of two kinds are called {term.name}: give each a name of its own")
            told = {"relaxpl": term.views[:1], "predict": term.views}.get(term.kind, ())
            for view in told:
                if not self.views[view - 1].relaxed:
                    raise PrelaxError(f"term {term.name} asks what relaxed view {view}, which is not relaxed")
