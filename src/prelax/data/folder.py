"""Any tree of images as a set: with class sub-folders, with a CSV of labels, or with no labels at all."""

from __future__ import annotations

import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from prelax.config import DataSettings
from prelax.data.cache import cache_folder, cached, digest
from prelax.data.decode import EXTENSIONS, Look, Plan, Source, extent, look
from prelax.data.images import ImageSet, limited, numbered
from prelax.data.listing import (
    Listing,
    class_names,
    csv_labels,
    folder_labels,
    held_out,
    ours,
    read_labels,
    readings,
    scan,
)
from prelax.data.memory import gigabytes
from prelax.data.pool import decode_all
from prelax.data.ranges import as_text, ranges
from prelax.errors import PrelaxError, PrelaxWarning, printable, readable

SIDES = (32, 64, 96, 128, 160, 256)  # 256 leaves room for crops of 224
SAMPLE = 512  # files looked at to choose the size and channels of a set
READ = 256  # of these, files read whole to choose a range
BRIGHT = 64  # the greatest of floats from which on they are taken for 0 to 255
TEST_NAMES = ("test", "val", "valid", "validation")
# Pictures that are not read: of phones, cameras, microscopes, scanners and clinics.
PICTURES = {".heic", ".heif", ".jxl", ".nef", ".cr2", ".cr3", ".arw", ".dng", ".raf", ".orf", ".rw2"}
PICTURES |= {".czi", ".nd2", ".lif", ".lsm", ".vsi", ".svs", ".ndpi", ".mrxs", ".dcm", ".psd", ".svg", ".pdf"}

Progress = Callable[[int, int], None]


class NothingHeldOut(PrelaxError):
    """Of these images none is a test image."""


@dataclass(frozen=True)
class Layout:
    """What a known data set fixes that a plain folder leaves open.

    Args:
        image_size: the side when the settings name none; None to choose it from the files.
        titles: readable names of class folders.
        test_labels: the class of test files (relative name) where the test tree has no class folders.
    """

    image_size: int | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    test_labels: Mapping[str, str] = field(default_factory=dict)


def choose_image_size(sides: list[int]) -> int:
    """The side images are decoded to when nobody said, from the shorter sides of a sample.

    The largest of 32, 64, 96, 128, 160 and 256 that enlarges the median image by no more than a tenth, so hardly
    anything is made up and the cache stays small.

    >>> choose_image_size([28] * 9), choose_image_size([160, 170, 150]), choose_image_size([375, 500, 480])
    (32, 160, 256)
    """
    median = statistics.median(sides)
    return max((side for side in SIDES if side <= 1.1 * median), default=SIDES[0])


def _range(extents: list[tuple[float, float]], kind: str) -> tuple[float, float]:
    """The (low, high) that become 0 and 255, the same for every image of a set so that brightness stays comparable."""
    low, high = min(e[0] for e in extents), max(e[1] for e in extents)
    if kind == "f" and low >= 0 and high <= 1:
        return 0.0, 1.0
    if kind == "f" and low >= 0 and BRIGHT <= high <= 255:  # 8 bits, written as floats
        return 0.0, 255.0
    if kind == "f" or low < 0:
        return low, high if high > low else low + 1
    # Cameras put 10, 12 or 14 bits into 16; dividing those by 257 would leave a black image.
    bits = next((bits for bits in (8, 10, 12, 14, 16, 32) if high < 2**bits), 64)  # the last of 64 bits rounds to 2**64
    return 0.0, float(2**bits - 1)


def drawn(count: int, most: int) -> list[int]:
    """Positions below ``count``, at most so many: a draw, since files are often named in turns (of four channels)."""
    return sorted(np.random.default_rng(0).permutation(count)[:most].tolist())


def survey(
    sources: Callable[[int], Source], count: int, side: int | None, channels: int | None, levels: str | None = None
) -> tuple[Plan, list[str], str | None]:
    """How the images of a set are brought to one shape, from a sample of them; lines that say so, and ``data.range``.

    Args:
        sources: the path or the contents of the file at a position below ``count``.
        side, channels, levels: what the settings fix; None to choose.
    """
    rows = drawn(count, SAMPLE)
    looks: dict[int, Look] = {row: seen for row in rows if (seen := look(sources(row), channels))}
    if not looks:  # a bad patch; any readable file will do
        first = next(((row, seen) for row in range(count) if (seen := look(sources(row), channels))), None)
        looks = dict([first]) if first else {}
    notes: list[str] = []
    if side is None:
        sides = [min(seen.height, seen.width) for seen in looks.values()] or [SIDES[0]]
        side = choose_image_size(sides)
        notes.append(f"images are decoded to {side} px: the median shorter side is {statistics.median(sides):g} px")
    if channels is None:
        counts = Counter(seen.channels for seen in looks.values())
        channels = max(counts, key=lambda c: (counts[c], c), default=3)
        if len(counts) > 1:
            share = ", ".join(f"{n:,} {'has' if n == 1 else 'have'} {c}" for c, n in counts.most_common())
            notes.append(
                f"images have {channels} channels, as most: of {sum(counts.values()):,} sampled files {share}; others "
                "are converted"
            )
    found = ranges(levels or "")
    for kind, words in (("i", "integer pixels of more than 8 bits"), ("f", "floating-point pixels")):
        wide = [row for row, seen in looks.items() if seen.kind == kind]
        chosen = ""
        if wide and kind not in found:
            read = [wide[i] for i in drawn(len(wide), READ)]
            extents = [e for row in read if (e := extent(sources(row), channels))]
            if extents:
                found[kind] = _range(extents, kind)
                chosen = f": what {len(extents):,} of them need (data.range=LOW,HIGH names another)"
        if wide and kind in found:
            notes.append(f"{words}: {found[kind][0]:g} to {found[kind][1]:g} becomes 0 to 255{chosen}")
    plan = Plan(side, channels, found.get("i", (0.0, 65535.0)), found.get("f", (0.0, 1.0)))
    return plan, notes, as_text(found)


def trees(root: Path, test_root: Path | None) -> tuple[Path, Path | None]:
    """The folders of the training and test images; None when the test images are held out of the former."""
    folders = {item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")}
    tests = [root / name for name in TEST_NAMES if name in folders]
    # A lone "train" beside other folders is a class (a vehicle), not a split.
    split = "train" in folders and (bool(tests) or test_root is not None or folders == {"train"})
    train = root / "train" if split else root
    if test_root is not None:
        return train, test_root
    if not split or not tests:
        return train, None
    labelled = [tree for tree in tests if any(item.is_dir() for item in tree.iterdir())]
    return train, (labelled or tests)[0]


def _folder(path: Path | None, key: str) -> Path:
    if path is None:
        raise PrelaxError(f"{key} is not set; it names the folder of images, for example {key}=./photos")
    path = path.expanduser()
    if not path.is_dir():
        if path.exists():
            raise PrelaxError(
                f"{key}: {path} is not a folder; name the folder the images are in, or a .npy, .npz or .h5 file of them"
            )
        raise PrelaxError(
            f"{key}: {path} is not there; if the images of a run were moved, tell it where they are now: "
            f"`prelax pretrain RUN --resume {key}=FOLDER` (a run that is finished is not trained again)"
        )
    return path


def _nothing(listing: Listing, what: str) -> PrelaxError:
    if ours(listing.root):
        return PrelaxError(
            f"{listing.root} is a run folder: no {what} are read there; name the folder they are in (if they lie among "
            "the files of a run, config.yaml and the others, move these out)"
        )
    others = kinds(listing.others, 3)
    hint = f" (found {others})" if others else ""
    read = f"jpg, png, webp, bmp, gif, tif and npy files are read{convert(listing.others)}"
    if listing.others[".tar"]:
        read += f"; shards are named so: data.shards='{listing.root}/*.tar'"
    return PrelaxError(f"no {what} under {listing.root}{hint}; {read}")


def load_folder(
    settings: DataSettings, split: str, progress: Progress | None = None, layout: Layout | None = None
) -> ImageSet:
    """The images under ``settings.root``, their central squares at one size, decoded once and cached.

    Test images are those of ``test_root``, else of ``root/test`` (``val``, ``valid``) beside ``root/train``, else a
    share ``test_fraction`` of all. Broken files are skipped and named; a set with nothing left is refused.
    """
    layout = layout or Layout()
    root = _folder(settings.root, "data.root")
    test_root = _folder(settings.test_root, "data.test_root") if settings.test_root else None
    train_tree, test_tree = trees(root, test_root)
    whole = scan(train_tree)  # sizes, channels and class numbers are the training tree's, for both splits
    if not whole.names:
        raise _nothing(whole, "images")
    table = read_labels(settings.labels.expanduser()) if settings.labels else None
    tests = scan(test_tree) if test_tree is not None and (table is not None or split == "test") else None
    bare, used = True, set[str]()
    if table is not None:
        table, bare, labels, used = as_named(table, whole, tests, root, settings.labels)
    else:
        labels = folder_labels(whole.names)
    if table is not None and not any(labels):
        raise PrelaxError(f"data.labels: {settings.labels} has no label for an image under {train_tree}; add some")
    classes = class_names(labels)

    listing, held_back = whole, 0
    if test_tree is None:
        test = held_out(whole.names, settings.test_fraction)
        rows = [i for i, held in enumerate(test) if held == (split == "test")]
        held_back = len(test) - len(rows) if split == "train" else 0
        listing, labels = whole.pick(rows), [labels[i] for i in rows]
        if not rows:
            raise NothingHeldOut(
                f"none of the images in {root} is held out to measure on: measure by others (--on FOLDER), or train "
                "with data.test_root, or data.test_fraction above 0"
            )
    elif split == "test":
        assert tests is not None
        listing = tests
        if not listing.names:
            raise _nothing(listing, "test images")
        if table is not None:
            labels = csv_labels(listing, root, table, whole.names, bare=bare)
        elif layout.test_labels:
            labels = [layout.test_labels.get(name) for name in listing.names]
        else:
            labels = folder_labels(listing.names)
        classes += [name for name in class_names(labels) if name not in set(classes)]
    if split == "train" and settings.limit and settings.limit < len(listing.names):
        rows = limited(len(listing.names), settings.limit)
        listing, labels = listing.pick(rows), [labels[i] for i in rows]

    side = settings.image_size or layout.image_size
    plan, notes, levels = survey(whole.path, len(whole.names), side, settings.channels, settings.range)
    if held_back:
        notes.append(f"{held_back:,} of {len(whole.names):,} files are held out to measure on (data.test_fraction)")
    if split == "train" and test_tree is not None:
        notes.append(f"what is measured on is in {printable(str(test_tree))}")
    if split == "train" and table is not None:
        known = sum(label is not None for label in labels)
        notes.append(f"{known:,} of {len(labels):,} images have a label in {settings.labels}")
        unknown(table, used, settings.labels, root)
    partly = split == "train" and (test_tree is not None or len(listing.names) < len(whole.names))
    share = " to train on" if partly else ""
    found = _decode(settings, listing, labels, classes, plan, notes, progress, layout, share)
    return replace(found, range=levels)


def as_named(
    table: dict[str, str], whole: Listing, tests: Listing | None, root: Path, file: Path | None
) -> tuple[dict[str, str], bool, list[str | None], set[str]]:
    """A table with the names that the images have here, whether these may be bare, their labels, and the lines used.

    As long as a line names an image all are taken as they are written. Else they are read in the other ways there are,
    and a warning says so; a table that names none in any is refused.
    """
    others = tests.names if tests else []

    def looked_up(lines: Mapping[str, str], bare: bool = True) -> tuple[list[str | None], set[str]]:
        used: set[str] = set()
        labels = csv_labels(whole, root, lines, others, used, bare)
        if tests is not None:
            csv_labels(tests, root, lines, whole.names, used, bare)
        return labels, used

    if not table:
        raise PrelaxError(f"data.labels: {file} has no line path,label; write one for each image that has a label")
    labels, used = looked_up(table)
    if used:
        return table, True, labels, used
    for keys, bare in readings(table, [*whole.names, *others]):
        lines = {name: table[key] for name, key in keys.items()}
        labels, used = looked_up(lines, bare)
        if here := next((name for name in keys if name in used), None):
            warnings.warn(
                f"no line of {file} names an image under {root} as it is written: {printable(keys[here])} is taken for "
                f"{printable(here)}, and the others likewise",
                PrelaxWarning,
                stacklevel=3,
            )
            return lines, bare, labels, used
    line = next((name for name in table if Path(name).suffix.lower() in EXTENSIONS), [*table][-1])
    raise PrelaxError(
        f"data.labels: no line of {file} names a file under {whole.root}; the table has {printable(line)}, the folder "
        f"{printable(whole.names[0])}"
    )


def unknown(table: Mapping[str, str], used: set[str], file: Path | None, root: Path) -> None:
    """Warns of the lines of a table that name no image: a misspelt one costs a label."""
    left = [name for name in table if name not in used]
    if left and Path(left[0]).suffix.lower() not in EXTENSIONS and next(iter(table)) == left[0]:
        left = left[1:]  # the header
    if left:
        lines = f"{len(left):,} of {len(table):,} lines" if len(left) > 1 else "a line"
        warnings.warn(
            f"{lines} of {file} {'name' if len(left) > 1 else 'names'} no image under {root} by its path, or by a name "
            f"that only one has: {', '.join(map(printable, left[:3]))}{', ...' if left[3:] else ''}",
            PrelaxWarning,
            stacklevel=3,
        )


def kinds(others: Counter[str], most: int) -> str:
    """Files by their extension and how many more there are: all pictures, then the most frequent of the rest.

    >>> kinds(Counter({".txt": 3, ".heic": 2, ".db": 1, ".mp4": 1}), 2)
    '2 .heic, 3 .txt, 2 others'
    """
    found = sorted(others.most_common(), key=lambda kind: kind[0] not in PICTURES)
    found = found[: max(most, len(set(others) & PICTURES))]
    told = [f"{n:,} {ext}" for ext, n in found]
    more = sum(others.values()) - sum(n for _, n in found)
    return ", ".join(told + ([f"{more:,} other{'s' if more > 1 else ''}"] if more else []))


def convert(others: Counter[str]) -> str:
    """What to do about pictures of kinds that are not read.

    >>> convert(Counter({".heic": 2, ".txt": 9, ".nef": 1}))
    '; convert .heic and .nef files to jpg, png or tif first'
    """
    found = sorted(set(others) & PICTURES)
    named = " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))
    return f"; convert {named} files to jpg, png or tif first" if found else ""


def files(number: int) -> str:
    return f"{number:,} file{'' if number == 1 else 's'}"


def _decode(
    settings: DataSettings,
    listing: Listing,
    labels: list[str | None],
    classes: list[str],
    plan: Plan,
    notes: list[str],
    progress: Progress | None,
    layout: Layout,
    share: str,
) -> ImageSet:
    count = len(listing.names)
    decoded = cached(
        key=digest(listing.root, listing.names, listing.stats, plan),
        folder=cache_folder(settings.cache) / "images",
        count=count,
        plan=plan,
        paths=listing.path,
        blocks=lambda: decode_all(listing.paths(), plan, settings.workers),
        progress=progress,
        notes=notes,
    )
    why = dict(decoded.skipped)
    skipped = listing.skipped + [(printable(listing.path(i)), said) for i, said in decoded.skipped]
    if len(why) == count:
        first = f"{skipped[0][0]}: {skipped[0][1]}"
        raise PrelaxError(f"none of {files(count)} under {listing.root} can be read as images; the first is {first}")
    if why:
        listing = listing.pick([i for i in range(count) if i not in why])
        labels = [label for i, label in enumerate(labels) if i not in why]
    ignored = sum(listing.others.values())
    if ignored:
        others = listing.others
        notes.append(f"{files(ignored)} left out, of kinds that are not read: {kinds(others, 5)}{convert(others)}")
    shut = sum(path.endswith("/") for path, _ in listing.skipped)
    if shut:
        notes.append(f"{shut:,} folder{'' if shut == 1 else 's'} cannot be opened, and nothing in there is read")
    if lost := len(skipped) - shut:
        whole = f"{count + len(listing.skipped) - shut:,}"
        whole = f"the {whole}{share}" if share else whole
        notes.append(f"{files(lost)} skipped of {whole}: log.txt in the run folder says which, and why")
    where = f"decoded into {decoded.file}" if decoded.file else "in memory"
    notes.append(f"{len(labels):,} images, {gigabytes(decoded.images.numel())}, {where}")
    return ImageSet(
        name=settings.label,
        images=decoded.images,
        labels=numbered(labels, classes),
        classes=[readable(layout.titles.get(name, name)) for name in classes],
        paths=[printable(path) for path in listing.paths()],
        skipped=skipped,
        notes=notes,
        file=decoded.file,
        plan=plan,
    )
