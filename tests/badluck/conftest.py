"""A small finished run to damage, and the one way every mistake must end."""

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main

from prelax.cli import main

SMALL = [
    "model.backbone=resnet8",
    "model.projector_hidden=16",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=8",
    "data.limit=64",
    "train.batch_size=32",
    "train.checkpoint_every=1",
    "train.watch=none",
    "train.device=cpu",
]


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    """Typer builds every command anew for every call: most of the time of a thousand refusals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def small() -> list[str]:
    return SMALL


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs, evaluated; nobody writes to it."""
    folder = tmp_path_factory.mktemp("badluck") / "good"
    assert main(["pretrain", "digits/prelax-all", *SMALL, "train.epochs=2", "--out", str(folder), "--quiet"]) == 0
    assert main(["evaluate", str(folder), "-p", "knn", "--quiet", "--json"]) == 0
    return folder


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    """A copy of the good run, to be damaged."""
    return Path(shutil.copytree(good, tmp_path / "run"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must be refused, in one line on standard error, and gives that line."""

    def refuse(*words: object) -> str:
        capsys.readouterr()
        status = main([str(word) for word in words])
        said = capsys.readouterr().err
        assert status == 2, said
        assert said.startswith("prelax: ")
        assert said.count("\n") == 1, said
        return said

    return refuse
