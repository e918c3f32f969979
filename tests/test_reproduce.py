"""Reproducing a table: every row is data, nothing is done twice, and a figure is only compared with its like."""

import json
from pathlib import Path

import pytest

from prelax.cli import main
from prelax.config import resolve
from prelax.errors import PrelaxError
from prelax.names import PROTOCOLS
from prelax.reproduce import folder_of, line, mean_std, plan, reproduce, run_name, settings_of
from prelax.run import Run
from prelax.table_files import as_markdown, stem_of, write
from prelax.tables import DETECTORS, Row, Table, chosen, table, tables
from prelax.train import pretrain

TOY = [
    "model.backbone=resnet8",
    "model.projector_hidden=16",
    "model.projector_dim=16",
    "model.predictor_hidden=8",
    "model.head_hidden=8",
    "train.epochs=1",
    "train.batch_size=256",
    "data.limit=256",
]

PRINTED = {  # the paper's tables, read off its pages once more and in another form
    "tab1a": [95.0, 88.3, 91.1, 91.1, 91.8, 93.4],
    "tab1b": [91.0, 92.2, 91.9, 92.3, 92.6, 92.7],
    "tab2a": [91.8, 66.9, 47.7, 92.5, 67.5, 47.9, 92.4, 67.3, 47.1, 93.4, 70.0, 49.2],
    "tab2b": [44.1, 43.9, 21.8, 45.0, 45.1, 21.8, 45.0, 45.1, 22.0, 44.9, 44.6, 22.1],
    "tab3a": [91.8, 91.9, 88.3, 87.9, 91.7, 93.4],
    "tab3b": [91.8, 92.2, 91.5, 91.7, 92.5, 91.1, 91.9, 79.8, 92.4],
    "r34": [91.2, 60.9, 39.0, 92.4, 67.6, 48.4, 93.0, 67.0, 40.9, 93.9, 69.3, 49.4],
    "fig-dynamics": [0.6, 1.1],
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_figures_are_in_the_table(name: str) -> None:
    assert [row.paper for row in table(name).rows] == PRINTED[name]


def test_every_table_of_the_paper_is_there() -> None:
    wanted = {*PRINTED, "imagenet", "fig-augmentations", "fig-sensitivity", "fig-reverse", "fig-tsne", "fig-retrieval"}
    assert wanted <= set(tables())


@pytest.mark.parametrize("name", tables())
def test_every_row_has_a_recipe_and_a_protocol_there_is(name: str) -> None:
    for row in table(name).rows:
        assert settings_of(row, ["train.epochs=2"], seed=3).seed == 3
        assert row.protocol in {*PROTOCOLS, *DETECTORS, "effects", "metrics"}, row


def test_rows_of_one_table_train_different_things_unless_they_measure_one_run_twice() -> None:
    for name in ("tab1a", "tab2a", "tab3a", "tab3b", "r34", "fig-sensitivity", "fig-reverse"):
        names = [run_name(settings_of(row, [], 0)) for row in table(name).rows]
        assert len(set(names)) == len(names), name


def test_a_run_is_shared_by_the_tables_that_ask_for_it() -> None:
    shared = [settings_of(table(name).rows[0], [], 0) for name in ("tab2a", "tab3a", "tab3b")]
    assert len({run_name(settings) for settings in shared}) == 1


def test_a_quick_pass_never_takes_the_place_of_the_real_run() -> None:
    row = table("tab1a").rows[-1]
    assert run_name(settings_of(row, [], 0)) != run_name(settings_of(row, ["train.epochs=3"], 0))
    assert run_name(settings_of(row, [], 0)) != run_name(settings_of(row, [], 1))
    # ... but where the files are and how a run is measured do not make it another run
    moved = settings_of(row, ["data.root=/elsewhere", "train.device=cpu", "evaluate.knn_k=5"], 0)
    assert run_name(moved) == run_name(settings_of(row, [], 0))


def test_another_folder_of_images_is_another_run(tmp_path: Path) -> None:
    row = table("digits").rows[0]
    names = {
        run_name(settings_of(row, ["data.source=folder", f"data.root={tmp_path}/{root}"], 0))
        for root in ("a", "b", "c/../b")
    }
    assert len(names) == 2


def test_mean_and_deviation_are_of_the_seeds() -> None:
    assert mean_std([]) == (None, None)
    assert mean_std([90.0]) == (90.0, None)
    assert mean_std([90.0, 91.0, 92.0]) == (91.0, 1.0)


def test_a_row_that_is_finished_is_not_done_again(tmp_path: Path) -> None:
    first = reproduce("digits", TOY, tmp_path, only="SimSiam$|simsiam$", progress=False)
    (row,) = first["rows"]
    weights = Path(row["runs"][0]) / "backbone.safetensors"
    stamp = weights.stat().st_mtime_ns
    heard: list[str] = []
    again = reproduce("digits", TOY, tmp_path, only="simsiam$", progress=False, say=heard.append)
    assert again["rows"] == first["rows"]
    assert weights.stat().st_mtime_ns == stamp
    assert "  trained already" in heard
    assert not any("measuring" in line for line in heard)


def test_other_settings_of_the_measurement_measure_again_without_training(tmp_path: Path) -> None:
    first = reproduce("digits", TOY, tmp_path, only="simsiam$", progress=False)
    heard: list[str] = []
    reproduce("digits", [*TOY, "evaluate.knn_k=1"], tmp_path, only="simsiam$", progress=False, say=heard.append)
    assert "  trained already" in heard
    assert "  measuring knn" in heard
    again = reproduce("digits", TOY, tmp_path, only="simsiam$", progress=False)  # not what knn_k=1 left there
    assert again["rows"] == first["rows"]


def test_a_row_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prelax.train.engine import Engine

    changes = [*TOY[:5], "train.epochs=2", "train.batch_size=128", "data.limit=256"]
    whole = Engine.run_epoch

    def stop_in_epoch_2(self, epoch, first, after_step):  # type: ignore[no-untyped-def]
        return whole(self, epoch, first, after_step if epoch == 1 else lambda done: True)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "run_epoch", stop_in_epoch_2)
        with pytest.raises(KeyboardInterrupt):
            reproduce("digits", changes, tmp_path, only="simsiam$", progress=False)
    heard: list[str] = []
    result = reproduce("digits", changes, tmp_path, only="simsiam$", progress=False, say=heard.append)
    assert "  going on from epoch 1 of 2" in heard
    assert result["rows"][0]["ours"] is not None


def test_two_seeds_give_a_mean_and_a_deviation(tmp_path: Path) -> None:
    result = reproduce("digits", TOY, tmp_path, only="simsiam$", seeds=(0, 1), progress=False)
    (row,) = result["rows"]
    assert len(row["figures"]) == 2
    assert row["ours"] == pytest.approx(sum(row["figures"]) / 2, abs=1e-3)
    assert row["std"] is not None
    assert " ± " in as_markdown(result)


def test_the_papers_figure_is_not_set_beside_another_dataset(tmp_path: Path) -> None:
    changes = ["data.source=digits", *TOY]
    result = reproduce("tab1a", changes, tmp_path, only="^SimSiam +cifar10/simsiam$", progress=False)
    (row,) = result["rows"]
    assert row["trained_on"] == "digits"
    assert row["paper"] is None
    assert row["difference"] is None
    assert row["knn"] is not None  # beside every linear figure
    assert "trained on" in as_markdown(result)
    assert " --seeds 0 --only '^SimSiam +cifar10/simsiam$'`\n" in as_markdown(result)  # these rows, no others


def test_a_row_that_fails_keeps_its_reason_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "digits", *TOY, "--only", "simsiam$|std", "-o", str(tmp_path)]
    assert main([*words, "--quiet"]) == 0
    broken = next(path for path in tmp_path.iterdir() if "prelax-std" in path.name) / "eval" / "knn.json"
    broken.write_text("{")
    capsys.readouterr()
    assert main([*words, "--json"]) == 2
    said = capsys.readouterr()
    rows = {row["label"]: row for row in json.loads(said.out)["rows"]}
    assert rows["SimSiam"]["ours"] is not None
    assert "is not JSON" in rows["SimSiam + Prelax-std"]["failure"]
    assert "1 of 2 rows failed" in said.err


def test_the_command_writes_table_figures_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "digits", *TOY, "--only", "prelax-rot", "-o", str(tmp_path), "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "digits.json").read_text()) == result
    assert result["files"] == str(tmp_path / "digits")
    assert "| SimSiam + Prelax-rot |" in (tmp_path / "digits.md").read_text()
    assert Path(result["page"]).is_file()


def test_a_pass_over_a_table_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    def kept(*changes: str, seeds: tuple[int, ...] = (0,), only: str | None = None) -> str:
        rows = []
        for row in chosen(table("tab3b"), only):
            folders = [str(folder_of(tmp_path, row, settings_of(row, changes, seed))) for seed in seeds]
            rows.append(line(row, [90.0], [], folders, None, settings_of(row, changes, 0)))
        about = {"title": "", "changes": changes, "only": only, "seeds": seeds, "detection": None}
        result = {"table": "tab3b", "rows": rows, "detection_changes": [], **about}
        write(stem_of(tmp_path, result), result)
        return stem_of(tmp_path, result).name

    assert kept("data.root=data") == "tab3b"
    assert kept("train.epochs=200") == "tab3b-2"
    assert kept(seeds=(0, 1)) == "tab3b-3"
    assert kept(only="SimSiam") == "tab3b-4"
    assert kept("evaluate.probe_seeds=3") == "tab3b-5"
    (tmp_path / "tab3b-4.json").write_text("{")  # whatever it was, it stays
    assert kept("train.epochs=100") == "tab3b-6"
    assert kept("train.epochs=200", "data.root=elsewhere") == "tab3b-2"
    assert kept() == "tab3b"


def test_a_dry_run_says_how_far_each_row_is(tmp_path: Path) -> None:
    lines = plan("tab3b", [], tmp_path, seeds=(0, 1))
    assert len(lines) == 18
    assert {line["epochs"] for line in lines} == {"0 of 800"}


def test_a_mistake_is_refused_before_the_first_row(tmp_path: Path) -> None:
    for changes in (["train.epoch=3"], ["method.name=nothing"]):
        with pytest.raises(PrelaxError):
            reproduce("digits", changes, tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_could_not_be_measured_is_refused_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(PROTOCOLS, "knn")
    with pytest.raises(PrelaxError, match="knn cannot be measured"):
        reproduce("digits", TOY, tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["fig-augmentations", "fig-reverse", "fig-sensitivity"])
def test_a_table_that_is_a_figure_is_drawn(name: str, tmp_path: Path) -> None:
    only = {
        "fig-augmentations": " (none|crop|flip|rotation) ",
        "fig-reverse": "prelax-std",
        "fig-sensitivity": "std (alpha 0 |alpha 1)",
    }[name]
    result = reproduce(name, ["data.source=digits", *TOY], tmp_path, only=only, progress=False)
    assert all(row["ours"] is not None for row in result["rows"])
    assert Path(result["figure"]).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.svg").is_file()


def test_the_dynamics_row_reads_the_metrics(tmp_path: Path) -> None:
    changes = ["data.source=digits", *TOY]
    result = reproduce("fig-dynamics", changes, tmp_path, only="simsiam$", progress=False)
    metrics = (Path(result["rows"][0]["runs"][0]) / "metrics.jsonl").read_text().splitlines()
    assert result["rows"][0]["ours"] == pytest.approx(json.loads(metrics[-1])["residual_norm"], abs=1e-3)
    assert Path(result["figure"]) == tmp_path / "fig-dynamics.png"
    assert ">SimSiam<" in Path(result["figure"]).with_suffix(".svg").read_text()  # not the folder's name


def test_recipes_of_tables_are_the_papers_lengths() -> None:
    assert {resolve(row.recipe).train.epochs for row in table("tab3b").rows} == {800}
    assert {resolve(row.recipe).train.epochs for row in table("tab1b").rows if "BYOL" in row.label} == {1000}


def test_a_curve_is_measured_though_another_table_trained_the_run_without_one(tmp_path: Path) -> None:
    changes = [*TOY, "data.source=digits", "model.backbone=resnet8", "data.image_size=16"]
    row = chosen(table("fig-dynamics"), "simsiam$").pop()
    settings = settings_of(row, changes, 0)
    plain = resolve(row.recipe, [*changes, "train.knn_every=0"], 0)
    assert folder_of(tmp_path, row, settings) == tmp_path / run_name(settings) == tmp_path / run_name(plain)
    pretrain(plain, tmp_path / run_name(plain), progress=False)
    other = folder_of(tmp_path, row, settings)
    assert other != tmp_path / run_name(plain)
    pretrain(settings, other, progress=False)
    assert folder_of(tmp_path, row, settings) == other
    assert "knn" in Run(other).metrics()[-1]


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without data, and a folder for the results."""
    monkeypatch.setenv("PRELAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("name", "only", "says"), [("tab1a", "", "no cifar10 files"), ("tab1b", "", "data.root is not set")]
)
def test_without_its_data_a_table_is_refused_once_and_at_the_start(
    name: str, only: str, says: str, nothing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--only", only, "-o", str(nothing)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == said.err.count(says) == 1
    assert not nothing.exists()


def two_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of which one row of three has its data."""
    import prelax.reproduce as module

    rows = [Row("digits", "digits/simsiam", "knn"), *(Row(f"cifar {i}", "cifar10/simsiam", "knn") for i in (1, 2))]
    monkeypatch.setattr(module, "table", lambda name: Table(name, "mixed", tuple(rows)))


def test_data_missing_for_some_rows_stop_no_others_and_are_named_once(
    nothing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_datasets(monkeypatch)
    assert main(["reproduce", "digits", *TOY, "-o", str(nothing)]) == 2
    said = capsys.readouterr()
    assert (said.out + said.err).count("no cifar10 files") == 1
    assert "failed, as above" in said.out
    assert "2 of 3 rows failed; why is said above" in said.err
    rows = json.loads((nothing / "digits.json").read_text())["rows"]
    assert [row["ours"] is not None for row in rows] == [True, False, False]
    assert all("no cifar10 files" in row["failure"] for row in rows[1:])


def test_a_table_that_is_finished_needs_its_data_no_more(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import prelax.data.missing as module

    first = reproduce("digits", TOY, nothing, only="simsiam$", progress=False)
    monkeypatch.setattr(module, "missing", lambda data: "gone")
    assert reproduce("digits", TOY, nothing, only="simsiam$", progress=False)["rows"] == first["rows"]
    with pytest.raises(PrelaxError, match="gone"):
        reproduce("digits", TOY, nothing, only="prelax-rot$", progress=False)
