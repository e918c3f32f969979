"""Files what a campaign measured under results/: python benchmarks/keep.py OUT NN-name [RESULTS]

OUT is the folder benchmarks/campaign.py wrote. Every run of OUT/runs.jsonl that results/runs.jsonl lacks gets its line
there and its settings, metrics and evaluations under results/raw/NN-name/, without the paths of the machine.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import yaml


def keep(out: Path, series: str, results: Path) -> list[str]:
    lines = results / "runs.jsonl"
    known = {json.loads(text)["name"] for text in lines.read_text().splitlines()} if lines.exists() else set()
    added = []
    for text in (out / "runs.jsonl").read_text().splitlines():
        line = json.loads(re.sub(r"(?<=[\s\"])/\S*/runs/", "RUNS/", text))  # what stopped a run names its folder
        if line["name"] in known:
            continue
        run, raw = out / "runs" / line["name"], results / "raw" / series / line["name"]
        raw.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["data"]["root"] = None
        (raw / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        for path in [run / "metrics.jsonl", *sorted((run / "eval").glob("*.json"))]:
            shutil.copy(path, raw / path.name)
        with open(lines, "a") as file:
            file.write(json.dumps({**line, "raw": f"raw/{series}/{line['name']}"}) + "\n")
        known.add(line["name"])
        added.append(line["name"])
    return added


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    print(*keep(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3] if len(sys.argv) == 4 else "results")), sep="\n")
