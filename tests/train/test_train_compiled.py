"""A compiled step is the plain one, in one process and in several, and one that will not compile runs plainly."""

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from prelax.collectives import rehearsal, rows_of_processes, sum_over_processes
from prelax.config import resolve
from prelax.data import load_training
from prelax.errors import PrelaxWarning
from prelax.run import Run
from prelax.train import Engine, Process, pretrain

SMALL = [
    "data.limit=96",
    "model.projector_hidden=32",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=16",
    "train.batch_size=32",
    "train.optimizer=sgd",
    "train.lr=0.05",
    "train.epochs=2",
    "train.device=cpu",
    "train.stop_on_collapse=false",
    "augment.compile=never",
]
# What inductor would make of it takes minutes on a small machine; what is traced is the same.
WORKER = """
import functools, sys, torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
from prelax.cli import main
sys.exit(main())
"""


def losses(folder: Path) -> list[list[float]]:
    lines = Run.open(folder).metrics()
    return [[value for name, value in sorted(line.items()) if name.startswith("loss")] for line in lines]


@pytest.mark.parametrize(("name", "end"), [("prelax-all", 1), ("prelax-turns", 0.25)])
def test_two_compiled_processes_give_the_losses_of_one_that_is_not(name: str, end: float, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    # Of some seeds a ReLU near 0 turns the last digit of a sum into the third of a loss within six steps (in float64
    # all agree); not of this.
    changes = [*SMALL, f"method.name={name}", "seed=2", f"method.gamma_end={end}"]
    command = [sys.executable, *launch, str(tmp_path / "worker.py"), "pretrain", "digits/prelax-all", *changes]
    command += ["train.compile=always", "--out", str(tmp_path / "two"), "--quiet"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "without it" not in done.stderr
    pretrain(resolve("digits/prelax-all", changes), tmp_path / "one", progress=False)
    for two, one in zip(losses(tmp_path / "two"), losses(tmp_path / "one"), strict=True):
        assert two == pytest.approx(one, abs=1e-4)


@pytest.mark.parametrize("broken", ["at once", "backward"])
def test_what_does_not_compile_runs_plainly_and_says_so(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.backends.common import aot_autograd

    def fails(graph: torch.fx.GraphModule, inputs: object) -> object:
        raise RuntimeError("no compiler here")

    backend = fails if broken == "at once" else aot_autograd(fw_compiler=lambda graph, inputs: graph, bw_compiler=fails)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    with pytest.warns(UserWarning, match=r"torch\.compile failed .*training without it"):
        pretrain(resolve("digits/prelax-all", [*SMALL, "train.compile=always"]), tmp_path / "asked", progress=False)
    monkeypatch.undo()
    torch.compiler.reset()
    with warnings.catch_warnings(action="error", category=UserWarning):
        pretrain(resolve("digits/prelax-all", SMALL), tmp_path / "plain", progress=False)
    assert losses(tmp_path / "asked") == losses(tmp_path / "plain")
    same = (torch.equal(a, b) for a, b in zip(weights(tmp_path / "asked"), weights(tmp_path / "plain"), strict=True))
    assert all(same)


def test_the_command_says_it_in_one_line_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prelax", "pretrain", "digits/simsiam", *SMALL[:-1], "train.compile=always"]
    command += ["augment.compile=always", "--out", str(tmp_path / "run")]
    nothing = {"CC": "/bin/false", "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env={**os.environ, **nothing}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "compile" in line]
    assert len(said) == 2, done.stderr
    assert all(line.startswith("prelax: torch.compile failed (") for line in said)
    assert said[0].endswith("augmenting without it, slower")
    assert said[1].endswith("training without it, slower")


def weights(folder: Path) -> list[torch.Tensor]:
    state = Run.open(folder).load_checkpoint("cpu")
    assert state is not None
    return [value for _, value in sorted(state["network"].items())]


@pytest.fixture
def group() -> Iterator[None]:
    """This process as a group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("here", [True, False])
def test_what_one_process_cannot_compile_is_compiled_by_none(
    here: bool, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: torch.fx.GraphModule, inputs: object) -> object:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=fails if here else "eager"))
    monkeypatch.setattr("prelax.train.engine.any_of", lambda process, flag: flag or not here)
    both = [resolve("digits/simsiam", [*SMALL, f"train.compile={when}"]) for when in ("never", "always")]
    images = load_training(both[0].data)
    plain, compiled = (Engine(settings, images, torch.device("cpu"), Process()) for settings in both)
    plain.run_epoch(1, 0, lambda done: False)
    with pytest.warns(PrelaxWarning, match="compile_fn" if here else r"torch\.compile failed \(in another process\)"):
        compiled.run_epoch(1, 0, lambda done: False)
    torch.compiler.reset()
    assert not compiled.fused
    for name, value in plain.network.state_dict().items():
        assert torch.equal(value, compiled.network.state_dict()[name]), name


def test_what_is_compiled_in_a_rehearsal_asks_the_others_afterwards(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", lambda x, *more: summed.append(x.numel()))
    doubled = torch.compile(lambda x: sum_over_processes(2 * x), backend="aot_eager")
    with rehearsal():
        assert doubled(torch.ones(3)).tolist() == [2, 2, 2]
        assert rows_of_processes(torch.ones(2)).tolist() == [1, 1]
    assert summed == []
    doubled(torch.ones(3))
    torch.compiler.reset()
    assert summed == [3]


READY = """
import sys, torch
from prelax.config import resolve
from prelax.train.devices import start_compilers
from torch._inductor.async_compile import AsyncCompile
start_compilers(resolve("digits/prelax-std", ["train.compile=never", "augment.compile=never"]), torch.device("cuda", 0))
start_compilers(resolve("digits/prelax-std", []), torch.device("cpu"))
assert AsyncCompile.process_pool.cache_info().currsize == 0
start_compilers(resolve("digits/prelax-std", []), torch.device("cuda", 0))
assert AsyncCompile.process_pool.cache_info().currsize == 1
AsyncCompile.wait_pool_ready(60)
assert AsyncCompile.use_process_pool()
"""


def test_compilers_are_started_where_a_run_will_ask_for_them() -> None:
    pytest.importorskip("triton")
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    subprocess.run([sys.executable, "-c", READY], env=env, check=True, timeout=120)
