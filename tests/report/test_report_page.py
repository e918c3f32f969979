"""The page: one file that opens with no network, says everything it should, and breaks on nothing it is given."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import yaml

from prelax.config import resolve
from prelax.data import ImageSet
from prelax.doctor import examine_run
from prelax.errors import PrelaxError
from prelax.report import report
from prelax.report.gather import charts
from prelax.report.page import PICTURED
from prelax.run import Run
from prelax.train import pretrain

VOID = {"meta", "link", "br", "img", "line", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements nest, and remembers ids, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.data = ""
        self.in_data = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attributes)
        self.ids |= {found["id"]} if found.get("id") else set()
        self.links += [value for key in ("src", "href", "action", "srcset") if (value := found.get(key))]
        self.in_data = found.get("id") == "page-data"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.in_data:
            self.data += data
            self.in_data = False
        elif self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert not reader.open, f"left open: {reader.open}"
    return reader


def test_one_run_gives_a_page_with_every_section(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    targets = {"rotation.turns": {"accuracy": 93.0, "floor": 40.0}}
    run.write_eval("residual", {"protocol": "residual", "dataset": "digits", "targets": targets})
    path = report([run.path], points=80)
    assert path == run.path / "report.html"
    reader = read(path)
    assert {"overview", "results", "curves", "residual", "map", "views", "settings"} <= reader.ids
    text = " ".join(reader.text)
    for said in ("97.9", "random backbone 91.2", "± 0.21 over 3 seeds", "Residual norm", "rotation.turns", "clockwise"):
        assert said in text
    data = json.loads(reader.data)
    assert [len(atlas["labels"]) for atlas in data["atlases"]] == [80]
    assert "Left out" not in text


def test_the_page_asks_the_network_for_nothing(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    path = report([run_folder(tmp_path / "run").path], points=30)
    reader = read(path)
    assert all(link.startswith(("data:", "#")) for link in reader.links)
    html = path.read_text()
    assert "default-src 'none'" in html
    addresses = set(
        re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", re.sub(r"base64,[\w+/=]*|[\w+/=]{200,}", "", html))
    )
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not a place
    for word in ("@import", "fetch(", "XMLHttpRequest", "WebSocket", "import("):
        assert word not in html


def test_runs_are_compared_side_by_side(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / m, m, seed=s) for s, m in enumerate(("simsiam", "prelax-rot"))]
    reader = read(report([run.path for run in runs], tmp_path / "out" / "both.html", points=40))
    data = json.loads(reader.data)
    assert data["runs"] == ["simsiam", "prelax-rot"]
    assert len(data["atlases"]) == 2
    assert len(data["sprites"]) == 1  # the same images are packed once
    assert {"map-0", "map-1", "views-0", "views-1"} <= reader.ids
    assert {line["run"] for line in data["charts"][0]["lines"]} == {0, 1}


def test_the_same_runs_give_the_same_page(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=3)
    pages = [report([run.path], tmp_path / name, points=40).read_text() for name in ("one.html", "two.html")]
    one, two = (re.sub(r"on \d{4}-\d\d-\d\d \d\d:\d\d", "", page) for page in pages)
    assert one == two


def test_hostile_names_stay_text(
    run_folder: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prelax.data

    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028"
    run = run_folder(tmp_path / '<b>run & "co"', epochs=2)
    run.write_eval("x", {"protocol": evil, "dataset": evil, "accuracy": 1.0, "settings": {evil: evil}})
    run.log_metrics({"epoch": 3, "loss": 1.0, evil: 2.0})

    def load(settings: object, split: str) -> ImageSet:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (30, 1, 16, 16), dtype=torch.uint8, generator=generator)
        return ImageSet("evil", images, torch.arange(30) % 2, [evil, "b"], [f"{evil}/{evil}{i}" for i in range(30)])

    monkeypatch.setattr(prelax.data, "load", load)
    path = report([run.path], tmp_path / "page.html", points=20)
    reader = read(path)
    assert reader.tags.count("script") == 2
    assert all(link.startswith(("data:", "#")) for link in reader.links)
    html = path.read_text()
    assert "<img src=x" not in html
    assert "<script>alert" not in html
    assert '<b>run & "co"' not in html
    assert json.loads(reader.data)["atlases"][0]["classes"][0] == evil


def test_unlabelled_images_are_mapped_without_right_and_wrong(
    run_folder: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prelax.data

    images = torch.randint(256, (25, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(prelax.data, "load", lambda settings, split: ImageSet("photos", images, None, []))
    reader = read(report([run_folder(tmp_path / "run", epochs=2).path], points=500))
    atlas = json.loads(reader.data)["atlases"][0]
    assert atlas["labels"] == [-1] * 25
    assert "share the label" not in " ".join(reader.text)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_handful_of_images_is_enough(
    count: int, run_folder: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prelax.data

    images = torch.randint(256, (count, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labelled = ImageSet("few", images, torch.zeros(count, dtype=torch.int64), ["one"])
    monkeypatch.setattr(prelax.data, "load", lambda settings, split: labelled)
    reader = read(report([run_folder(tmp_path / "run", epochs=2).path]))
    assert len(json.loads(reader.data)["atlases"][0]["labels"]) == count


def test_data_that_moved_away_is_said_and_the_rest_is_written(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    tree = yaml.safe_load((run.path / "config.yaml").read_text())
    tree["data"] |= {"source": "folder", "root": str(tmp_path / "gone")}
    run.write("config.yaml", yaml.safe_dump(tree))
    text = " ".join(read(report([run.path])).text)
    assert "Left out of this page" in text
    assert "gone" in text
    assert "97.9" in text


def test_a_run_without_weights_still_has_its_curves(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    (run.path / "backbone.safetensors").unlink()
    reader = read(report([run.path], points=20))
    assert "no backbone yet" in " ".join(reader.text)
    assert json.loads(reader.data)["charts"]


def test_a_run_that_has_only_begun_is_shown(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    run.write("metrics.jsonl", "")
    for path in (run.path / "eval").glob("*.json"):
        path.unlink()
    text = " ".join(read(report([run.path], points=0)).text)
    assert "Not evaluated yet" in text
    assert "0 of 2" in text


def test_values_that_are_not_finite_become_gaps(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=1)
    run.log_metrics({"epoch": 2, "loss": math.nan, "loss/sim": math.inf, "residual_norm": 0.5, "knn": None})
    run.write_eval("bad", {"protocol": "linear-bad", "dataset": "digits", "accuracy": math.nan, "floor": math.inf})
    data = json.loads(read(report([run.path], points=0)).data)
    found = {chart["summary"].split(":")[0]: chart["lines"][0]["values"] for chart in data["charts"]}
    assert found["Similarity loss"][1] is None
    assert found["Residual norm"][1] == 0.5


def test_points_must_fit_the_map(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=1)
    with pytest.raises(PrelaxError, match="points"):
        report([run.path], points=100_000)
    with pytest.raises(PrelaxError, match="no run"):
        report([])
    with pytest.raises(PrelaxError, match="no run folder"):
        report([tmp_path / "nowhere"])


def test_a_page_that_cannot_be_written_says_so_in_a_line(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(PrelaxError, match="cannot write"):
        report([run.path], tmp_path / "file" / "page.html", points=0)


def test_what_the_doctor_says_is_on_the_page(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    run.log_metrics({**run.metrics()[-1], "epoch": 3, "loss": math.nan})
    text = " ".join(read(report([run.path], points=0)).text)
    wrong = [finding for finding in examine_run(run.path) if not finding.fine]
    assert wrong
    assert all(finding.found in text for finding in wrong)


def test_only_the_first_runs_have_maps_when_there_are_many(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / f"run-{i}", "simsiam", epochs=2, seed=i) for i in range(PICTURED + 1)]
    reader = read(report([run.path for run in runs], tmp_path / "page.html", points=12))
    data = json.loads(reader.data)
    assert len(data["runs"]) == PICTURED + 1
    assert len(data["atlases"]) == PICTURED
    assert f"run-{PICTURED}: the first {PICTURED} runs have them" in " ".join(reader.text)
    looks = [(index % 8, dash) for index, dash in enumerate(data["dashes"])]  # colour and dashes of each curve
    assert len(set(looks)) == len(looks)


def test_curves_are_told_by_the_names_of_their_runs(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / name, "simsiam", epochs=2, seed=i).path for i, name in enumerate(("ten", "two"))]
    both, alone = (json.loads(read(report(some, tmp_path / "page.html", points=0)).data) for some in (runs, runs[:1]))
    for chart in both["charts"]:
        assert chart["summary"].startswith(chart["summary"].split(":")[0] + ": ten from ")
        assert "; two from " in chart["summary"]
    assert all(": from " in chart["summary"] for chart in alone["charts"])


def test_a_map_of_some_images_says_of_how_many(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", epochs=2)
    assert "12 of 500 images shown" in " ".join(read(report([run.path], points=12)).text)


def test_a_run_that_is_named_twice_is_shown_once(run_folder: Callable[..., Run], tmp_path: Path) -> None:
    one, two = (run_folder(tmp_path / name, epochs=2) for name in ("one", "two"))
    page = report([one, tmp_path / "two", two.path / ".." / "one"], tmp_path / "page.html", points=0)
    assert "<title>one and two" in page.read_text()


@pytest.mark.parametrize("method", ["simsiam", "prelax-rot"])
def test_of_the_views_it_is_told_how_they_were_made_and_not_what_reads_it(
    method: str, run_folder: Callable[..., Run], tmp_path: Path
) -> None:
    page = report([run_folder(tmp_path / "run", method)], points=0).read_text()  # a residual, an embedding or nothing
    assert "how each view was made." in page
    assert "residual has to tell" not in page


def test_every_curve_that_training_logs_has_a_caption(tmp_path: Path) -> None:
    settings = resolve("digits/prelax-all", ["train.epochs=1", "data.limit=64", "train.batch_size=32"])
    run = pretrain(settings, tmp_path / "run", progress=False)
    _, rest = charts([run.metrics()], [{}])
    assert {"views_per_s", "data_wait", "loss/pl"} <= {chart.key for chart in rest}
    assert all(chart.caption for chart in rest)


def test_a_run_without_the_papers_curves_shows_its_loss() -> None:
    supervised = [{"epoch": epoch, "loss": 2 / epoch, "loss/classify": 2 / epoch, "lr": 0.1} for epoch in (1, 2)]
    first, rest = charts([supervised], [{}])
    assert [chart.key for chart in first] == ["loss"]
    assert [chart.key for chart in rest] == ["loss/classify", "lr"]
    both, _ = charts([supervised, [{"epoch": 1, "loss": 1.0, "loss/sim": 1.0}]], [{}, {}])
    assert [chart.key for chart in both] == ["loss/sim"]
