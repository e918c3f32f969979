"""The run folder: written whole or not at all, read without executing anything, refused with a reason."""

import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file

from prelax.config import resolve
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.run import FORMAT, Run
from prelax.stamp import commit
from prelax.tensors import read_checkpoint
from prelax.weights import read_weights
from prelax.whole import replacing, writing


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", resolve("digits/prelax-rot", ["train.epochs=2"], seed=5))


def test_a_run_opens_with_the_settings_it_was_made_with(run: Run) -> None:
    opened = Run.open(run.path)
    assert opened.settings == resolve("digits/prelax-rot", ["train.epochs=2"], seed=5)
    about = opened.read_config()[1]
    assert about["format"] == FORMAT
    assert {"prelax", "torch", "python", "created"} <= set(about)
    assert opened.name == "run"


def test_a_folder_that_holds_a_run_is_not_taken_twice(run: Run) -> None:
    with pytest.raises(PrelaxError, match="already holds a run; add --resume"):
        Run.create(run.path, run.settings)
    with run.lock(), pytest.raises(PrelaxError, match=r"another process is writing to .*; wait for it"):
        Run.create(run.path, run.settings)


def test_a_folder_that_is_no_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="no run folder"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(PrelaxError, match=r"has no config\.yaml"):
        Run.open(tmp_path)
    (tmp_path / "config.yaml").write_text("train: {epochs: 3}\n")
    with pytest.raises(PrelaxError, match="not the settings of a run"):
        Run.open(tmp_path)
    (tmp_path / "config.yaml").write_text("{")
    with pytest.raises(PrelaxError, match="cannot be read"):
        Run.open(tmp_path)


def test_a_run_of_a_newer_format_is_refused(run: Run) -> None:
    tree = yaml.safe_load((run.path / "config.yaml").read_text())
    tree["run"] |= {"format": FORMAT + 1, "prelax": "99.0"}
    run.write("config.yaml", yaml.safe_dump(tree))
    with pytest.raises(PrelaxError, match=r"written by a later prelax \(99\.0"):
        Run.open(run.path)


def test_resuming_may_change_where_a_run_happens_but_not_what_it_computes(run: Run) -> None:
    run.check_resumable(resolve("digits/prelax-rot", ["train.epochs=2", "train.device=cpu"], seed=5))
    for change, key in (("train.lr=0.1", "train.lr"), ("method.alpha=0.5", "method.alpha"), ("seed=6", "seed")):
        pairs = ["train.epochs=2", "seed=5", change]
        with pytest.raises(PrelaxError, match=rf"{key} was .* cannot become"):
            run.check_resumable(resolve("digits/prelax-rot", pairs))


def test_metrics_survive_a_torn_last_line(run: Run) -> None:
    for epoch in (1, 2, 3):
        run.log_metrics({"epoch": epoch, "loss": -0.1 * epoch})
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 4, "lo')
    assert [line["epoch"] for line in run.metrics()] == [1, 2, 3]
    run.rewind_metrics(2)
    run.log_metrics({"epoch": 3, "loss": 0.0})
    assert [line["epoch"] for line in run.metrics()] == [1, 2, 3]
    assert run.metrics()[-1]["loss"] == 0.0


def test_metrics_of_a_run_that_has_none_are_empty(run: Run) -> None:
    assert run.metrics() == []


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(run: Run) -> None:
    run.write("note.txt", "old")

    def write_half() -> None:
        with replacing(run.path / "note.txt") as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert (run.path / "note.txt").read_text() == "old"
    assert not [path for path in run.path.iterdir() if path.name.endswith(".tmp")]


def test_a_checkpoint_comes_back_as_it_was(run: Run) -> None:
    state = {"epoch": 3, "weights": {"w": torch.arange(6.0).view(2, 3)}, "names": ["a", "b"]}
    run.save_checkpoint(state)
    loaded = run.load_checkpoint()
    assert loaded is not None
    assert loaded["epoch"] == 3
    assert torch.equal(loaded["weights"]["w"], state["weights"]["w"])


def test_a_torn_checkpoint_gives_way_to_the_one_before_it(run: Run) -> None:
    run.save_checkpoint({"epoch": 1, "w": torch.ones(1000)})
    run.save_checkpoint({"epoch": 2, "w": torch.ones(1000)})
    path = run.path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:2000])
    loaded = run.load_checkpoint()
    assert loaded is not None
    assert loaded["epoch"] == 1
    assert "trying the one before it" in (run.path / "log.txt").read_text()


def test_a_flipped_bit_in_a_checkpoint_is_noticed(run: Run) -> None:
    run.save_checkpoint({"w": torch.zeros(4096)})
    path = run.path / "checkpoint.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(PrelaxError, match="damaged"):
        read_checkpoint(path)


def test_code_inside_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    flag = tmp_path / "executed"

    class Attack:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(flag),)

    torch.save({"w": Attack()}, tmp_path / "zip.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Attack()))
    for name in ("zip.pt", "plain.pt"):
        with pytest.raises(PrelaxError):
            read_checkpoint(tmp_path / name)
    assert not flag.exists()


def test_no_checkpoint_is_none(run: Run) -> None:
    assert run.load_checkpoint() is None


def test_a_backbone_is_plain_safetensors(run: Run) -> None:
    weights = {"conv1.weight": torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last)}
    run.save_backbone(weights)
    assert torch.equal(run.load_backbone()["conv1.weight"], weights["conv1.weight"])


def test_an_unfinished_run_has_no_backbone_and_says_how_to_finish_it(run: Run) -> None:
    with pytest.raises(PrelaxError, match=r"prelax pretrain .*--resume"):
        run.load_backbone()
    (run.path / "backbone.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(PrelaxError, match=r"cannot be read .*`prelax pretrain .* --resume` writes it again"):
        run.load_backbone()


def test_evaluations_are_kept_by_name_with_date_and_version(run: Run) -> None:
    run.write_eval("knn", {"protocol": "knn", "accuracy": 50.0})
    found = Run.open(run.path).evals()
    assert found["knn"]["accuracy"] == 50.0
    assert {"date", "prelax"} <= set(found["knn"])
    run.write("eval/bad.json", "{")
    with pytest.raises(PrelaxError, match=r"bad\.json is not JSON"):
        run.evals()


def test_two_processes_do_not_write_to_one_run(run: Run) -> None:
    script = (
        "import sys; from prelax.run import Run; from prelax.errors import PrelaxError\n"
        "try:\n    Run(sys.argv[1]).lock().__enter__()\n"
        "except PrelaxError as error:\n    sys.exit(str(error))\n"
    )
    with run.lock():
        other = subprocess.run([sys.executable, "-c", script, str(run.path)], capture_output=True, text=True)
    assert other.returncode == 1
    assert "another process is writing" in other.stderr
    with run.lock():  # free again
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IREAD | stat.S_IEXEC)
    try:
        with pytest.raises(PrelaxError, match=r"cannot write .* choose another --out"):
            Run.create(tmp_path / "run", resolve("digits/simsiam"))
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_a_file_in_the_way_of_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PrelaxError, match="cannot write"):
        Run.create(tmp_path / "file" / "run", resolve("digits/simsiam"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_that_says_what_to_do(run: Run) -> None:
    (run.path / "log.txt").unlink(missing_ok=True)
    (run.path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(PrelaxError, match="no space left"):
        run.log("a line")


def test_a_figure_that_the_disk_has_no_room_for_is_told_and_not_lost(run: Run) -> None:
    (run.path / "eval" / "knn.json").symlink_to("/dev/full")
    with pytest.warns(PrelaxWarning, match="not kept: no space left to write"):
        run.write_eval("knn", {"accuracy": 1.0})
    assert run.unkept


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint.previous.pt", "backbone.safetensors"])
def test_weights_whose_settings_are_gone_are_not_written_over(name: str, run: Run) -> None:
    (run.path / name).write_bytes(b"hours of work")
    (run.path / "config.yaml").unlink()
    with pytest.raises(PrelaxError, match=r"holds weights of a run whose config\.yaml is gone; choose another --out"):
        Run.create(run.path, resolve("digits/simsiam"))
    assert (run.path / name).read_bytes() == b"hours of work"


def test_weights_that_are_not_as_they_were_written_are_refused(run: Run) -> None:
    state = {"a": torch.arange(40.0), "b.count": torch.tensor(3), "c": torch.zeros(0), "d": torch.ones(3, 2) > 0}
    run.save_backbone(state)
    found = run.load_backbone()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    path = run.path / "backbone.safetensors"
    data = bytearray(path.read_bytes())
    data[-150] ^= 4  # one bit of one number
    path.write_bytes(data)
    with pytest.raises(
        PrelaxError, match=r"cannot be read \(it is damaged: its numbers are not those that were written"
    ):
        run.load_backbone()
    with pytest.raises(PrelaxError, match="cannot be read: it is damaged"):
        read_weights(str(path))
    save_file(state, path)  # of others, who keep no checksum
    assert run.load_backbone().keys() == state.keys()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1216 vs 1104"),
        RuntimeError("basic_ios::clear: iostream error"),  # torch, when the last bytes do not fit
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_recognised_in_the_words_of_other_libraries(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match=r"no space left to write .*x; free some"), writing(tmp_path / "x"):
        raise error


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with replacing(pipe) as temporary:
        assert temporary == pipe
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_commit_is_of_this_checkout_or_none() -> None:
    found = commit()
    assert found is None or (len(found) == 40 and set(found) <= set("0123456789abcdef"))


def test_the_commit_of_a_project_that_merely_contains_prelax_is_not_taken(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "src" / "prelax"
    installed = tmp_path / "site" / "prelax"
    installed.mkdir(parents=True)
    for name in ("__init__.py", "stamp.py"):
        (installed / name).write_text((source / name).read_text())
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / ".gitignore").write_text("site\n")
    for words in (["init", "-q"], ["add", ".gitignore"], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    asked = subprocess.run(
        [sys.executable, "-c", "from prelax.stamp import commit; print(commit())"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == "None"


def test_a_log_line_carries_its_date(run: Run) -> None:
    run.log("began")
    line = (run.path / "log.txt").read_text()
    assert line[4] == "-"
    assert line.endswith("began\n")


def test_config_is_readable_json_compatible(run: Run) -> None:
    tree = yaml.safe_load((run.path / "config.yaml").read_text())
    assert json.loads(json.dumps(tree, default=str))["seed"] == 5
