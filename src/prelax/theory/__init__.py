"""The paper's theorems, computed exactly on finite joint distributions p(x, t, s_v, s_a)."""

from prelax.theory.examples import FAMILIES, noisy_copy, random_joint, six_and_nine, worked_example
from prelax.theory.figure import draw
from prelax.theory.joint import (
    Joint,
    bayes_error,
    conditional_mutual_information,
    entropy,
    interaction_information,
    minimal_sufficient,
    mutual_information,
)
from prelax.theory.show import check, run_theory, survey, tell
from prelax.theory.theorems import Learned, Theorem1, Theorem2, theorem_1, theorem_2

__all__ = [
    "FAMILIES",
    "Joint",
    "Learned",
    "Theorem1",
    "Theorem2",
    "bayes_error",
    "check",
    "conditional_mutual_information",
    "draw",
    "entropy",
    "interaction_information",
    "minimal_sufficient",
    "mutual_information",
    "noisy_copy",
    "random_joint",
    "run_theory",
    "six_and_nine",
    "survey",
    "tell",
    "theorem_1",
    "theorem_2",
    "worked_example",
]
