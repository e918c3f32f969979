"""The paper's figures are written as PNG and SVG, a column wide, from what was measured."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from prelax.errors import PrelaxError, PrelaxWarning
from prelax.report import figures
from prelax.report.knowing import legend_columns, of_features
from prelax.report.rows import reverse_rows, sensitivity_rows
from prelax.report.style import COLUMN, WRONG, figure
from prelax.run import Run

AUGMENTATIONS = [
    {"augmentation": "none", "accuracy": 87.0},
    {"augmentation": "flip", "accuracy": 86.1, "std": 0.3},
    {"augmentation": "rotation", "accuracy": 41.7},
]


def is_a_column_wide(written: list[Path]) -> bool:
    png, svg = written
    width = Image.open(png).size[0]
    return (png.suffix, svg.suffix) == (".png", ".svg") and abs(width / 300 - COLUMN) < 0.02


def test_dynamics_shows_every_run_by_name(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / method, method) for method in ("simsiam", "prelax-rot")]
    written = figures.draw_dynamics(runs, tmp_path / "figures" / "dynamics.png")
    assert is_a_column_wide(written)
    text = written[1].read_text()
    assert "simsiam" in text
    assert "prelax-rot" in text
    assert "Residual norm" in text


def panels(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float]]:
    """The heights of each panel of a run's dynamics."""
    drawn: list[Figure] = []
    monkeypatch.setattr(
        figures, "figure", lambda *given: contextlib.nullcontext((drawn.append(Figure()) or drawn[-1], []))
    )
    figures.draw_dynamics([run], path)
    return {axes.get_title(): axes.get_ylim() for axes in drawn[0].axes}


def test_a_residual_norm_that_hardly_moves_does_not_touch_the_frame(
    run_folder: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_folder(tmp_path / "run")
    lines = [{**line, "residual_norm": 1.13 - line["epoch"] / 1000} for line in run.metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    heights = panels(run, tmp_path / "dynamics", monkeypatch)
    assert heights["Residual norm"] == pytest.approx((0.0, 1.08 * 1.129))


@pytest.mark.parametrize(("epochs", "lowest"), [(39, 10.0), (800, 70.0)])
def test_the_start_of_a_long_run_does_not_flatten_the_rest(
    run_folder: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int, lowest: float
) -> None:
    run, shown = run_folder(tmp_path / "run"), [1, epochs // 8, epochs // 8 + 1, epochs // 2, epochs]
    accuracy = dict(zip(shown, (10.0, 60.0, 70.0, 85.0, 90.0), strict=True))
    lines = [
        {"epoch": epoch, "loss": 1.0, "loss/sim": 2.0 if epoch == 1 else 0.3 - epoch / 10000, "knn": knn}
        for epoch, knn in accuracy.items()
    ]
    if epochs == 800:
        lines[1]["epoch"] = 99
    run.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    heights = panels(run, tmp_path / "dynamics", monkeypatch)
    room = 0.08 * (90.0 - lowest)
    assert heights["Accuracy"] == pytest.approx((lowest - room, 90.0 + room))
    assert (heights["Similarity loss"][1] > 2.0) == (epochs == 39)


def test_a_figure_drawn_twice_is_the_same_file(tmp_path: Path) -> None:
    one = figures.draw_bars(AUGMENTATIONS, tmp_path / "one")
    two = figures.draw_bars(AUGMENTATIONS, tmp_path / "two")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_bars_state_each_accuracy_and_the_reference(tmp_path: Path) -> None:
    written = figures.draw_bars(AUGMENTATIONS, tmp_path / "bars")
    assert is_a_column_wide(written)
    text = written[1].read_text()
    for said in ("rotation", "41.7", "86.1", "87.0"):
        assert said in text


def test_all_of_the_lowest_bars_are_marked_and_the_mark_is_explained(tmp_path: Path) -> None:
    level = [*AUGMENTATIONS, {"augmentation": "jigsaw", "accuracy": 41.7}]
    one, two = (figures.draw_bars(rows, tmp_path / "bars")[1].read_text() for rows in (AUGMENTATIONS, level))
    assert "orange: the lowest" in one
    assert two.lower().count(WRONG.lower()) == 2 * one.lower().count(WRONG.lower()) > 0


def test_sensitivity_has_a_panel_per_coefficient(tmp_path: Path) -> None:
    points = [
        {"method": method, "coefficient": name, "value": v / 4, "accuracy": 90 + v}
        for method in ("prelax-std", "prelax-rot")
        for name in ("alpha", "beta", "gamma")
        for v in range(5)
    ]
    written = figures.draw_sensitivity(points, tmp_path / "sensitivity")
    assert is_a_column_wide(written)
    assert "prelax-std" in written[1].read_text()


def test_reverse_compares_both_directions(tmp_path: Path) -> None:
    rows = [{"loss": "R2S", "normal": 92.2, "reverse": 92.5}, {"loss": "R3S", "normal": 92.4, "reverse": 80.0}]
    written = figures.draw_reverse(rows, tmp_path / "reverse")
    assert is_a_column_wide(written)
    assert "92.5" in written[1].read_text()


def test_retrieval_without_pictures_holds_none_and_needs_classes(
    run_folder: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    drawn = {}
    for pictures in (True, False):
        written = figures.draw("retrieval", [run.path], tmp_path / f"r{pictures}", pictures=pictures)
        assert is_a_column_wide(written)
        drawn[pictures] = next(path for path in written if path.suffix == ".svg").read_text()
    assert "<image" in drawn[True]
    assert "<image" not in drawn[False]
    found = figures.features_of(run, None, 0, "cpu")
    unlabelled = replace(found[0], labels=None)
    monkeypatch.setattr(figures, "features_of", lambda *given: (unlabelled, *found[1:]))
    with pytest.raises(PrelaxError, match="shows classes, and the images have none"):
        figures.draw("retrieval", [run.path], tmp_path / "none", pictures=False)


def test_tsne_and_retrieval_are_drawn_from_a_run(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    assert is_a_column_wide(figures.draw_tsne(run, tmp_path / "tsne", points=60))
    assert is_a_column_wide(figures.draw_retrieval(run.path, tmp_path / "retrieval", queries=3))


NETTE = "tench, English springer, cassette player, chain saw, church, French horn, garbage truck, gas pump, golf ball"


@pytest.mark.parametrize(
    "called", [[*NETTE.split(", "), "parachute"], [str(n) for n in range(10)], ["WWWWWWWWW MMMMMMMMM", "a", "b"] * 4]
)
def test_the_legend_of_a_map_stays_within_its_column(called: list[str], tmp_path: Path) -> None:
    with figure(3.0, tmp_path / "map") as (drawing, _):
        axes = drawing.subplots()
        for name in called:
            axes.scatter([0], [0], s=3, label=name)
        legend = drawing.legend(
            loc="outside lower center",
            ncols=legend_columns(called, most=4, mark=3.1),
            handletextpad=0.1,
            columnspacing=1.0,
        )
        drawing.draw_without_rendering()
        box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= drawing.bbox.x1


def test_residual_probe_puts_the_floor_beside_every_bar(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    with pytest.raises(PrelaxError, match="residual"):
        figures.draw_residual_probe([run], tmp_path / "probe")
    targets = {"rotation.turns": {"accuracy": 93.0, "floor": 40.0}, "crop.area": {"r2": -0.3, "floor": 20.0}}
    run.write_eval("residual", {"protocol": "residual", "dataset": "digits", "targets": targets})
    written = figures.draw_residual_probe([run], tmp_path / "probe")
    assert is_a_column_wide(written)
    assert "rotation.turns" in written[1].read_text()
    assert ">-0<" not in written[1].read_text()  # a share of -0.3 % is 0
    assert "features move" not in written[1].read_text()


def test_residual_probe_shows_how_far_features_move_in_shares_of_the_distance_between_images(
    run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    result = {
        "protocol": "residual",
        "targets": {"rotation.turns": {"accuracy": 93.0, "floor": 40.0}},
        "features": {"rotation.turns": {"accuracy": 61.0, "floor": 40.0}},
        "cosine_after": {"other images": 0.5, "rotation": 0.835},
    }
    run.write_eval("residual", result)
    drawn = figures.draw_residual_probe([run], tmp_path / "probe")[1].read_text()
    assert ">33<" in drawn  # 0.165 of 0.5
    assert "from features" in drawn


@pytest.mark.parametrize("rows", [[], [{"augmentation": "flip", "accuracy": float("nan")}], [{"accuracy": 3.0}]])
def test_nothing_to_draw_is_said_in_one_line(rows: list[dict], tmp_path: Path) -> None:
    with pytest.raises(PrelaxError, match="nothing to draw"):
        figures.draw_bars(rows, tmp_path / "bars")


def test_letters_that_no_font_has_are_told_in_one_line(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "日本", epochs=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        figures.draw_dynamics([run], tmp_path / "figure")
    assert {str(one.message)[:33] for one in told} == {"some letters of the names are in "}
    assert {one.category for one in told} == {PrelaxWarning}


def test_a_run_without_curves_is_refused(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=1)
    run.write("metrics.jsonl", "")
    with pytest.raises(PrelaxError, match="no curves"):
        figures.draw_dynamics([run], tmp_path / "dynamics")


def test_sensitivity_is_read_from_the_runs_of_a_sweep(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = []
    for alpha, gamma, accuracy in (
        (1.0, 0.1, 90.0),
        (0.5, 0.1, 92.0),
        (0.0, 0.1, 91.0),
        (1.0, 0.5, 80.0),
        (0.5, 0.5, 1.0),
    ):
        run = run_folder(
            tmp_path / f"{alpha}-{gamma}", epochs=1, pairs=(f"method.alpha={alpha}", f"method.gamma={gamma}")
        )
        run.write_eval("linear-digits", {"protocol": "linear", "dataset": "digits", "accuracy": accuracy})
        runs.append(run)
    told = {(row["coefficient"], row["value"]): row["accuracy"] for row in sensitivity_rows(runs)}
    held = {("alpha", 0.0): 91.0, ("alpha", 0.5): 92.0, ("alpha", 1.0): 90.0}  # not the run that differs twice
    assert held.items() <= told.items()
    assert not [key for key in told if key[0] == "beta"]
    assert is_a_column_wide(figures.draw("sensitivity", [run.path for run in runs], tmp_path / "figure"))


def test_reverse_is_read_from_runs_and_seeds_are_averaged(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = []
    for reverse, seed, accuracy in (("false", 0, 90.0), ("true", 0, 92.0), ("true", 1, 94.0)):
        run = run_folder(tmp_path / f"{reverse}-{seed}", "prelax-std", 1, (f"method.reverse={reverse}",), seed)
        run.write_eval("linear-digits", {"protocol": "linear", "dataset": "digits", "accuracy": accuracy})
        runs.append(run)
    (row,) = reverse_rows(runs)
    assert (row["loss"], row["normal"], row["reverse"]) == ("prelax-std", 90.0, 93.0)
    assert row["reverse_std"] == pytest.approx(2**0.5)
    with pytest.raises(PrelaxError, match="reverse"):
        reverse_rows(runs[:1])
    weighted = run_folder(tmp_path / "weighted", "prelax-std", 1, ("method.reverse=true", "method.gamma=0.7"))
    with pytest.raises(PrelaxError, match=r"differ in more than method\.reverse"):
        reverse_rows([*runs, weighted])


def test_runs_are_compared_by_one_protocol_or_not_at_all(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / f"{g}", epochs=1, pairs=(f"method.gamma={g}",), seed=i) for i, g in enumerate((0.1, 0.5))
    ]
    (runs[1].path / "eval" / "linear-digits.json").unlink()
    for run in runs:  # a transfer, which is not what such a figure is of
        run.write_eval("linear-a", {"protocol": "linear", "dataset": "a", "accuracy": 50.0})
    told = {row["value"]: row["accuracy"] for row in sensitivity_rows(runs) if row["coefficient"] == "gamma"}
    assert told == {0.1: 96.0, 0.5: 95.0}  # kNN, which both have, though one has linear
    for name in ("knn-digits", "linear-a"):
        (runs[1].path / "eval" / f"{name}.json").unlink()
    with pytest.raises(PrelaxError, match="no measurement in common"):
        sensitivity_rows(runs)
    longer = run_folder(tmp_path / "longer", epochs=2, pairs=("method.gamma=0.5",))
    with pytest.raises(PrelaxError, match=r"differ in train\.epochs \(1, 2\)"):
        sensitivity_rows([runs[0], longer])
    other = run_folder(tmp_path / "other", epochs=1, pairs=("method.gamma=0.5", "train.optimizer=sgd"))
    with pytest.raises(PrelaxError, match=r"differ in train\.optimizer \(muon, sgd\)"):
        sensitivity_rows([runs[0], other])
    for change, said in (
        ("train.lr=3", "train.lr"),
        ("data.limit=9", "data.limit"),
        ("augment.flip=0.5", "augment.flip"),
    ):
        other = run_folder(tmp_path / said, epochs=1, pairs=("method.gamma=0.5", change))
        with pytest.raises(PrelaxError, match=rf"differ in {said} "):
            sensitivity_rows([runs[0], other])
    elsewhere = run_folder(tmp_path / "elsewhere", epochs=1, pairs=("method.gamma=0.5", "train.device=cpu"))
    assert len(sensitivity_rows([runs[0], elsewhere])) == 2  # where it ran is no matter


def test_an_axis_names_the_measurement(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = []
    for reverse, accuracy in (("false", 90.0), ("true", 92.0)):
        run = run_folder(tmp_path / reverse, "prelax-std", 1, (f"method.reverse={reverse}",))
        for path in (run.path / "eval").glob("*.json"):
            path.unlink()
        run.write_eval("knn", {"protocol": "knn", "dataset": "digits", "accuracy": accuracy})
        runs.append(run)
    assert "kNN accuracy (%)" in figures.draw("reverse", [run.path for run in runs], tmp_path / "a")[1].read_text()
    for run in runs:
        run.write_eval("logistic", {"protocol": "logistic", "dataset": "digits", "accuracy": 95.0})
    assert "kNN accuracy (%)" in figures.draw("reverse", [run.path for run in runs], tmp_path / "b")[1].read_text()
    for run in runs:
        (run.path / "eval" / "knn.json").unlink()
    assert "logistic accuracy (%)" in figures.draw("reverse", [run.path for run in runs], tmp_path / "b")[1].read_text()
    (tmp_path / "rows.json").write_text('[{"loss": "R2S", "normal": 90, "reverse": 91}]')
    assert "linear accuracy (%)" in figures.draw("reverse", [tmp_path / "rows.json"], tmp_path / "c")[1].read_text()


def test_only_seeds_are_averaged_over(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    pairs = [("method.gamma=0.1",), ("method.gamma=0.5",), ("method.gamma=0.5", "method.pl_anchor=none")]
    runs = [run_folder(tmp_path / str(n), epochs=1, pairs=several) for n, several in enumerate(pairs)]
    assert len(sensitivity_rows(runs[:2])) == 2
    with pytest.raises(PrelaxError, match="prelax-rot runs of alpha 1 differ in more than the seed"):
        sensitivity_rows(runs)
    again = run_folder(tmp_path / "again", epochs=1, pairs=pairs[0])
    with pytest.raises(PrelaxError, match=r"0 and \S*again are one run twice"):
        sensitivity_rows([*runs[:2], again])


def test_rows_without_a_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"method": "a", "coefficient": "gamma", "accuracy": 90}]')
    with pytest.raises(PrelaxError, match="a finite 'value'"):
        figures.draw("sensitivity", [tmp_path / "rows.json"], tmp_path / "figure")


def test_every_figure_can_be_asked_for_by_name(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"rows": AUGMENTATIONS}))
    assert is_a_column_wide(figures.draw("dynamics", [run.path], tmp_path / "a"))
    assert is_a_column_wide(figures.draw("augmentations", [rows], tmp_path / "b"))
    for name, inputs, said in (
        ("dynamic", [run.path], "did you mean dynamics"),
        ("tsne", [run.path, run.path], "of one run"),
        ("dynamics", [], "needs something to draw"),
        ("augmentations", [tmp_path / "none.json"], "cannot read"),
        ("augmentations", [run.path / "config.yaml"], "not JSON"),
        ("sensitivity", [run.path], "sweep"),
    ):
        with pytest.raises(PrelaxError, match=said):
            figures.draw(name, inputs, tmp_path / "c")


def test_rings_and_bars_are_of_the_same_images() -> None:
    own = {"targets": {"rotation": {"accuracy": 80.0}}, "features": {"rotation": {"accuracy": 90.0}}}
    other = {"targets": {"rotation": {"accuracy": 20.0}}, "features": {"rotation": {"accuracy": 10.0}}}
    assert of_features({"residual": own, "residual-photos": other}) == {"rotation": 90.0}
