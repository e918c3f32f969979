"""Evaluation and embedding by several processes: what one process gives, to the bit, written once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from prelax.collectives import gather_shares, share
from prelax.evaluate import protocols, subject
from prelax.evaluate.embed import embed
from prelax.loading import load
from prelax.run import Run

BATCH = 192  # small, so that each of two processes has some
SCRIPT = f"""
import sys
from prelax.cli.app import main
from prelax.evaluate import protocols, subject
import torch
torch.set_num_threads(1)
subject.BATCH = {BATCH}
protocols.CHEAP_SEEDS = 1
run, out = sys.argv[1:]
status = main(["evaluate", run, "-p", "knn,linear-fast", "--json", "--device", "cpu"])
sys.exit(status or main(["embed", run, "-o", out, "--split", "train", "--json", "--device", "cpu"]))
"""


def test_two_processes_find_what_one_finds_and_one_writes(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in ("one", "two"):
        shutil.copytree(trained.path, tmp_path / name)
    start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    process = subprocess.Popen(
        [sys.executable, *start, str(tmp_path / "script.py"), str(tmp_path / "two"), str(tmp_path / "two.npz")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    monkeypatch.setattr(subject, "BATCH", BATCH)
    monkeypatch.setattr(protocols, "CHEAP_SEEDS", 1)
    run = Run.open(tmp_path / "one")
    protocols.evaluate(run, ["knn", "linear-fast"], device="cpu")
    embed(load(run.path), run.settings.data, tmp_path / "one.npz", "train")

    said = documents(process.communicate(timeout=240)[0])
    assert process.returncode == 0
    assert len(said) == 2  # the evaluations and the embedding, each said once
    one, two = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert one["embedding"].shape[0] == 1297
    assert all(np.array_equal(one[key], two[key]) for key in one.files)
    for protocol, result in run.evals().items():
        other = Run.open(tmp_path / "two").evals()[protocol]
        assert {k for k in result if result[k] != other[k]} <= {"seconds", "date"}


def documents(text: str) -> list[object]:
    """The JSON documents of a text, one after another."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


@pytest.mark.parametrize(("count", "step", "world"), [(10, 4, 1), (10, 4, 2), (10, 4, 5), (8, 4, 2), (1, 4, 3)])
def test_shares_are_whole_batches_and_cover_every_row_once(
    count: int, step: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prelax.collectives.world_size", lambda: world)
    shares = [share(count, step, of) for of in range(world)]
    assert [row for rows in shares for row in rows] == list(range(count))
    assert all(rows.start % step == 0 or not rows for rows in shares)


def test_one_process_keeps_what_it_has() -> None:
    rows = torch.randn(5, 3)
    assert gather_shares(rows, 5, 2) is rows
