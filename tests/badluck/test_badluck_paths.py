"""Paths, devices and files that will not do: one line that names them, from every command."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Refuse = Callable[..., str]
LONG = "x" * 300


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with things that are in the way."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("bad.png").write_bytes(b"no picture")
    for name in ("empty", "dir.npz", "dir.png"):
        Path(name).mkdir()
    Path("rows.json").write_text('{"rows": [{"method": 3, "coefficient": [], "value": "x", "accuracy": null}]}')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pretrain", "digits/simsiam", "--out", "file"], "cannot write file"),
        (["pretrain", "digits/simsiam", "--out", "file/run"], "cannot write file/run"),
        (["pretrain", "digits/simsiam", "--out", "/dev/null"], "cannot write /dev/null"),
        (["pretrain", "digits/simsiam", "--out", LONG], "File name too long"),
        (["pretrain", "digits/simsiam", "--out", "a\0b"], "--out"),
        (["pretrain", "RUN"], "add --resume"),
        (["pretrain", "bad.png"], "no recipe 'bad.png'"),
        (["pretrain", "folder", "data.root=empty"], "empty"),
        (["pretrain", "folder", "data.root=file"], "file is not a folder; name the folder the images are in"),
        (["pretrain", "folder", "empty"], "to train on the images in it: data.root=empty"),
        (["pretrain", "digits/simsiam", "train.device=cuda:-1"], "use auto, cpu, cuda or cuda:N"),
        (["pretrain", "digits/simsiam", "method.relax=no_such_module:Thing"], "no_such_module"),
        (["pretrain", "digits/simsiam", "model.backbone=timm:no_such_net"], "no_such_net"),
        (["report", "file"], "no run folder file; give one that `prelax pretrain` made"),
        (["report", "empty"], "it has no config.yaml; give one that `prelax pretrain` made"),
        (["list"], "list what? For example `prelax list recipes`; valid: methods, datasets"),
        (["pretrain", "digits/simsiam", "train.device=meta"], "train.device=meta: use auto, cpu, cuda or cuda:N"),
        (["report", "RUN", "--device", "tpu"], "--device tpu: use auto, cpu, cuda or cuda:N"),
        (["evaluate", "RUN", "--device", "meta"], "--device meta: use auto, cpu, cuda or cuda:N"),
        (["bench", "train", "--device", "tpu"], "--device tpu: use auto, cpu, cuda or cuda:N"),
        (["detect", "random", "--data", "empty", "--out", "d", "--device", "tpu"], "--device tpu: use auto"),
        (["report", "RUN", "-o", "/dev/full", "--points", "0"], "no space left to write /dev/full"),
        (["report", "RUN", "-o", "file/page.html", "--points", "0"], "cannot write file/page.html"),
        (["report", "RUN", "--points", "9" * 20], "points is 99999999999999999999"),
        (["embed", "RUN", "-o", "vectors.txt"], ".parquet, .npz or .csv"),
        (["embed", "RUN", "-o", "dir.npz"], "cannot write dir.npz"),
        (["embed", "RUN", "-o", f"{LONG}.npz"], "File name too long"),
        (["embed", "RUN", "-o", "x.npz", "--on", "empty"], "no images under empty"),
        (["embed", "RUN", "-o", "x.npz", "--on", "cifar10", "--root", "empty"], "no cifar10 files"),
        (["export", "RUN", "--to", "hub", "-o", "file"], "cannot write file"),
        (["export", "RUN", "--to", "torchvision"], "resnet8 is not one of torchvision's"),
        (["search", "RUN", "nothing.png"], "no picture nothing.png"),
        (["search", "RUN", "bad.png"], "bad.png is not a picture"),
        (["search", "RUN", "dir.png"], "dir.png is not a picture"),
        (["figure", "dynamics", "RUN", "-o", "dir.png"], "cannot write dir.png"),
        (["figure", "sensitivity", "rows.json", "-o", "x.png"], "nothing to draw"),
        (["figure", "tsne", "RUN", "RUN", "-o", "x.png"], "of one run"),
        (["theory", "--out", "file", "--joints", "1"], "file"),
        (["detect", "random", "--data", "empty", "--out", "d"], "no COCO train split"),
        (["detect", "bad.png", "--data", "empty", "--out", "d"], "bad.png"),
        (["augmentations", "RUN", "--operation", "nope"], "nope"),
        (["bench", "augment", "--size", "4,99999999"], "8192 is the most"),
        (["evaluate", "RUN", "-p", "knn,,"], "no protocol ''"),
        (["evaluate", "RUN", "--on", ""], "--on is empty: give a dataset or a folder"),
        (["evaluate", "RUN", "train.lr=3"], "only evaluate.* can"),
        (["doctor", "--figure"], "--figure is of a run"),
    ],
    ids=lambda value: " ".join(value)[:60].replace("\0", "NUL") if isinstance(value, list) else "",
)
def test_what_will_not_do_is_named_in_one_line(
    words: list[str], says: str, here: Path, good: Path, small: list[str], refused: Refuse
) -> None:
    if words[0] == "pretrain" and words[1] != "RUN":
        own = {word.split("=")[0] for word in words}
        words = [*words, *(word for word in small if word.split("=")[0] not in own), "--quiet"]
    before = sorted(good.iterdir())
    assert says in refused(*(str(good) if word == "RUN" else word for word in words))
    assert sorted(good.iterdir()) == before
    assert Path("file").read_text() == "x"


@pytest.mark.parametrize(
    "words", [["--help"], ["pretrain", "--help"], ["list", "methods"], ["pretran"], ["pretrain", "x", "--nope"]]
)
def test_no_color_is_respected_where_colours_are_forced(words: list[str]) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-m", "prelax", *words], env=environment, capture_output=True, text=True)
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|9[0-7]|[34]8;)[0-9;]*m", done.stdout + done.stderr)


def test_a_folder_that_cannot_be_written_is_refused_before_a_picture_is_read(
    here: Path, small: list[str], refused: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*given: object) -> None:
        raise AssertionError("images were read")

    monkeypatch.setattr(sys.modules["prelax.train.pretrain"], "load_training", read)
    said = refused("pretrain", "digits/simsiam", *small, "--out", "file/run")
    assert "file is a file, not a folder; choose another --out" in said
    monkeypatch.setattr("os.access", lambda place, mode: False)  # root may write anywhere
    said = refused("pretrain", "digits/simsiam", *small, "--out", "empty/run")
    assert "empty is read-only, or not yours to write to; choose another --out" in said
