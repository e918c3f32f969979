"""A thousand random bad inputs: each ends in one clear line or in success, and no checkpoint is lost.

The inputs are drawn from a fixed seed: what fails here once fails here again. ``doctor`` alone may end with 1, which is
how it says that something is wrong with the run it was shown.
"""

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from prelax.cli import app, main
from prelax.config import keys, recipe_names
from prelax.tensors import read_checkpoint

COMMANDS = [str(command.name) for command in app.registered_commands]
OPTIONS = ["--out", "--seed", "--json", "--quiet", "--on", "--root", "--protocol", "--device", "--points", "--to"]
VALUES = [
    *("", " ", "0", "-1", "1", "2", "3.5", "1e999", "-1e999", "nan", ".nan", ".inf", "-.inf", "1e-400", "true", "none"),
    *("[1, 2]", "{a: b}", "{", "[", "'", '"', "&a *a", "!!python/object:os.system x", "99999999999999999999", "0x10"),
    *(
        "1_000",
        "1e5000",
        "9" * 5000,
        "é",
        "日本",
        "\x00",
        "\x1b[31m",
        "a\nb",
        "../..",
        "/",
        "/dev/null",
        "~",
        "~nobody9",
    ),
    *("%s", "${HOME}", "$(reboot)", "--", "-", "=", "a=b", "2024-01-01", "1:30", "simsam", "cuda:99", "cuda:x", "tpu"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default run folders would be made here."""
    monkeypatch.chdir(tmp_path)


def ends_well(words: list[str], allowed: tuple[int, ...] = (0, 2)) -> tuple[int, str]:
    """Runs a command; it must end with an allowed status, without a traceback, complaining once and in one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    said = err.getvalue()
    assert status in allowed, (words, status, said)
    assert "Traceback" not in said, (words, said)
    assert "Traceback" not in out.getvalue(), (words, out.getvalue())
    if status == 2:
        assert said.startswith("prelax: "), (words, said)
        assert said.count("\n") == 1, (words, said)
        assert len(said) < 2000, (words, said)
    return status, said


def test_a_very_long_word_is_cut_in_the_line_that_refuses_it() -> None:
    for words in (["reproduce", "9" * 5000], ["list", "x" * 5000], ["pretrain", "digits/simsiam", "y" * 5000]):
        assert ends_well(words)[0] == 2


# -- wrong words -------------------------------------------------------------------------------------------------------


def typo(draw: random.Random, word: str) -> str:
    """A word with a letter lost, doubled, changed, or put in."""
    at = draw.randrange(len(word) + 1)
    return draw.choice(
        [word[:at] + word[at + 1 :], word[:at] + word[at : at + 1] + word[at:], word[:at] + "?" + word[at:]]
    )


def wrong_words(draw: random.Random) -> list[str]:
    """A command line with something wrong in it, that trains nothing even if by chance it is right."""
    kind = draw.randrange(6)
    key, value = draw.choice(list(keys())), draw.choice(VALUES)
    if kind == 0:
        return [typo(draw, draw.choice(COMMANDS)) + "x", draw.choice(VALUES)]
    if kind == 1:
        return ["pretrain", "digits/simsiam", "--dry-run", f"{typo(draw, key)}={value}"]
    if kind == 2:
        return ["pretrain", "digits/simsiam", "--dry-run", f"{key}={value}"]
    if kind == 3:
        return ["pretrain", typo(draw, draw.choice(recipe_names())), "--dry-run", f"{key}={draw.choice(VALUES)}"]
    if kind == 4:
        command = draw.choice([c for c in COMMANDS if c not in ("demo", "theory", "bench", "doctor", "list")])
        return [command, value, *draw.sample([*OPTIONS, *VALUES], draw.randrange(4)), "--dry-run"]
    return [draw.choice(["list", "reproduce", "bench", "figure", "evaluate", "detect"]), value, "--nope"]


@pytest.mark.parametrize("seed", range(40))
def test_wrong_words_are_refused_in_one_line(seed: int) -> None:
    draw = random.Random(f"words {seed}")
    for _ in range(12):
        ends_well(wrong_words(draw))


# -- damaged recipes ---------------------------------------------------------------------------------------------------


def scramble(draw: random.Random, data: bytes) -> bytes:
    """The bytes of a file after an accident."""
    kind = draw.randrange(8)
    at, to = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    if kind == 0:
        return b""
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :] if at < len(data) else b"\0"
    if kind == 3:
        return data[:at] + data[to:]
    if kind == 4:
        return data[:at] + draw.randbytes(draw.randrange(1, 64)) + data[at:]
    if kind == 5:
        return draw.randbytes(draw.randrange(1, 300))
    if kind == 6:
        return data[:at] + bytes(to - at) + data[to:]  # a hole, as a crash of the machine leaves
    return data + data[at:]


def mistype(draw: random.Random, text: str) -> str:
    """A YAML or JSON text whose lines were edited by a hand that slipped."""
    lines = text.splitlines() or [""]
    at = draw.randrange(len(lines))
    kind = draw.randrange(6)
    if kind == 0 and ":" in lines[at]:
        lines[at] = f"{lines[at].split(':')[0]}: {draw.choice(VALUES)}"
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = "\t" + lines[at]
    elif kind == 3:
        lines[at] = lines[at].lstrip()
    elif kind == 4:
        lines.insert(
            at, draw.choice(["- 1", "x: y", "run: 3", "extends: me", "? [a]: b", "]", "null", "*unknown", "..."])
        )
    else:
        lines[at] = typo(draw, lines[at])
    return "\n".join(lines) + "\n"


RECIPE = """about: mine
extends: digits/prelax-all
seed: 3
data:
  limit: 64
train:
  epochs: 4
  warmup_epochs: 1
  lr: 0.5
method:
  gamma: 0.1
"""


@pytest.mark.parametrize("seed", range(10))
def test_damaged_recipes_are_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"recipes {seed}")
    path = tmp_path / "mine.yaml"
    for _ in range(20):
        if draw.random() < 0.6:
            path.write_text(mistype(draw, RECIPE), encoding="utf-8", errors="surrogateescape")
        else:
            path.write_bytes(scramble(draw, RECIPE.encode()))
        ends_well(["pretrain", str(path), "--dry-run", "train.epochs=3"])


# -- damaged run folders -----------------------------------------------------------------------------------------------

SMALL_FILES = ["config.yaml", "metrics.jsonl", "eval/knn.json", "data.json", "log.txt"]
WEIGHTS = ["checkpoint.pt", "checkpoint.previous.pt", "backbone.safetensors"]


def damage(draw: random.Random, good: Path, folder: Path, name: str) -> None:
    """Something happens to a file of a copy of the good run."""
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    kind = draw.random()
    if kind < 0.06:
        return  # lost
    if kind < 0.12:
        path.mkdir()
    elif kind < 0.16:
        path.symlink_to(path)
    elif name in WEIGHTS and kind < 0.3:
        path.write_bytes((good / draw.choice([other for other in WEIGHTS if other != name])).read_bytes())
    elif name.endswith((".yaml", ".json", ".jsonl")) and kind < 0.6:
        path.write_bytes(mistype(draw, data.decode()).encode(errors="surrogateescape"))
    elif name.endswith((".json", ".jsonl")) and kind < 0.75:
        told = json.loads(data.splitlines()[0] if name.endswith("l") else data)
        told[draw.choice(list(told))] = draw.choice([None, [], {}, "x", -1, 1e300, True, [[1]], {"a": None}])
        path.write_text(json.dumps(draw.choice([told, [told], told, "text", 3, None])) + "\n")
    else:
        path.write_bytes(scramble(draw, data))


def copy(good: Path, folder: Path) -> Path:
    """The good run, by links: a damaged file is unlinked first, and the library replaces files whole."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder, copy_function=os.link)
    for name in ("log.txt", ".lock"):  # the files that are written in place
        (folder / name).unlink()
        shutil.copy(good / name, folder / name)
    return folder


ASKED: list[tuple[int, Callable[[str, str], list[str]]]] = [
    (6, lambda run, out: ["pretrain", run, "--resume", "--dry-run"]),
    (6, lambda run, out: ["figure", "dynamics", run, "-o", f"{out}.png"]),
    (3, lambda run, out: ["figure", "reverse", run, "-o", f"{out}.png"]),
    (3, lambda run, out: ["figure", "sensitivity", run, "-o", f"{out}.png"]),
    (3, lambda run, out: ["figure", "augmentations", run, "-o", f"{out}.png"]),
    (6, lambda run, out: ["export", run, "--to", "torchvision", "-o", out]),
    (6, lambda run, out: ["export", run, "--to", "hub", "-o", out]),
    (3, lambda run, out: ["report", run, "--points", "0", "-o", f"{out}.html"]),
    (3, lambda run, out: ["doctor", run]),
    (3, lambda run, out: ["evaluate", run, "-p", "knn"]),
    (2, lambda run, out: ["embed", run, "-o", f"{out}.npz", "--split", "test"]),
    (4, lambda run, out: ["pretrain", run, "--resume", "--quiet"]),
]


def whole(path: Path) -> bool:
    try:
        return "network" in read_checkpoint(path)
    except Exception:
        return False


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_run_ends_in_one_line_and_no_checkpoint_is_lost(seed: int, good: Path, tmp_path: Path) -> None:
    draw = random.Random(f"runs {seed}")
    for turn in range(16):
        run = copy(good, tmp_path / "run")
        for name in draw.sample([*SMALL_FILES, *WEIGHTS], draw.choice([1, 1, 2])):
            damage(draw, good, run, name)
        left = [name for name in WEIGHTS[:2] if whole(run / name)]
        (ask,) = draw.choices([ask for _, ask in ASKED], [weight for weight, _ in ASKED])
        words = ask(str(run), str(tmp_path / f"out{turn}"))
        _, said = ends_well(words, (0, 1, 2) if words[0] == "doctor" else (0, 2))
        assert "fault of prelax" not in said
        assert not left or any(whole(run / name) for name in WEIGHTS[:2]), words
    assert whole(good / "checkpoint.pt")  # the links lead to the good run: it must not have been written through
