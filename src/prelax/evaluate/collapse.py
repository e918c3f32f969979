"""Whether the embeddings of a run became one point, one line, or a handful of directions that a pretext fills."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from prelax.config import Settings
from prelax.doctor import Finding
from prelax.evaluate.remedies import in_words, remedies
from prelax.objectives import terms_of

COLLAPSED_STD, COLLAPSED_RANK = 0.05, 1.1  # of unit embeddings times sqrt(d) (1 is healthy); of directions
THIN_STD, THIN_RANK = 0.5, 1.5  # runs have come back from here
UNLEARNT = ("supervised", "rotation")  # methods whose embeddings are not compared
RANKED = 4  # images in a batch, at least, for its rank to say something: it is at most their number less one
# A PL off embeddings: two runs that kept under so many directions after so many steps, for a larger share of their
# epochs, ended well under SimSiam; of the others as long none was there for more than 0.5 % (results/log.md, 06, 41).
CROWDED, SETTLED, LASTING = 10.0, 10_000, 0.05

Lines = Sequence[Mapping[str, Any]]


def values(metrics: Lines, key: str) -> list[float]:
    """A metric by epoch, where it was logged."""
    return [float(line[key]) for line in metrics if isinstance(line.get(key), int | float)]


def collapse_limits(settings: Settings, batch: int) -> dict[str, float]:
    """The metrics that tell a collapse in steps of so many images, and what they fall below.

    Spread alone cannot tell (a last BatchNorm pins it), so the rank is asked as well.
    """
    if settings.method.name in UNLEARNT:
        return {}
    limits = {"embedding_std": COLLAPSED_STD, "effective_rank": COLLAPSED_RANK}
    return {key: low for key, low in limits.items() if key != "effective_rank" or batch >= RANKED}


def collapsed(metrics: Lines, settings: Settings, batch: int) -> Finding | None:
    """Whether the embeddings became one point, or one line."""
    limits = collapse_limits(settings, batch)
    std, rank = (values(metrics, key) if key in limits else [] for key in ("embedding_std", "effective_rank"))
    if not std and not rank:
        return None
    figure = ", ".join(
        part
        for part in (
            f"embedding std {std[-1]:.3f} (1 is healthy)" if std else "",
            f"effective rank {rank[-1]:.1f}" if rank else "",
        )
        if part
    )
    bad_std = bool(std) and not std[-1] > COLLAPSED_STD  # NaN is bad too
    bad_rank = bool(rank) and not rank[-1] > COLLAPSED_RANK
    if bad_std or bad_rank:
        what = "the run collapsed: all images get nearly the same embedding"
        if not bad_std:
            what = "the run collapsed: the embeddings lie on one line"
        return Finding(
            False,
            "collapse",
            f"{what} ({figure}); try {remedies(settings)}",
            {key: limit for key, limit in limits.items() if values(metrics, key)},
        )
    thin = {"embedding_std": THIN_STD} if std and std[-1] < THIN_STD else {}
    if rank and rank[-1] < THIN_RANK:
        thin["effective_rank"] = THIN_RANK
    if thin:
        what = "crowd together" if "embedding_std" in thin else "lie near one line"
        return Finding(False, "collapse", f"close to collapse: the embeddings {what} ({figure})", thin)
    return Finding(True, "collapse", f"none: {figure}")


def crowded(metrics: Lines, settings: Settings, steps: int) -> Finding | None:
    """Whether the embeddings kept to few directions long after the start, where PL is read off them.

    Args:
        steps: of an epoch; 0 where they are not known, and then nothing is found.
    """
    asked, rank = settings.method, [line for line in metrics if isinstance(line.get("effective_rank"), int | float)]
    fills = any(term.kind == "pl" and term.weight(asked) for term in terms_of(asked))
    if not fills or (asked.std_reads or asked.pl_reads) == "backbone" or settings.model.projector_dim < 4 * CROWDED:
        return None
    few = [line for line in rank if line["epoch"] * steps >= SETTLED and line["effective_rank"] < CROWDED]
    if len(few) <= LASTING * settings.train.epochs:
        return None
    about = statistics.median(line["effective_rank"] for line in few)
    told = ["a lower method.gamma", "method.std_reads=backbone"]
    if settings.train.optimizer != "muon":
        told.append("train.optimizer=muon")
    return Finding(
        False,
        "directions",
        f"embeddings of about {about:.0f} directions (from epoch {few[0]['epoch']} to {few[-1]['epoch']}), "
        f"hardly more than PL asks for, which leaves the images little room; try {in_words(told)}",
        {"effective_rank": CROWDED},
    )
