"""The built wheel, alone: everything the program reads is inside, and the demo runs from it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's contents in a folder of their own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(pip, capture_output=True, text=True, timeout=180)
    if built.returncode and "hatchling" in built.stderr + built.stdout:
        pytest.skip("the build backend is not installed and cannot be fetched")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("prelax-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def ask(unpacked: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``python -m prelax`` of the wheel, out of reach of the checkout."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "prelax", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(unpacked: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout")
    wanted = {line.removeprefix("src/") for line in tracked.stdout.splitlines() if (ROOT / line).exists()}
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert wanted <= found
    assert {name.split("/")[0].split("-")[0] for name in found} == {"prelax"}
    assert not [name for name in found if name.endswith((".pyc", ".pt", ".ipynb"))]


def test_the_program_of_the_wheel_knows_its_recipes_and_tables(unpacked: Path, tmp_path: Path) -> None:
    listed = ask(unpacked, tmp_path, "list", "recipes", "--json")
    assert listed.returncode == 0, listed.stderr
    names = {row["recipe"] for row in json.loads(listed.stdout)}
    assert names == {
        str(path.relative_to(unpacked / "prelax" / "recipes").with_suffix(""))
        for path in (unpacked / "prelax" / "recipes").rglob("*.yaml")
    }
    assert {"folder", "digits/prelax-all", "cifar10/simsiam"} <= names
    tables = ask(unpacked, tmp_path, "list", "tables", "--json")
    assert "tab1a" in {row["table"] for row in json.loads(tables.stdout)}


def test_the_demo_runs_from_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    done = ask(unpacked, tmp_path, "demo", "--epochs", "1", "--out", "demo", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    page = Path(result["page"]) if Path(result["page"]).is_absolute() else tmp_path / result["page"]
    assert "</html>" in page.read_text(encoding="utf-8")
    assert str(ROOT / "src") not in done.stdout + done.stderr


def test_the_entry_point_of_the_wheel_is_the_program(unpacked: Path) -> None:
    (points,) = unpacked.glob("prelax-*.dist-info/entry_points.txt")
    assert "prelax = prelax.cli:main" in points.read_text()
