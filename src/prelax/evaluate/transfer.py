"""Transfer (Tab. 2b): backbones of some datasets judged by the labels of others, as a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from prelax.config import DataSettings
from prelax.evaluate.protocols import evaluate
from prelax.run import Run


def transfer(
    runs: Sequence[Run],
    targets: Sequence[DataSettings] | Callable[[Run], Sequence[DataSettings]],
    protocol: str = "linear-fast",
    device: torch.device | str = "auto",
    seed: int = 0,
) -> dict[str, Any]:
    """Every run's accuracy on every target: rows are runs, columns datasets; each cell is written to its run folder.

    A target that is a run's own dataset is the in-domain figure.

    Args:
        targets: the datasets, or what gives them as a run reads them (its channels, its size).
    """
    columns = [targets(run) if callable(targets) else targets for run in runs]
    cells = [
        [evaluate(run, [protocol], on=target, device=device, seed=seed)[0] for target in mine]
        for run, mine in zip(runs, columns, strict=True)
    ]
    return {
        "protocol": protocol,
        "runs": [run.name for run in runs],
        "sources": [run.settings.data.label for run in runs],
        "targets": tell_apart([(cell["dataset"], cell.get("root")) for cell in cells[0]]) if cells else [],
        "accuracy": [[cell["accuracy"] for cell in row] for row in cells],  # runs x targets
        "std": [[cell["std"] for cell in row] for row in cells],
        "floor": [[cell["floor"] for cell in row] for row in cells],
    }


def tell_apart(datasets: Sequence[tuple[str, str | None]]) -> list[str]:
    """Names of datasets, folders that are called the same with as much of their path as tells them apart.

    >>> tell_apart([("cifar10", None), ("photos", "/a/x/photos"), ("photos", "/b/x/photos"), ("scans", "/c/scans")])
    ['cifar10', 'a/x/photos', 'b/x/photos', 'scans']
    """
    told = iter(tails([Path(root) for _, root in datasets if root is not None]))
    return [name if root is None else next(told) for name, root in datasets]


def tails(paths: Sequence[Path]) -> list[str]:
    """Of every path as much, from its end, as tells it from the others.

    >>> tails([Path("/x/a/prelax"), Path("/x/b/prelax"), Path("/x/simsiam")])
    ['a/prelax', 'b/prelax', 'simsiam']
    """
    found = []
    for own in (path.parts for path in paths):
        others = [path.parts for path in paths if path.parts != own]
        length = 1
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        found.append("/".join(own[-length:]))
    return found


def as_table(matrix: dict[str, Any]) -> str:
    """The matrix as Markdown, the floor in brackets.

    >>> print(as_table({"runs": ["a"], "sources": ["x"], "targets": ["y"], "accuracy": [[9.12]], "floor": [[5.0]]}))
    | run (trained on) | y |
    |---|---|
    | a (x) | 9.1 (5.0) |
    """
    head = f"| run (trained on) | {' | '.join(matrix['targets'])} |"
    lines = [head, "|---" * (len(matrix["targets"]) + 1) + "|"]
    for name, source, row, floors in zip(
        matrix["runs"], matrix["sources"], matrix["accuracy"], matrix["floor"], strict=True
    ):
        cells = " | ".join(f"{value:.1f} ({floor:.1f})" for value, floor in zip(row, floors, strict=True))
        lines.append(f"| {name} ({source}) | {cells} |")
    return "\n".join(lines)
