"""Methods that are asked only to tell what of Prelax-turns helps: name them as ``method.name=controls:CROPS``.

UPRIGHT and CROPS have Prelax-turns' similarity terms and no angle. What is left is learning from more and smaller
views, as SwAV's multi-crop does (Caron et al. 2020). TURNED has both.
"""

from prelax.objectives import METHODS, Method, ViewSpec
from prelax.objectives.methods import ONE, R2S, R3S, SIM, TWO, half

TERMS = (half(R2S), half(R3S), SIM)

UPRIGHT = Method(
    "control: view 1 made smaller, upright, beside the two views",
    "(R2S(1>2) + R3S(3>2))/2 + beta sim(2>1)",
    (ONE, TWO, ViewSpec(1, small=True)),
    TERMS,
)
CROPS = Method(
    "control: four small upright crops of their own beside the two views",
    "(R2S(1>2) + mean_k R3S(3k>2))/2 + beta sim(2>1)",
    (ONE, TWO, *(ViewSpec(draw, small=True) for draw in range(3, 7))),
    TERMS,
)
TURNED = METHODS["prelax-crops"]  # the name that its first runs have it by
