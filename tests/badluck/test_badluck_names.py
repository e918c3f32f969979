"""File names that are no text (bytes that are no UTF-8): trained on, searched and shown, never a crash."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prelax.cli import main

ROOT, CLASS, NAME = b"fotos\xff", b"caf\xe9", b"b\xfc%d.png"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes in a folder; its name, that of a class and those of half of the files are no text."""
    above = os.fsencode(tmp_path_factory.mktemp("names")) + b"/"
    rng = np.random.default_rng(0)
    for number in range(24):
        folder = above + ROOT + b"/" + (CLASS if number % 2 else b"dog")
        os.makedirs(folder, exist_ok=True)
        with open(folder + b"/" + (NAME % number if number % 4 < 2 else b"%d.png" % number), "wb") as file:
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
    return Path(os.fsdecode(above + ROOT))


@pytest.fixture(scope="module")
def told(photos: Path, small: list[str]) -> tuple[Path, str]:
    """A run trained on them by the command, and what the command printed on a terminal of strict UTF-8."""
    run = photos.parent / "run"
    cache = f"data.cache={photos.parent / 'cache'}"
    changes = [*(word for word in small if not word.startswith("data.limit")), cache, "train.epochs=1"]
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict")
    with contextlib.redirect_stdout(printed):
        assert main(["pretrain", "folder", f"data.root={photos}", *changes, "--out", str(run)]) == 0
    printed.seek(0)
    return run, printed.read()


def test_a_folder_whose_names_are_no_text_is_trained_on_and_has_a_page(told: tuple[Path, str]) -> None:
    run, printed = told
    assert "look at it" in printed
    page = (run / "report.html").read_bytes().decode("utf-8")  # strictly
    assert "fotos\\xff" in page
    assert "caf\\\\xe9/b\\\\xfc" in page  # a caption, below the folder, in the page's JSON
    assert "\\udc" not in page


def test_the_search_that_is_proposed_names_a_picture_that_is_there_or_none(told: tuple[Path, str]) -> None:
    (proposed,) = [line for line in told[1].splitlines() if "prelax search" in line]
    assert proposed.split()[3] == "PICTURE"  # the first image has a name that cannot be typed


def test_search_by_such_a_picture_is_drawn_and_readable(
    told: tuple[Path, str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = os.fsdecode(os.fsencode(photos) + b"/" + CLASS + b"/" + NAME % 1)
    words = ["search", str(told[0]), picture, "-k", "2", "-o", str(tmp_path / "found.png")]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["out"] == str(tmp_path / "found.png")
    assert found["results"][0]["picture"].endswith("fotos\\xff/caf\\xe9/b\\xfc1.png")
    assert found["results"][0]["found"][0]["path"] == found["results"][0]["picture"]
    assert found["results"][0]["found"][0]["class"] == "caf\\xe9"
    assert said.err == ""
    assert main(words) == 0
    assert "caf\\xe9/b\\xfc1.png" in capsys.readouterr().out


def test_files_are_written_under_such_names_and_told(
    told: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = os.fsencode(tmp_path) + b"/page\xff.html"
    assert main(["report", str(told[0]), "--points", "0", "-o", os.fsdecode(page)]) == 0
    assert "page\\xff.html" in capsys.readouterr().out
    assert os.path.getsize(page) > 0


def test_a_run_folder_of_such_a_name_is_refused_before_work(
    photos: Path, small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = os.fsdecode(os.fsencode(tmp_path) + b"/run\xff")
    assert main(["pretrain", "digits/simsiam", *small, "--out", out, "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "run\\xff cannot be a run folder: its path is not UTF-8" in said
    assert list(tmp_path.iterdir()) == []


def test_what_a_terminal_has_no_letters_for_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", plain)
    assert main(["list", "settings"]) == 0
    plain.seek(0)
    assert "whole number (\\u2265 0" in plain.read()
    assert plain.errors == "strict"  # given back as it was
