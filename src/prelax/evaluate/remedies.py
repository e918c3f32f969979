"""What to try against what is wrong with a run, of what has not been tried."""

from __future__ import annotations

from collections.abc import Sequence

from prelax.config import Settings
from prelax.objectives import terms_of, without_angle
from prelax.objectives.parts import coefficient


def gentler(settings: Settings) -> str:
    """What makes steps smaller: of Muon's matrices it is not the rate."""
    return "a lower train.turn" if settings.train.optimizer == "muon" else "a lower train.lr"


def calmer(settings: Settings) -> str:
    """What to try against losses that leave the numbers, of what has not been tried."""
    told = [gentler(settings)]
    if settings.train.optimizer == "muon":  # the rest takes steps by the rate
        told.append("a lower train.lr")
    if settings.train.warmup_epochs == 0:
        told.append("train.warmup_epochs=10")
    if settings.method.pl_reduction == "sum":
        told.append("method.pl_reduction=mean")
    return in_words(told)


def in_words(told: Sequence[str]) -> str:
    """A list of things to try, as one would say it.

    >>> in_words(["this", "that", "the other"])
    'this, that or the other'
    """
    return ", ".join(told[:-1]) + " or " + told[-1] if len(told) > 1 else told[0]


def gamma2(settings: Settings) -> str:
    """The setting that weighs what is asked of the relaxed view: gamma, where gamma2 is left to it."""
    return "gamma" if settings.method.gamma2 is None else "gamma2"


def remedies(settings: Settings) -> str:
    """What to try against a collapse, of what has not been tried."""
    asked = settings.method
    terms = [term for term in terms_of(asked) if term.weight(asked)]
    told = [gentler(settings)]
    gammas = {"gamma": "gamma", "gamma2": gamma2(settings)}
    lower = dict.fromkeys(gammas[term.coefficient] for term in terms if term.coefficient in gammas)
    told += [f"a lower method.{name}" for name in lower]
    relaxed = any(term.kind == "relax" and coefficient(asked, term.alpha) > 0 for term in terms)
    if relaxed and asked.residual_gradient in ("full", "detach-anchor"):
        told.append("method.residual_gradient=detach-in-g")
    if any(term.name == "r2s" for term in terms) and 0 < asked.alpha < 1:
        told.append("method.alpha=0")
    if settings.train.warmup_epochs == 0:
        told.append("train.warmup_epochs=10")
    return in_words(told)


def no_up(settings: Settings) -> str:
    """What to try where an angle cannot be told because there is none."""
    if settings.method.relax != "rotation" or settings.method.pl_anchor != "none":
        return ""
    return (
        "; images that have no up and down (from a microscope, from above) have no angle to tell: relax something else "
        f"(`prelax augmentations RUN` names it), or take method.name={without_angle(settings.method)}"
    )
