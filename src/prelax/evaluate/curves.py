"""What the curves of a run say: collapsed, diverged, waiting for its data, or a residual that ignores its pretext.

Only ``metrics.jsonl``, the settings and the number of images are read. Every finding carries the figure that shows it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from prelax.config import Settings
from prelax.doctor import Finding
from prelax.errors import PrelaxError
from prelax.evaluate.collapse import Lines, collapsed, crowded, values
from prelax.evaluate.remedies import calmer, gamma2, gentler, no_up
from prelax.record import Target, asked_of, differences, differing

WAITING = 0.2  # share of an epoch spent waiting for pixels
SLOWED = 0.6  # of the run's own median speed
IGNORED = 0.97  # of the loss of a guess
EASY = 0.05  # of it: on CIFAR-10 the angle of a residual fell to 0.002-0.02 of a guess, and the features with it
JUMP, JUMPS, BEFORE = 1.2, 3, 5  # a loss so much above the median of so many epochs before it; more than chance
NOTHING = 1e-6  # the loss of a guess where every draw is the same (a preset of whole images): there is nothing to tell
SILENT, DEAD = 0.1, 0.5  # share of a backbone's channels: the best runs of 800 epochs have up to 0.44, bad ones 0.61
DRAWN = 4096  # images whose parameters say how these are drawn
OF_LOSSES = ("collapse", "pretext")  # questions that numbers alone can answer


def diagnose(metrics: Lines, settings: Settings, images: int | None = None) -> list[Finding]:
    """Every question asked of a run's curves, with its answer in words and the figure that shows it.

    Args:
        images: it was trained on, where that is known: a step takes all of them if ``train.batch_size`` is more.
    """
    if not metrics:
        return [Finding(False, "metrics", "no epoch was finished, so there is nothing to judge by")]
    batch = settings.train.batch_size if images is None else min(settings.train.batch_size, images)
    questions: dict[str, Callable[[], Finding | None]] = {
        "divergence": lambda: diverged(metrics, settings),
        "steadiness": lambda: unsteady(metrics, settings),
        "channels": lambda: silent(metrics, settings),
        "collapse": lambda: collapsed(metrics, settings, batch),
        "directions": lambda: crowded(metrics, settings, (images or 0) // max(batch, 1)),
        "speed": lambda: waiting(metrics, settings),
        "pretext": lambda: ignores_pretext(metrics, settings),
        "kNN": lambda: probe_fell(metrics, 100 / tested_on(settings, images)),
    }
    found = [answer(what, question) for what, question in questions.items()]
    mute = any(key.startswith("loss") and lost(value) for key, value in metrics[-1].items())  # the rest comes of that
    return [finding for finding in found if finding is not None and not (mute and finding.what in OF_LOSSES)]


def lost(value: object) -> bool:
    """Whether a loss left the numbers: NaN, or null where it was written to a file."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def answer(what: str, question: Callable[[], Finding | None]) -> Finding | None:
    """What a question finds, or why it cannot be asked: the others still can."""
    try:
        return question()
    except PrelaxError as error:
        return Finding(False, what, f"cannot be judged: {error}")


def diverged(metrics: Lines, settings: Settings) -> Finding:
    """Whether a loss left the numbers, or ended above where it began."""
    for line in metrics:
        for key, value in line.items():
            if key.startswith("loss") and lost(value):
                return Finding(
                    False,
                    "divergence",
                    f"the run diverged: {key} is no number at epoch {line.get('epoch')}; try {calmer(settings)}",
                    {key: None},
                )
    loss = values(metrics, "loss")
    if len(loss) < 2:
        return Finding(True, "divergence", f"one epoch only, loss {loss[0]:.4g}" if loss else "no loss was logged")
    best = min(loss)
    if loss[-1] > loss[0] and loss[-1] > best + 0.5 * abs(best):
        at = loss.index(best) + 1
        return Finding(
            False,
            "divergence",
            f"the run diverged: loss {loss[0]:.4g} at first, {best:.4g} at epoch {at}, {loss[-1]:.4g} at the end; "
            f"try {gentler(settings)} or train.warmup_epochs=10",
            {"loss": loss[0]},
        )
    return Finding(True, "divergence", f"none: loss {loss[0]:.4g} at first, {loss[-1]:.4g} at the end")


def unsteady(metrics: Lines, settings: Settings) -> Finding | None:
    """Whether the loss jumped up again and again, each time undoing epochs of work."""
    loss = values(metrics, "loss")
    jumps: list[int] = []
    last = -BEFORE
    for at in range(BEFORE, len(loss)):
        if loss[at] > JUMP * statistics.median(loss[at - BEFORE : at]) > 0:
            if at - last > 2:
                jumps.append(at + 1)
            last = at
    if len(jumps) < JUMPS:
        return None
    named = ", ".join(map(str, jumps[:4])) + (", …" if len(jumps) > 4 else "")
    return Finding(
        False,
        "steadiness",
        f"the loss jumped by a fifth or more {len(jumps)} times (epochs {named}), undoing some of what was learnt: "
        f"try {gentler(settings)}",
        {"loss": None},
    )


def silent(metrics: Lines, settings: Settings) -> Finding | None:
    """Whether weight decay has put channels of the backbone to sleep."""
    share = values(metrics, "silent_channels")
    if not share or share[-1] < SILENT:
        return None
    found = f"{100 * share[-1]:.0f} % of the backbone's channels vary less than BatchNorm's eps"
    if share[-1] < DEAD:
        return Finding(True, "channels", f"{found}: hundreds of epochs of weight decay do that, to good runs too")
    more = "" if not settings.train.decay_norms else ": try a lower train.weight_decay, or train.decay_norms=false"
    return Finding(
        False, "channels", f"{found}, most of them: dead, or no longer normalised{more}", {"silent_channels": DEAD}
    )


def unlearnt(evals: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    """Whether a run is behind random weights by all that was measured of it."""
    told = [
        (figure - floor, result, figure, floor)
        for result in evals.values()
        for figure, floor in [(result.get("accuracy"), result.get("floor"))]
        if isinstance(figure, int | float) and isinstance(floor, int | float)
    ]
    if not told or max(ahead for ahead, *_ in told) > 0:
        return None
    _, result, figure, floor = max(told, key=lambda found: found[0])
    return Finding(
        False,
        "proof",
        f"not ahead of random weights: {figure:.1f} % by {result.get('protocol')} on {result.get('dataset')}, "
        f"random weights {floor:.1f}; train longer, on more images, or without what changes their meaning "
        "(`prelax augmentations RUN` names it)",
    )


def forgot(evals: Mapping[str, Mapping[str, Any]], settings: Settings) -> Finding | None:
    """Whether the weights a run began with were better than what became of them, by what was measured of both."""
    lost = []
    for result in evals.values():
        figure, start, images = (result.get(key) for key in ("accuracy", "start", "test_images"))
        if isinstance(figure, int | float) and isinstance(start, int | float) and isinstance(images, int) and images:
            chance = 2 * 100 * math.sqrt(start / 100 * (1 - start / 100) / images)
            lost += [(start - figure, result, start, figure)] if start - figure > chance else []
    if not lost:
        return None
    _, result, start, figure = max(lost, key=lambda found: found[0])
    return Finding(
        False,
        "start",
        f"the weights it began with were better: {start:.1f} % by {result.get('protocol')} on {result.get('dataset')}, "
        f"now {figure:.1f}; try {gentler(settings)} or fewer train.epochs, or use them as they are",
    )


def waiting(metrics: Lines, settings: Settings) -> Finding | None:
    """Whether the device waited for pixels, or the run slowed down."""
    wait = values(metrics, "data_wait")
    shards = settings.data.shards is not None  # no store holds them
    remedy = "data.store=device or host, a smaller data.image_size, or more data.workers"
    if shards:
        remedy = "more data.workers, a smaller data.image_size, or shards nearer by, on a quicker disk"
    if wait:
        share = sum(wait) / len(wait)
        if share > WAITING:
            return Finding(
                False,
                "speed",
                f"loader-bound: {100 * share:.0f} % of the time went into waiting for images; try {remedy}",
                {"data_wait": WAITING},
            )
    speed = values(metrics, "images_per_s")[1:]  # the first epoch compiles
    if not speed:
        return None
    middle = sorted(speed)[len(speed) // 2]
    slow = sum(one < SLOWED * middle for one in speed)
    if slow > len(speed) / 10:
        return Finding(
            False,
            "speed",
            f"uneven: {slow} of {len(speed)} epochs ran under {SLOWED:.0%} of the usual {middle:,.0f} images/s; "
            f"something else used this machine, or its disk could not keep up{'' if shards else ' (data.store=host)'}",
            {"images_per_s": SLOWED * middle},
        )
    waited = f", {100 * sum(wait) / len(wait):.0f} % of the time waiting for images" if wait else ""
    return Finding(True, "speed", f"steady: {middle:,.0f} images/s{waited}")


def chance(specs: Sequence[Target], reduction: str, drawn: Mapping[str, float]) -> float:
    """The PL of a head that knows how parameters are drawn and nothing of the residual.

    ``drawn`` has how often a yes-or-no target is a yes, and the variance of a standardised number.

    >>> round(chance([Target("rotation.turns", "categorical", classes=4)], "mean", {}), 4)
    1.3863
    """
    losses = []
    for spec in specs:
        if spec.kind == "categorical":
            losses.append(math.log(spec.classes))
        elif spec.kind == "binary":
            p = min(max(drawn.get(spec.name, 0.5), 1e-9), 1 - 1e-9)
            losses.append(-p * math.log(p) - (1 - p) * math.log(1 - p))
        else:
            losses.append(drawn.get(spec.name, 1.0))  # 1 where it is standardised as it is drawn
    return sum(losses) if reduction == "sum" else sum(losses) / max(len(losses), 1)


def ignores_pretext(metrics: Lines, settings: Settings) -> Finding | None:
    """Whether the residual's heads do better than a guess, or did before the pretext faded."""
    fades, told = settings.method.gamma_end < 1, []
    for key, specs, drawn in _heads(settings):
        losses = values(metrics, key)
        if not losses or not specs:
            continue
        guess = chance(specs, settings.method.pl_reduction, drawn)
        if guess < NOTHING:
            continue
        loss = min(losses) if fades else losses[-1]  # what fades is let go in the end
        told.append((loss / guess, key, loss, guess))
    if not told:
        return None
    lowest = " at its lowest" if fades else ""
    says = {key: f"{key} {loss:.3f}{lowest} (a guess: {guess:.3f})" for _, key, loss, guess in told}
    figures = ", ".join(says.values())
    own = {"loss/pl": "gamma", "loss/rotpl": gamma2(settings)}
    deaf = {key: guess for share, key, _, guess in told if not share < IGNORED}
    if deaf:
        known = ", ".join(said for key, said in says.items() if key not in deaf)
        ignored = ", ".join(says[key] for key in deaf)
        what = f"a part of its pretext, {ignored}, but not {known}" if known else f"its pretext: {ignored}"
        return Finding(
            False,
            "pretext",
            f"{reader(settings, deaf)} ignores {what}; that is usual in the first epochs: train longer; "
            f"if it stays so, try {'' if settings.method.similarity == 'both' else 'method.similarity=both, '}"
            f"a higher {' or '.join(dict.fromkeys(f'method.{own[key]}' for key in deaf))} or train.warmup_epochs=10"
            f"{no_up(settings) if 'loss/rotpl' in deaf else ''}",
            deaf,
        )
    easy = {key: EASY * guess for share, key, _, guess in told if key == "loss/rotpl" and share < EASY}
    if easy and settings.method.pl_anchor != "none":
        return Finding(
            False,
            "pretext",
            f"too easy to teach much: {figures}; an image and its own changed copy differ in ways that need no "
            f"understanding; try method.pl_anchor=none, or a lower method.{own['loss/rotpl']}",
            easy,
        )
    who = reader(settings, [key for _, key, _, _ in told])
    return Finding(True, "pretext", f"{who} knows what was done: {figures}")


def reader(settings: Settings, losses: Collection[str]) -> str:
    """What these pretexts are read off: a residual, or with the anchors set to none the embedding of one view alone."""
    anchors = {"loss/pl": settings.method.std_anchor, "loss/rotpl": settings.method.pl_anchor}
    return "the embedding" if all(anchors[key] == "none" for key in losses) else "the residual"


def _heads(settings: Settings) -> list[tuple[str, Sequence[Target], dict[str, float]]]:
    """The residual's losses with their targets, and how these are drawn: what `chance` asks for."""
    from prelax.draws import Draws
    from prelax.loading import views_of

    channels = settings.data.channels or (1 if settings.data.source == "digits" else 3)
    maker = views_of(settings, channels)
    size = settings.data.image_size or maker.size
    shape = DRAWN, channels, size, size
    relaxed: dict[str, Tensor] = {}
    if maker.relax is not None:
        params = maker.relax.make_params((DRAWN, channels, maker.relaxed_side, maker.relaxed_side), Draws(0, DRAWN))
        relaxed = {f"{maker.relax.name}.{name}": column for name, column in params.items()}
    fixed = {view.fixed for view in maker.views if view.relaxed and view.fixed is not None}
    asked = [
        replace(spec, classes=min(spec.classes, len(fixed))) if fixed and spec.kind == "categorical" else spec
        for spec in maker.relaxed_specs
    ]
    told = asked_of(maker.specs, settings.method.asks)
    one, two = (  # DRAWN views of either kind
        maker.pipelines[n].sample(shape, Draws(n, DRAWN)).targets() if maker.specs else {} for n in (1, 2)
    )
    if settings.method.std_tells == "difference":
        one, told = differences(one, two, maker.specs), differing(told, maker.specs)
    return [
        ("loss/pl", told, drawn_as(told, one)),
        ("loss/rotpl", asked, drawn_as(asked, {s.name: s.value(relaxed[s.name]) for s in asked})),
    ]


def drawn_as(specs: Sequence[Target], targets: Mapping[str, Tensor]) -> dict[str, float]:
    """How often each yes-or-no target is a yes, and how much each number varies."""
    told = {spec: targets[spec.name].double() for spec in specs if spec.kind != "categorical"}
    return {
        spec.name: float(value.mean() if spec.kind == "binary" else value.var(correction=0).clamp_min(1e-9))
        for spec, value in told.items()
    }


def tested_on(settings: Settings, images: int | None) -> float:
    """About how many images a probe is judged by: known of a folder that holds some of its own out."""
    held = settings.data.test_fraction
    if settings.data.source != "folder" or settings.data.test_root is not None or images is None or held == 0.0:
        return math.inf
    return max(1.0, images * held / (1 - held)) if held < 1 else math.inf


def probe_fell(metrics: Lines, one: float = 0.0) -> Finding | None:
    """Whether the kNN probe ended well below its best; ``one`` image more or less is so many points."""
    knn = values(metrics, "knn")
    if not knn:
        return None
    best = max(knn)
    if knn[-1] < best - max(5.0, 3 * one):
        return Finding(
            False,
            "kNN",
            f"fell from {best:.1f} to {knn[-1]:.1f} %: the end of the run undid part of what it learnt",
            {"knn": best},
        )
    return Finding(True, "kNN", f"{knn[0]:.1f} % at first, {knn[-1]:.1f} % at the end, best {best:.1f} %")
