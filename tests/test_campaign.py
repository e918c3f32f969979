"""A list of runs under watch: benchmarks/campaign.py gives up what its plan says and makes what stands in its place."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import yaml

from prelax.config import resolve

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "campaign.py"
TINY = {"train.epochs": 2, "train.knn_every": 1, "data.limit": 64, "train.batch_size": 32, "train.watch": "none"}


def test_every_planned_run_can_still_be_made() -> None:
    specification = importlib.util.spec_from_file_location("campaign", CAMPAIGN)
    assert specification is not None
    assert specification.loader is not None
    campaign = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(campaign)
    plans = sorted((CAMPAIGN.parents[1] / "results" / "plans").glob("*.yaml"))
    runs = [run for plan in plans for run in yaml.safe_load(plan.read_text()) if "recipe" in run]
    assert len(runs) > 200
    for run in runs:
        resolve(run["recipe"], campaign.changes(run))


def test_a_run_under_what_its_plan_asks_is_given_up_and_the_next_takes_its_place(tmp_path: Path) -> None:
    plan = [
        {"name": "poor", "recipe": "digits/simsiam", "set": {**TINY, "train.epochs": 500}, "least": {1: 101}},
        {
            "name": "instead",
            "recipe": "digits/simsiam",
            "set": {**TINY, "data.workers": None},
            "protocols": ["knn"],
            "after": "poor",
        },
        {"name": "never", "recipe": "digits/simsiam", "set": TINY, "protocols": ["knn"], "after": "instead"},
    ]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    command = [sys.executable, str(CAMPAIGN), str(tmp_path / "plan.yaml"), str(tmp_path), "--lanes", "1"]
    subprocess.run(command, check=True)
    poor, instead = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    assert poor["name"] == "poor"
    assert poor["given_up"].endswith("after epoch 1, under 101")
    assert poor["epochs_done"] < 500
    assert "failed" not in poor
    assert "knn" not in poor
    assert instead["name"] == "instead"
    assert instead["epochs_done"] == 2
    assert "given_up" not in instead
    assert 0 < instead["knn"] <= 100
    assert "data.workers=null" in instead["command"]
