"""The image files under a folder, their labels, and which of them are held out."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from prelax.data.decode import EXTENSIONS, reason
from prelax.errors import PrelaxError, printable

PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "name", "id")  # what a table may
CLASSES = ("label", "class", "target", "category")  # call its columns
NAMES = ("name", "id")  # of these, what may as well be called so of what is to be seen
# How files begin that are no text, and what reads those of them that are tables.
TABLES = {
    b"PAR1": "read_parquet",
    b"ARRO": "read_feather",
    b"PK\x03\x04": "read_excel",
    b"\xd0\xcf\x11\xe0": "read_excel",
    b"\x93NUM": "",
}
# What tells a run folder, or decoded pixels that were kept, where one lies among the images.
OURS = ({"config.yaml", "metrics.jsonl"}, {"index.json", "pixels.npy"})


@dataclass
class Listing:
    """Files under a root, sorted by name (relative, with forward slashes), with size and time of each (N x 2)."""

    root: Path
    names: list[str] = field(default_factory=list)
    stats: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    skipped: list[tuple[str, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def pick(self, rows: list[int]) -> Listing:
        return Listing(self.root, [self.names[i] for i in rows], self.stats[rows], self.skipped, self.others)

    def path(self, row: int) -> str:
        return f"{self.root}/{self.names[row]}"

    def paths(self) -> list[str]:
        prefix = f"{self.root}/"
        return [prefix + name for name in self.names]


def scan(root: Path) -> Listing:
    """Every image file under a folder, by extension; hidden files and folders of our own are left out.

    Links to folders are followed, each folder once, after the real ones: a loop of links ends.
    """
    listing = Listing(root)
    names: list[str] = []
    stats = array("q")  # not a tuple a file: a million of them would cost seconds of garbage collection
    status = os.stat(root)
    seen = {(status.st_dev, status.st_ino)}
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        if not folders:
            folders, links = _new_folders(root, sorted(links, reverse=True), seen), []
            continue
        prefix = folders.pop()
        try:
            entries = list(os.scandir(f"{root}/{prefix}"))
        except OSError as error:
            listing.skipped.append((printable(f"{root}/{prefix}"), reason(error)))
            continue
        there = {entry.name for entry in entries}
        if any(there >= files for files in OURS):
            continue
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            dot = name.rfind(".")
            image = dot > 0 and name[dot:].lower() in EXTENSIONS
            try:
                if entry.is_dir():
                    status = entry.stat()
                    if entry.is_symlink():
                        links.append(f"{prefix}{name}/")
                    elif (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        folders.append(f"{prefix}{name}/")
                elif image:
                    status = entry.stat()
                    names.append(prefix + name)
                    stats.append(status.st_size)
                    stats.append(status.st_mtime_ns)
                else:
                    listing.others[name[dot:].lower() if dot > 0 else "no extension"] += 1
            except OSError as error:
                if image:
                    listing.skipped.append((printable(f"{root}/{prefix}{name}"), reason(error)))
    rows = sorted(range(len(names)), key=names.__getitem__)
    listing.names = [names[row] for row in rows]
    listing.stats = np.frombuffer(stats, np.int64).reshape(-1, 2)[rows]
    return listing


def ours(folder: Path) -> bool:
    """Whether a folder is a run's, or one of decoded pixels: what lies in it is not read as images."""
    return any(all((folder / name).exists() for name in files) for files in OURS)


def _new_folders(root: Path, links: list[str], seen: set[tuple[int, int]]) -> list[str]:
    """The links that lead to folders not yet read."""
    new = []
    for link in links:
        status = os.stat(f"{root}/{link}")
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            new.append(link)
    return new


def held_out(names: list[str], fraction: float) -> list[bool]:
    """Which files are test images when nobody said: by a hash of the name, so that new files move no old one.

    At least one file stays for training, and one is held out where there are two.
    """
    if fraction == 0.0 or len(names) < 2:
        return [False] * len(names)
    ranks = [hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names]
    bound = int(fraction * 2**64).to_bytes(9, "big")[1:] if fraction < 1 else b"\xff" * 8
    test = [rank < bound for rank in ranks]
    if not any(test):
        test[ranks.index(min(ranks))] = True
    elif all(test):
        test[ranks.index(max(ranks))] = False
    return test


def folder_labels(names: list[str]) -> list[str | None]:
    """The class of each file: its first sub-folder; None for a file that is in none."""
    return [name.partition("/")[0] if "/" in name else None for name in names]


def read_labels(path: Path) -> dict[str, str]:
    """A CSV of path,label (comma, semicolon or tab; a header line is fine) as a mapping; -1 is no label.

    Of more columns those are taken that a header calls so; of two it need name one, and they may stand in any order.
    """
    try:
        with path.open("rb") as file:
            refuse_other(path, file.read(4))
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PrelaxError(
            f"data.labels: {path} is not UTF-8: save it as such (in a spreadsheet: 'CSV UTF-8') and try again"
        ) from None
    except OSError as error:
        raise PrelaxError(f"data.labels: {path} cannot be read: {reason(error)}") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    labels: dict[str, str] = {}
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    columns: tuple[int, int] | None = None
    named = False
    while (row := _row(rows, path)) is not None:
        number, fields = rows.line_num, [field.strip() for field in row]
        if not any(fields):
            continue
        if columns is None:
            found = _columns(fields, path)
            columns, named = found or (0, 1), found is not None
            if named:
                continue
        if max(columns) >= len(fields):
            raise PrelaxError(f"data.labels: line {number} of {path} has no label; each line is path,label")
        if not named and any(fields[2:]):
            raise PrelaxError(
                f"data.labels: line {number} of {path} has {len(fields)} columns; keep those of path and label, or "
                "call them so in its first line"
            )
        name, label = fields[columns[0]].removeprefix("./"), fields[columns[1]]
        if labels.setdefault(name, label) != label:
            raise PrelaxError(
                f"data.labels: line {number} of {path} calls {printable(name)} {label!r}, and a line before it "
                f"{labels[name]!r}: leave one of them"
            )
    return {name: label if label != "-1" else "" for name, label in labels.items()}


def _row(rows: Any, path: Path) -> list[str] | None:
    """The next line of a table; None at its end."""
    try:
        return next(rows, None)
    except csv.Error as error:
        raise PrelaxError(f"data.labels: line {rows.line_num} of {path} cannot be read: {error}") from None


def refuse_other(path: Path, head: bytes) -> None:
    """Refuses a table that is no text, with what makes a CSV of it."""
    if head not in TABLES:
        return
    reader = "" if path.suffix.lower() in (".npz", ".zip") else TABLES[head]
    made = f"pd.{reader}({path.name!r}).to_csv({path.with_suffix('.csv').name!r}, index=False)"
    how = f"make one with pandas: {made}" if reader else "write a line path,label for each image"
    how += "; or save it from the spreadsheet as 'CSV UTF-8'" if reader == "read_excel" else ""
    raise PrelaxError(f"data.labels: {path} is no CSV, which a table of labels has to be: {how}")


def _columns(header: list[str], path: Path) -> tuple[int, int] | None:
    """Which columns a first line calls path and label; None where it is no header.

    >>> _columns(["filename", "width", "Label"], Path("a.csv")), _columns(["0.png", "cat"], Path("a.csv"))
    ((0, 2), None)
    >>> _columns(["species", "filename"], Path("a.csv"))
    (1, 0)
    """
    low = [field.lower() for field in header]
    name, label = (next((low.index(one) for one in names if one in low), None) for names in (PATHS, CLASSES))
    if name is not None and label is not None:
        return name, label
    named = [place for place, field in enumerate(low) if field]  # pandas has an index without a name
    neither = name is None and label is None
    if neither or len(named) < 2 or any(Path(field).suffix in EXTENSIONS for field in low):
        return None
    if len(named) == 2:
        first, second = named
        if name is None:  # photo,label may as well be the first image's line
            return (second, first) if label == first else (first, second) if len(header) > 2 else None
        turned = name == second and low[second] not in NAMES and low[first] not in PATHS
        return (second, first) if turned else (first, second)
    what, (called, *more) = ("paths", PATHS) if name is None else ("labels", CLASSES)
    columns = ", ".join(printable(header[place]) for place in named[:12]) + (", ..." if named[12:] else "")
    raise PrelaxError(
        f"data.labels: no column of {path} is called {called} ({', '.join(more[:-1])} or {more[-1]} will do): "
        f"rename the one with the {what}; its columns are {columns}"
    )


def csv_labels(
    listing: Listing,
    root: Path,
    table: Mapping[str, str],
    others: Sequence[str] = (),
    used: set[str] | None = None,
    bare: bool = True,
) -> list[str | None]:
    """The label of each file from a table keyed by path (under ``root``, under the listing, whole) or unique name.

    Args:
        others: names in another tree of the set; what is called so there too is told by its path under ``root`` alone.
        used: takes the lines of the table that name a file.
        bare: whether a file may be called by its name without its folders.
    """
    try:
        beneath = listing.root.relative_to(root).as_posix()
        prefix = [""] if beneath == "." else [f"{beneath}/"]
    except ValueError:  # a tree elsewhere: nothing in it has a path under the root
        prefix = []
    times = Counter(name.rpartition("/")[2] for name in (*listing.names, *others))
    twice = set(others)
    parts = listing.root.parts  # the folder as one may have typed it: /a/photos, a/photos or photos
    ends = [str(listing.root), *("/".join(parts[-depth:]) for depth in range(1, len(parts)))]
    found: list[str | None] = []
    for name in listing.names:
        last = name.rpartition("/")[2]
        keys = [f"{start}{name}" for start in (*prefix, *(f"{end}/" for end in ends))]
        keys += [name] if name not in twice else []
        keys += [last] if bare and times[last] == 1 else []
        key = next((key for key in keys if key in table), None)
        if used is not None and key is not None:
            used.add(key)
        found.append(table[key] or None if key is not None else None)
    return found


def readings(table: Mapping[str, str], names: Sequence[str]) -> Iterator[tuple[dict[str, str], bool]]:
    """Other ways to read a table of which no line names an image, the surest first: what stands for which line.

    Without the folders that all of its lines begin with (of another machine), one more each time; then also with the
    extension that all images of a name have. Never by the end of a path alone: folders number their images alike, and
    ``second/001.jpg`` is not ``first/001.jpg``. With each comes whether an image may be called by its bare name, which
    is so where no folder was taken away.

    >>> [dict(keys) for keys, _ in readings({"C:/x/1.jpg": "cat"}, ["1.jpg"])][:3]
    [{'C:/x/1.jpg': 'C:/x/1.jpg'}, {'x/1.jpg': 'C:/x/1.jpg'}, {'1.jpg': 'C:/x/1.jpg'}]
    """
    parts = {key: key.replace("\\", "/").split("/") for key in table}
    first, *rest = parts
    if len(parts[first]) == 1 and all(len(parts[key]) > 1 for key in rest):  # a header nobody knows
        parts = {key: parts[key] for key in rest or parts}
    folders = [path[:-1] for path in parts.values()]
    ends = zip(min(folders), max(folders), strict=False)  # what these two begin with, all begin with
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    endings: dict[str, set[str]] = {}
    for name in names:
        stem, dot, kind = name.rpartition("/")[2].rpartition(".")
        endings.setdefault(stem, set()).add(dot + kind)

    def ending(name: str) -> str:
        known = endings.get(name, set())
        return next(iter(known)) if len(known) == 1 and Path(name).suffix.lower() not in EXTENSIONS else ""

    for extended in (False, True):
        for depth in range(shared + 1):
            found: dict[str, str] = {}
            for key, path in parts.items():
                found.setdefault("/".join(path[depth:]) + (ending(path[-1]) if extended else ""), key)
            yield found, depth == 0


def class_names(labels: list[str | None]) -> list[str]:
    """The distinct labels, in number order when all are numbers, else in name order."""
    names = {label for label in labels if label is not None}
    # 1 and 01 are two names of one number: in an order of their own, that of a set changes from process to process.
    numbers = all(name.isdecimal() and len(name) < 1000 for name in names)
    return sorted(sorted(names), key=int) if numbers else sorted(names)
