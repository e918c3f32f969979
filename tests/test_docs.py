"""What the pages say can be run, runs: every block after a line ``<!-- run -->``; and every link leads somewhere."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- run -->\n```(python|console)\n(.*?)\n```", re.DOTALL)
BLOCKS = [
    pytest.param(kind, code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, (kind, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
]


@pytest.mark.parametrize(("kind", "code"), BLOCKS)
def test_a_block_that_is_marked_runs(kind: str, code: str, tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", code]]
    if kind == "console":
        lines = [line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")]
        assert lines
        commands = [[sys.executable, "-m", *line.split()] for line in lines]
    for command in commands:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command[1:])}\n{done.stderr}"


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
    assert set(re.findall(r"`prelax ([a-z-]+)", text)) <= known


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
