"""Terms (sim, r2s, margin, nt-xent, PL) and the methods made of them."""

from prelax.objectives.methods import METHODS, base_of, loss_scale, method, terms_of, unread, weighed, without_angle
from prelax.objectives.parts import Method, Term, ViewSpec
from prelax.objectives.pretext import PretextLoss
from prelax.objectives.terms import distance, looc, margin, nt_xent, r2s, sim

__all__ = [
    "METHODS",
    "Method",
    "PretextLoss",
    "Term",
    "ViewSpec",
    "base_of",
    "distance",
    "looc",
    "loss_scale",
    "margin",
    "method",
    "nt_xent",
    "r2s",
    "sim",
    "terms_of",
    "unread",
    "weighed",
    "without_angle",
]
