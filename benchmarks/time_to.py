"""Wall-clock time to an accuracy without labels: everything from the command being typed to the probe that reaches it.

    python benchmarks/time_to.py OUT.json 90 RECIPE [KEY=VALUE ...] [--out RUN]

Runs ``prelax pretrain RECIPE`` with a kNN probe every few epochs (``train.knn_every``, 10 if not set) in a process of
its own and notes when each probe's line appeared: start of Python, reading the data, compiling and the probes are
included. The run is not stopped early: its schedule was made for its end, and the last figure is reported too.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    out, aim, recipe, *rest = sys.argv[1:]
    folder = Path(rest[rest.index("--out") + 1]) if "--out" in rest else Path(tempfile.mkdtemp()) / "run"
    changes = [word for word in rest if "=" in word]
    if not any(word.startswith("train.knn_every=") for word in changes):
        changes.append("train.knn_every=10")
    command = ["prelax", "pretrain", recipe, *changes]
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", *command, "--out", str(folder), "--quiet"])
    seen: list[dict[str, float]] = []
    while True:
        ended = process.poll() is not None
        now = time.perf_counter() - began
        path = folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        for line in [line for line in lines if "knn" in line][len(seen) :]:
            seen.append({"seconds": round(now, 2), "epoch": line["epoch"], "knn": line["knn"]})
            print(seen[-1], flush=True)
        if ended:
            break
        time.sleep(0.1)
    first = next((probe for probe in seen if probe["knn"] >= float(aim)), None)
    report = {
        "command": " ".join(word for word in command if not word.startswith("data.root=")),
        "aim": float(aim),
        "reached": first,
        "last": seen[-1] if seen else None,
        "seconds_in_all": round(time.perf_counter() - began, 2),
        "hardware": hardware(),
        "probes": seen,
        "exit": process.returncode,
    }
    Path(out).write_text(json.dumps(report, indent=1))
    print(json.dumps({key: report[key] for key in ("aim", "reached", "last", "seconds_in_all", "hardware")}))
    sys.exit(process.returncode)


def hardware() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


if __name__ == "__main__":
    main()
