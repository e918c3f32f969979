"""The page on augmentations: its code runs, its pictures are there."""

import ast
import re
from pathlib import Path

from prelax.augment import OPERATIONS, PRESETS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "augmentations.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_code_of_the_page_runs_from_top_to_bottom() -> None:
    space: dict[str, object] = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "augmentations.md", "exec"), space)


def test_the_users_own_augmentation_of_the_page_has_under_20_lines() -> None:
    classes = [node for block in BLOCKS for node in ast.parse(block).body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in classes] == ["Scanlines"]
    assert (classes[0].end_lineno or 99) - classes[0].lineno + 1 < 20


def test_every_operation_has_its_picture_and_every_preset_is_named() -> None:
    for name in OPERATIONS:
        assert f"| `{name}` |" in PAGE
        if name != "normalise":
            assert f"(pictures/{name}.png)" in PAGE
    assert all(f"`{name}`" in PAGE for name in PRESETS)
    for picture in re.findall(r"\((pictures/[^)]*)\)", PAGE):
        assert 0 < (DOCS / picture).stat().st_size < 150_000, picture
