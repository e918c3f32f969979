"""What the pages show can be done: their Python runs, their commands run or are understood, their links lead somewhere.

A page is read from top to bottom, in a folder that holds nothing but ``photos``. Commands after a line ``<!-- run -->``
are run; the others want hours or other people's files, and go through the program's own reading of them.
"""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from prelax.cli import app, main
from prelax.cli.speech import state
from prelax.config import resolve

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = ("augmentations.md", "theory.md")  # their Python is run beside what it is about
PYTHON = re.compile(r"```python\n(.*?)\n```", re.DOTALL)
BLOCK = re.compile(r"^(<!-- run -->\n)?```(\w*)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
SHELL = ("console", "bash", "")  # what such a block is called, if anything
QUICKLY = "train.epochs=1"  # of a folder: enough to see that it works


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def shell(page: Path, run: bool) -> list[list[str]]:
    """The ``prelax`` commands of a page as words: those marked to be run, or the others."""
    blocks = [block for mark, name, block in BLOCK.findall(text(page)) if bool(mark) is run and name in SHELL]
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("prelax ")]


def having(pages: list[Path], what: str) -> list[Path]:
    has = {
        "python": lambda page: PYTHON.search(text(page)) and page.name not in ELSEWHERE,
        "run": lambda page: shell(page, True),
        "shown": lambda page: shell(page, False),
    }
    return [page for page in pages if has[what](page)]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A folder with a dozen photos of two kinds in it, and the environment of a program started there."""
    rng = np.random.default_rng(0)
    for kind in ("sea", "wood"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(12):
            colours = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
            side = (int(rng.integers(60, 90)), 64)
            Image.fromarray(colours).resize(side).save(tmp_path / "photos" / kind / f"{number}.jpg")
    Image.fromarray(colours).resize((80, 60)).save(tmp_path / "photos" / "one.jpg")
    monkeypatch.chdir(tmp_path)
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PRELAX_CACHE": str(tmp_path / "cache")}


def runnable(block: str) -> str:
    """A block as this machine can run it: on the CPU, and of one that wants files from the network its imports."""
    block = block.replace('"cuda"', '"cpu"')
    if "https://" in block:
        compile(block, "page", "exec")
        block = "\n".join(line for line in block.splitlines() if line.startswith(("from ", "import ")))
    return block


@pytest.mark.parametrize("page", having(PAGES, "python"), ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, desk: dict[str, str]) -> None:
    script = "\n".join(runnable(block) for block in PYTHON.findall(text(page)))
    script = f"if __name__ == '__main__':\n    exec(compile({script!r}, {page.name!r}, 'exec'), globals())"
    Path("page_script.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "page_script.py"], env=desk, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", having(PAGES, "run"), ids=lambda page: page.name)
def test_the_commands_that_are_marked_run(
    page: Path, desk: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRELAX_CACHE", desk["PRELAX_CACHE"])
    for words in shell(page, True):
        quick = [QUICKLY] if words[:2] == ["pretrain", "folder"] and "train.epochs=" not in " ".join(words) else []
        assert main([*words, *quick]) == 0, f"{' '.join(words)}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("page", having(PAGES, "shown"), ids=lambda page: page.name)
def test_the_commands_that_are_only_shown_are_understood(page: Path) -> None:
    program = typer.main.get_command(app)
    for words in shell(page, False):
        with program.make_context("prelax", words[:1]) as context:
            name, command, _ = program.resolve_command(context, words[:1])  # type: ignore[attr-defined]
            command.make_context(name, words[1:], parent=context).close()  # refuses options there are not
        if words[0] == "pretrain" and "--resume" not in words:
            resolve(words[1], [word for word in words[2:] if re.match(r"[a-z_.]+=", word)])
    state.reset()


def test_the_site_leads_to_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {page.name for page in PAGES[1:]} == set(re.findall(r": ([a-z]+\.md)$", nav, re.MULTILINE))


def test_the_readme_opens_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index("make demo") < text.index("make test") < text.index("## ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_command_of_the_readme_exists() -> None:
    from prelax.cli import app

    known = {command.name for command in app.registered_commands}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`prelax ([a-z][a-z-]*)", text))
    assert named <= known
    assert known <= named  # and the table leaves none out


def test_every_recipe_and_table_the_pages_name_exists() -> None:
    from prelax.config import recipe_names
    from prelax.tables import tables

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"prelax pretrain ([a-z0-9+-]+/[a-z0-9+-]+)", text):
            assert name in {*recipe_names(), "runs/photos"} or name.startswith("runs/"), (page.name, name)
        for name in re.findall(r"prelax reproduce ((?:tab|fig)[a-z0-9-]*)", text):
            assert name in tables(), (page.name, name)


def test_the_page_of_settings_is_of_these_settings() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_settings.py"))["page"]
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page(), "run python docs/make_settings.py"


def test_list_settings_prints_what_the_page_of_settings_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "settings", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
    lines = [line.replace("`", "") for line in page.splitlines() if line.startswith("| `")]
    shown = [
        " | ".join([row["key"], row["default"].replace("none", ""), row["values"], row["what"].replace("`", "")])
        for row in rows
    ]
    assert [f"| {line} |" for line in shown] == lines
    defaults = {row["key"]: row["default"] for row in rows}
    assert (defaults["data.download"], defaults["train.stop_on_collapse"]) == ("false", "true")
