"""What ``prelax theory`` shows: the worked example, the counterexamples, and a count over random distributions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from prelax.errors import PrelaxError
from prelax.theory.examples import FAMILIES, noisy_copy, random_joint, six_and_nine, worked_example
from prelax.theory.figure import draw
from prelax.theory.joint import Joint
from prelax.theory.theorems import SELF_SUPERVISED, theorem_1, theorem_2

CLAIMS = {
    "theorem 1": "theorem 1 as stated",
    "gap equality": "I(Z;T) = I(X;T) − I(X;T|S), the proof's equality",
    "gap bound": "I(Z;T) ≥ I(X;T) − I(X;T|S)",
    "error bound": "theorem 2, each error below its bound u^e",
    "bound order": "theorem 2, the order of the bounds u^e",
    "error order": "the same order of the Bayes errors themselves",
    "H(Z|S) = 0": "H(Z|S) = 0, the paper's assumption",
    "S ⊥ T | X": "I(S;T|X) = 0, signals and task independent given x",
}

HEADS = {
    "I(Z;T)": "information",
    "gap": "gap",
    "I(X;T|S)": "left",
    "I(Z;T|S)": "overlap",
    "I(X;S|T,Z)": "synergy",
    "H(Z|S)": "spread",
    "P^e": "errors",
    "u^e": "bounds",
}


def check(joint: Joint) -> dict[str, bool]:
    """Which of CLAIMS hold on a joint.

    >>> [claim for claim, holds in check(six_and_nine()).items() if not holds]
    ['gap equality', 'bound order', 'S ⊥ T | X']
    """
    one, two = theorem_1(joint), theorem_2(joint)
    return {
        "theorem 1": one.holds,
        "gap equality": one.gaps_exact,
        "gap bound": one.gaps_bounded,
        "error bound": two.bounded,
        "bound order": two.bounds_ordered,
        "error order": two.errors_ordered,
        "H(Z|S) = 0": one.assumption,
        "S ⊥ T | X": one.independent,
    }


def survey(seed: int = 0, joints: int = 100) -> dict[str, dict[str, int]]:
    """How many of some random joints of each family satisfy each of CLAIMS.

    >>> survey(joints=3)["structured"]["theorem 1"]
    3
    """
    if joints < 1:
        raise PrelaxError(f"survey needs at least one joint of each family, got {joints}")
    counts = {family: dict.fromkeys(CLAIMS, 0) for family in FAMILIES}
    for family, count in counts.items():
        for i in range(joints):
            for claim, holds in check(random_joint(family, seed=seed * joints + i)).items():
                count[claim] += holds
    return counts


def run_theory(out: str | Path | None = None, seed: int = 0, joints: int = 100) -> dict[str, Any]:
    """Everything ``prelax theory`` reports, as numbers, text and lists; draws theory.png and theory.svg in out."""
    examples = {
        "worked_example": worked_example(),
        "blurred_example": worked_example(blur=0.25),
        "six_and_nine": six_and_nine(),
        "noisy_copy": noisy_copy(),
    }
    results: dict[str, Any] = {
        name: {
            "theorem_1": asdict(theorem_1(joint)),
            "theorem_2": asdict(theorem_2(joint)),
            "claims": check(joint),
        }
        for name, joint in examples.items()
    }
    results["survey"] = {"seed": seed, "joints": joints, "holds": survey(seed, joints)}
    results["figures"] = []
    if out is not None:
        results["figures"] = [str(draw(examples["worked_example"], Path(out) / f"theory.{s}")) for s in ("png", "svg")]
    return results


def tell(results: dict[str, Any]) -> str:
    """The results of ``run_theory`` as a page of text."""
    titles = {
        "worked_example": "Worked example: 16 images, 9 classes; views keep the shape, the rotation tells the way up",
        "blurred_example": "The same, with a view that shows a random shape one time in four",
        "six_and_nine": "Counterexample: a six turned upside down is a nine",
        "noisy_copy": "Counterexample: a view that is the task, flipped one time in four",
    }
    lines: list[str] = []
    for name, title in titles.items():
        one, two = results[name]["theorem_1"], results[name]["theorem_2"]
        lines += [title, f"  I(X;T) = {one['task']:.4f} nats, K = {two['classes']}", ""]
        lines.append(" " * 10 + "".join(f"{head:>12}" for head in HEADS))
        for method in ("sup", *SELF_SUPERVISED):
            z = one["learned"][method]
            row = [z[key] for key in HEADS.values() if key in z]
            row += [two["errors"][method], two["bounds"][method]]
            lines.append(f"  {method:8}" + "".join(f"{round(value, 4) + 0.0:12.4f}" for value in row))
        lines += [
            "",
            *(f"  {'holds' if ok else 'FAILS':6} {CLAIMS[c]}" for c, ok in results[name]["claims"].items()),
            "",
        ]
    held, joints = results["survey"]["holds"], results["survey"]["joints"]
    lines.append(
        f"Random distributions on which each holds, of {joints} in each family (seed {results['survey']['seed']})"
    )
    lines.append("  " + "".join(f"{family:>12}" for family in held) + "   claim")
    lines += ["  " + "".join(f"{held[f][claim]:12}" for f in held) + f"   {text}" for claim, text in CLAIMS.items()]
    lines += ["", *(f"{family}: {text}" for family, text in FAMILIES.items())]
    lines += [f"drawn in {figure}" for figure in results["figures"]]
    return "\n".join(lines)
