"""The commands, as a user types them: what they print where, and how they end."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prelax.cli import app, main
from prelax.cli.about import KINDS
from prelax.config import DataSettings
from prelax.errors import PrelaxError

SMALL = ["model.projector_hidden=16", "model.projector_dim=16", "model.predictor_hidden=8", "model.head_hidden=8"]
QUICK = [*SMALL, "train.epochs=1", "train.batch_size=256", "data.limit=256"]
COMMANDS = [command.name for command in app.registered_commands]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick Prelax run on the digits, made by the command."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["pretrain", "digits/prelax-all", *QUICK, "--out", str(folder), "--quiet"]) == 0
    return folder


def test_every_command_of_the_design_is_there() -> None:
    wanted = {"pretrain", "evaluate", "embed", "report", "reproduce", "export", "list", "bench", "demo"}
    assert wanted | {"search", "probe-residual", "doctor", "theory", "augmentations"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"Examples?:\s+prelax {command}|Examples?:.*prelax {command}", " ".join(said.split()))
    assert "--json" in said


def test_help_is_quick_and_imports_no_torch() -> None:
    script = "import sys; from prelax.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"

    def spent() -> float:  # seconds of a processor: a busy machine does not make them more
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    began = spent()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pretrain" in done.stdout
    assert spent() - began < 1.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "methods"])
def test_what_there_is_is_listed_without_waiting_for_torch(kind: str) -> None:
    script = f"import sys; from prelax.cli import main; sys.exit(main(['list', '{kind}']) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 2


def test_every_name_that_is_listed_is_known_where_it_is_used() -> None:
    from prelax import data, export
    from prelax.augment.presets import _BUILDERS, _VIEWS
    from prelax.names import FORMATS, OPERATIONS, PRESETS, SOURCES

    assert OPERATIONS.keys() == _BUILDERS.keys()
    assert PRESETS.keys() == _VIEWS.keys()
    for name in SOURCES:
        with pytest.raises(PrelaxError, match="no split"):  # asked after the source
            data.load(DataSettings(source=name), "dev")
    for name in FORMATS:
        with pytest.raises(PrelaxError, match="no run folder"):  # asked after the format
            export.export("nowhere", name)


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "pretrain" in capsys.readouterr().out


def test_version_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    import prelax

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"prelax {prelax.__version__}\n"
    assert main(["--version", "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "torch " in said
    assert "python" in said


def test_python_minus_m_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "prelax", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("prelax ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pretrain", "digits/simsam"], "did you mean digits/simsiam?"),
        (["pretrain", "digits/simsiam", "train.epoch=3"], "did you mean train.epochs?"),
        (["pretrain", "digits/simsiam", "method.name=prelaxall"], "did you mean prelax-all?"),
        (["pretrain", "digits/simsiam", "model.backbone=resnet19"], "did you mean resnet18?"),
        (["pretrain", "digits/simsiam", "data.source=cifar"], "did you mean cifar10?"),
        (["pretrain", "digits/simsiam", "augment.preset=simsiam"], "did you mean simsiam-32?"),
        (["pretrain", "digits/simsiam", "method.relax=rotations"], "did you mean rotation?"),
        (["pretrain", "digits/simsiam", "train.epochs=0"], "train.epochs: should be at least 1 (got 0)"),
        (["pretrain", "folder"], "data.root is not set"),
        (["pretrain", "folder", "data.root=/no/such/folder"], "there is no folder /no/such/folder"),
        (["pretrain", "folder", "--data.root=x"], "settings are written without dashes: data.root=x (see"),
        (["pretrain", "digits/simsiam", "--epochs", "2"], "settings are written without dashes: train.epochs=2 (see"),
        (["pretrain", "digits/simsiam", "--train.epoch"], "settings are written without dashes: train.epochs=... (see"),
        (["pretrain", "digits/simsiam", "--zzz"], "No such option: --zzz (see"),
        (["pretrain", "digits/simsiam", "train.epochs=two"], "train.epochs: should be a whole number (got 'two')"),
        (["pretrain", "digits/simsiam", "train.lr=x"], "train.lr: should be a number (got 'x')"),
        (["pretrain", "digits/simsiam", "train.lr=-1"], "train.lr: should be more than 0 (got -1)"),
        (["pretrain", "digits/simsiam", "method.reverse=x"], "method.reverse: should be true or false (got 'x')"),
        (["pretrain", "digits/simsiam", "--resume"], "--resume needs the run folder"),
        (["pretrain", "runs/no-such", "--resume"], "no run folder runs/no-such;"),
        (["pretrain"], "see `prelax pretrain --help`"),
        (["pretran"], "Did you mean 'pretrain'?"),
        (["list", "method"], "did you mean methods?"),
        (["evaluate", "/no/such/run"], "no run folder"),
        (["report", "/no/such/run"], "no run folder"),
        (["reproduce", "tab1"], "did you mean tab1"),
        (["reproduce", "tab1a", "--seeds", "a"], "is not a list of numbers"),
        (["reproduce", "tab1a", "--only", "zzz"], "no row of tab1a matches"),
        (["reproduce", "tab1a", "--only", "("], "is not a pattern"),
        (["bench", "trian"], "did you mean train?"),
        (["bench", "augment", "--size", "big"], "IN,OUT"),
        (["pretrain", "digits/simsiam", "--seed", "-1"], "--seed"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_status_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert says in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []  # refused before work started


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "digits/simsam", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_fault_of_ours_is_status_1_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import prelax.config

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(prelax.config, "resolve", broken)
    assert main(["pretrain", "digits/simsiam"]) == 1
    assert capsys.readouterr().err == "prelax: unexpected RuntimeError: boom (a fault of prelax; --debug shows where)\n"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("methods", "prelax-all"),
        ("datasets", "cifar10"),
        ("recipes", "imagenette/byol-prelax-all"),
        ("backbones", "resnet18"),
        ("augmentations", "simsiam-32"),
        ("protocols", "knn"),
        ("tables", "tab1a"),
        ("formats", "onnx"),
        ("settings", "train.epochs"),
    ],
)
def test_list_names_what_there_is(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert name in {next(iter(row.values())) for row in rows}
    assert main(["list", kind]) == 0
    assert name in capsys.readouterr().out


def test_a_dry_run_prints_settings_that_can_be_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["pretrain", "digits/prelax-rot", "train.epochs=3", "--seed", "4", "--dry-run"]) == 0
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(capsys.readouterr().out)
    assert main(["pretrain", str(recipe), "--dry-run", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["train"]["epochs"], tree["seed"], tree["method"]["name"]) == (3, 4, "prelax-rot")


def test_pretrain_writes_the_run_folder(run: Path) -> None:
    assert {path.name for path in run.iterdir()} >= {
        "config.yaml",
        "metrics.jsonl",
        "checkpoint.pt",
        "backbone.safetensors",
        "log.txt",
    }


def test_pretrain_names_the_run_by_recipe_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "digits/simsiam", *QUICK, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert re.fullmatch(r"runs/digits-simsiam-\d{8}-\d{6}", result["run"])
    assert result["metrics"]["epoch"] == 1
    assert (tmp_path / result["run"] / "backbone.safetensors").is_file()


def test_a_run_is_not_written_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "digits/prelax-all", *QUICK, "--out", str(run)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["pretrain", str(run)]) == 2
    assert "add --resume" in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "backbone.safetensors").read_bytes()
    assert main(["pretrain", str(run), "--resume"]) == 0
    assert (run / "backbone.safetensors").read_bytes() == before
    assert "it had all of its epochs already" in capsys.readouterr().out


def test_resuming_with_another_setting_is_refused_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", str(run), "train.lr=0.1", "--resume"]) == 2
    assert "train.lr was 0.5" in capsys.readouterr().err


def test_ctrl_c_leaves_a_run_that_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    words = ["pretrain", "digits/simsiam", *SMALL, "train.epochs=6", "data.limit=512", "--quiet"]
    program = [sys.executable, "-m", "prelax"]
    stopped = subprocess.Popen([*program, *words, "--out", str(tmp_path / "a stop")], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "a stop" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    stopped.send_signal(signal.SIGINT)
    _, said = stopped.communicate(timeout=60)
    if stopped.returncode != 0:  # it may have finished just before the signal came
        assert stopped.returncode == 130
        assert said == f"prelax: interrupted; go on with `prelax pretrain '{tmp_path / 'a stop'}' --resume`\n"
    assert main(["pretrain", str(tmp_path / "a stop"), "--resume", "--quiet"]) == 0
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    weights = [(tmp_path / name / "backbone.safetensors").read_bytes() for name in ("a stop", "whole")]
    assert weights[0] == weights[1]


def test_evaluate_measures_beside_random_weights(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "evaluate.knn_k=20", "--protocol", "knn,knn-10-per-class", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [result["protocol"] for result in results] == ["knn", "knn-10-per-class"]
    for result in results:
        assert 0 < result["accuracy"] <= 100
        assert 0 < result["floor"] <= 100
    assert results[0]["settings"]["k"] == 20
    assert json.loads((run / "eval" / "knn.json").read_text())["accuracy"] == results[0]["accuracy"]
    assert main(["evaluate", str(run), "--protocol", "knn"]) == 0
    assert "random weights" in capsys.readouterr().out


def test_evaluate_refuses_what_it_does_not_know(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--protocol", "knnn"]) == 2
    assert "did you mean knn?" in capsys.readouterr().err
    assert main(["evaluate", str(run), "train.lr=3"]) == 2
    assert "only evaluate.* can" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--on", "cifar11"]) == 2
    assert "cifar10" in capsys.readouterr().err


def test_evaluate_on_a_folder_of_pictures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from prelax.config import DataSettings
    from prelax.data import load

    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    digits = load(DataSettings(), "test")
    for number in range(60):
        folder = tmp_path / "pictures" / str(int(digits.labels[number]))
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(digits.images[number, 0].numpy())
        picture.resize((20, 24)).convert("RGB").save(folder / f"{number}.png")
    words = ["evaluate", str(run), "--on", str(tmp_path / "pictures"), "--protocol", "knn", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)[0]["dataset"] == "pictures"
    assert (run / "eval" / "knn-pictures.json").is_file()


def test_probe_residual_asks_about_every_parameter(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe-residual", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"rotation.turns", "crop.area"} <= set(result["targets"])
    assert main(["evaluate", str(run), "--protocol", "residual"]) == 0
    assert "rotation.turns" in capsys.readouterr().out


def test_embed_writes_a_vector_for_every_image(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np = pytest.importorskip("numpy")
    assert main(["embed", str(run), "--split", "test", "-o", str(tmp_path / "digits.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 500
    assert np.load(tmp_path / "digits.npz")["embedding"].shape == (500, 64)


def test_search_finds_the_picture_itself_first(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    from prelax.config import DataSettings
    from prelax.data import load

    image = load(DataSettings(), "train").images[7]
    Image.fromarray(image[0].numpy()).save(tmp_path / "query.png")
    words = ["search", str(run), str(tmp_path / "query.png"), "-k", "3", "-o", str(tmp_path / "found.png"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["results"][0]["found"]
    assert len(found) == 3
    assert found[0]["cosine"] == pytest.approx(1.0, abs=1e-3)
    assert (tmp_path / "found.png").is_file()


def test_report_writes_one_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--points", "50", "-o", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_theory_prints_both_theorems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "--joints", "2", "-o", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["survey"]["joints"] == 2
    assert (tmp_path / "theory.png").is_file()


def test_bench_measures_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "digits/simsiam", *SMALL, "train.batch_size=32", "--seconds", "0.05", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["views_per_s"] > 0 for row in rows)


def test_doctor_examines_machine_and_run(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", str(run), "--json"]) in (0, 1)
    found = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["checkpoint.pt"]["ok"]
    assert found["backbone"]["ok"]
    assert main(["doctor", str(tmp_path)]) == 1
    assert "not a run folder" in capsys.readouterr().out


def test_no_colour_when_it_is_not_wanted() -> None:
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "prelax", "list", "recipes"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", done.stdout)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m prelax list settings | head -1", shell=True, capture_output=True, text=True
    )
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_cannot_be_printed_is_one_line_and_stops_no_work(run: Path, tmp_path: Path) -> None:
    prelax = f"{sys.executable} -m prelax"
    done = subprocess.run(f"{prelax} list methods > /dev/full", shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "prelax: cannot write its output: No space left on device; free some space, or send it elsewhere\n"
    )
    closed = subprocess.run(f"{prelax} list methods >&- 2>&-", shell=True, capture_output=True, text=True)
    assert closed.returncode == 0
    deaf = subprocess.run(f"{prelax} embed {run} -o {tmp_path}/v.npz > /dev/full 2>&1", shell=True)
    assert (tmp_path / "v.npz").is_file()
    assert deaf.returncode == 2


def test_completion_knows_recipes_and_keys() -> None:
    from prelax.cli.training import complete_key, complete_recipe

    assert complete_recipe("digits/prelax-r") == ["digits/prelax-rot"]
    assert "train.epochs=" in complete_key("train.")
    environment = {**os.environ, "_PRELAX_COMPLETE": "complete_bash", "COMP_WORDS": "prelax pret", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "prelax"], capture_output=True, text=True, env=environment)
    assert "pretrain" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_had_for_every_shell(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_PRELAX_COMPLETE", f"source_{shell}")
    assert main([]) == 0
    assert f"_PRELAX_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_an_error_speaks_in_one_line() -> None:
    assert "\n" not in str(PrelaxError("one line"))


def test_a_title_longer_than_its_table_is_not_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prelax.cli.speech import show, state

    monkeypatch.setattr(state, "json", False)
    title = "cosine of the features before and after (1: invariant), " * 5
    show([{"augmentation": "crop", "cosine": 0.5}], title=title)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == title
    assert said[1].split() == ["augmentation", "cosine"]


def test_a_folder_given_as_a_recipe_is_told_how_to_train_on_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert main(["pretrain", "photos"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "prelax pretrain folder data.root=photos" in said
    assert "did you mean" not in said
