"""A reproduced table as it is printed, and the files it is kept in."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prelax.config import overrides
from prelax.errors import PrelaxError
from prelax.whole import write_whole, writing


def shown(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a result as they are printed."""
    several = any(row["std"] is not None for row in result["rows"])
    with_columns = any(row["column"] for row in result["rows"])
    with_knn = any(row["knn"] is not None for row in result["rows"])
    elsewhere = any(row["trained_on"] != row["recipe_data"] for row in result["rows"])
    rows = []
    for row in result["rows"]:
        cells: dict[str, Any] = {"method": row["label"]}
        if with_columns:
            cells["column"] = row["column"]
        if elsewhere:
            cells["trained on"] = row["trained_on"]
        cells["measured by"] = row["protocol"] if row["figure"] == "accuracy" else row["figure"]
        short = row["epochs"] != row["recipe_epochs"]
        cells["epochs"] = f"{row['epochs']} of {row['recipe_epochs']}" if short else str(row["epochs"])
        ours = "failed" if row["ours"] is None else f"{row['ours']:.2f}"
        cells["ours"] = ours + (f" ± {row['std']:.2f}" if several and row["std"] is not None else "")
        cells["paper"] = "–" if row["paper"] is None else f"{row['paper']:g}"
        cells["difference"] = "–" if row["difference"] is None else f"{row['difference']:+.2f}"
        if with_knn:
            cells["kNN"] = "–" if row["knn"] is None else f"{row['knn']:.2f}"
        rows.append(cells)
    return rows


def as_markdown(result: Mapping[str, Any]) -> str:
    """The table as Markdown, with the command that made it."""
    rows = shown(result)
    heads = list(rows[0])
    only = ["--only", result["only"]] if result["only"] else []
    seeds = ",".join(map(str, result["seeds"]))
    command = shlex.join(["prelax", "reproduce", result["table"], *result["changes"], "--seeds", seeds, *only])
    if result["detection"]:
        command += " --coco ROOT" + "".join(f" --detect {pair}" for pair in result["detection_changes"])
    text = [f"# {result['title']}", "", f"`{command}`", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    text += [f"| {' | '.join(str(row[head]) for head in heads)} |" for row in rows]
    failed = [row for row in result["rows"] if row["failure"]]
    text += ["", *(f"- {row['label']} {row['column']}: {row['failure']}".replace("  ", " ") for row in failed)]
    return "\n".join(text).rstrip() + "\n"


def write(stem: Path, result: Mapping[str, Any]) -> None:
    with writing(stem):
        for suffix, text in (("json", json.dumps(result, indent=1) + "\n"), ("md", as_markdown(result))):
            write_whole(stem.with_name(f"{stem.name}.{suffix}"), text)


def stem_of(out: Path, result: Mapping[str, Any]) -> Path:
    """What a table's files are called: by its name, with a number where that is of another pass over the table.

    A quick pass, some rows of it or other seeds do not take the place of the whole table, nor the other way round.
    """
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        stem = out / (result["table"] if number == 1 else f"{result['table']}-{number}")
        file = stem.with_name(f"{stem.name}.json")
        if not file.exists():
            return stem
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, PrelaxError):
            if measures(json.loads(file.read_text(encoding="utf-8"))) == measures(result):
                return stem
    raise AssertionError


def measures(result: Mapping[str, Any]) -> Any:
    """What a table is of: its runs, whose names go by their settings, and how they were measured."""
    runs = [[Path(folder).name for folder in row["runs"]] for row in result["rows"]]
    return runs, overrides(result["changes"]).get("evaluate"), result["detection_changes"]
