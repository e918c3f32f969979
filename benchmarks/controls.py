"""Methods that are asked only to tell what of Prelax-turns helps: name them as ``method.name=controls:CROPS``.

UPRIGHT and CROPS have Prelax-turns' similarity terms and no angle. What is left is learning from more and smaller
views, as SwAV's multi-crop does (Caron et al. 2020). TURNED has both: four crops, each turned as it is drawn.
"""

from prelax.objectives import Method, ViewSpec
from prelax.objectives.methods import ONE, PL, R2S, R3S, ROTPL, SIM, TWO, half

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
TURNED = Method(
    "four small crops of their own, each turned, beside the two views; each has to tell its angle",
    "(R2S(1>2) + mean_k R3S(3k>2))/2 + gamma/2 PL(r12; t1) + gamma/2 mean_k RotPL(r_3k1; a_k) + beta sim(2>1)",
    (ONE, TWO, *(ViewSpec(draw, relaxed=True, small=True) for draw in range(3, 7))),
    (*TERMS, half(PL), half(ROTPL)),
)
