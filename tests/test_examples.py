"""Every example runs, as its page says."""

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert all(f"`{path.name}`" in page for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", ["plain_pytorch", "lightning_module", "on_lightly"])
def test_the_loss_of_a_loop_of_ones_own_is_finite(name: str) -> None:
    if name == "lightning_module":
        pytest.importorskip("pytorch_lightning")
    if name == "on_lightly":
        pytest.importorskip("lightly")
    assert math.isfinite(example(name).main())


def test_timm_loads_what_was_pretrained() -> None:
    shape, missing = example("timm_backbone").main()
    assert shape == (2, 512)
    assert missing == []


def test_an_augmentation_of_ones_own_can_be_relaxed() -> None:
    assert 0 < example("own_augmentation").main() < 3


def test_views_of_ones_own_teach_until_one_has_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("own_views").main(wanted=90.0) >= 90.0
    said = capsys.readouterr().out
    assert "stopped, resume=True would go on" in said
    assert "of 30 epochs" in said


def test_the_crop_can_be_relaxed_for_scans() -> None:
    read, floor = example("medical_crop").main()
    assert read > floor + 8  # random weights, which tell a good deal of it


def test_the_example_of_an_own_augmentation_shows_that_something_is_learnt() -> None:
    script = Path(__file__).parents[1] / "examples" / "own_augmentation.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, last = (float(number) for number in re.search(r"first epoch (\S+), epoch 5 (\S+)", done.stdout).groups())
    assert last < first < 1
    assert last < 0.5  # a guess: 1
