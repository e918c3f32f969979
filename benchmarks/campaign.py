"""Trains and evaluates a list of runs on one machine and keeps one line for each.

    python benchmarks/campaign.py PLAN.yaml OUT [--lanes 2] [--minutes 25] [--data ROOT] [--commit HASH] [--only NAME]

PLAN is a list of runs: ``name``, ``recipe``, ``set`` (settings), ``seed``, ``protocols``, ``note``. Every run is made
by the product's own commands, and evaluated while the next one starts. Finished runs add a line to OUT/runs.jsonl;
OUT/runs.tar.gz holds the settings, metrics and evaluations of all of them (no weights). A run that fails is a line too.
Runs not begun when the minutes are over are left for another time. With ``--warm`` what the next run needs is compiled
while this one trains (of CIFAR-10, by compiling.py beside this file).

``least: {100: 72.5}`` gives a run up whose kNN accuracy after 100 epochs is under 72.5: it is stopped, is a line, and
is not evaluated. ``after: NAME`` is a run made only if NAME, before it in the plan, was given up (with one lane).
"""

import argparse
import contextlib
import datetime
import json
import os
import queue
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml


def call(command: list[str], log: Path) -> tuple[int, str]:
    """Exit code and standard output of a command; its other output goes to a log."""
    with open(log, "a") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    return done.returncode, done.stdout


def watch(command: list[str], log: Path, metrics: Path, least: dict[int, float]) -> tuple[int, str]:
    """Exit code of a training, and why it was given up where its kNN accuracy was under what the plan asks."""
    with open(log, "a") as errors, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as training:
        while training.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(5 if least else None)
            for row in rows(metrics):
                if row.get("knn", 100.0) < least.get(row["epoch"], 0.0):
                    training.terminate()
                    training.wait()
                    return 0, f"kNN {row['knn']} after epoch {row['epoch']}, under {least[row['epoch']]}"
    return training.returncode, ""


def rows(metrics: Path) -> list[dict[str, Any]]:
    """The epochs a run has written; its last line may be half there."""
    return [json.loads(text) for text in read(metrics).splitlines(keepends=True) if text.endswith("\n")]


def hardware() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"


def places(item: dict[str, Any], out: Path) -> tuple[Path, Path]:
    """Where a run goes, and what its commands say."""
    return out / "runs" / item["name"], out / "logs" / f"{item['name']}.txt"


def train(item: dict[str, Any], out: Path, data: str | None, commit: str | None) -> dict[str, Any]:
    """One run of the plan, trained, as its line."""
    folder, log = places(item, out)
    pairs = changes(item)
    root = [f"data.root={data}"] if data else []
    seed = str(item.get("seed", 0))
    shown = ["prelax", "pretrain", item["recipe"], *pairs, "--seed", seed]
    began = time.perf_counter()
    again = ["--resume"] if (folder / "config.yaml").exists() else []
    command = [sys.executable, "-m", *shown, *root, "--out", str(folder), "--quiet", *again]
    code, given_up = watch(command, log, folder / "metrics.jsonl", item.get("least", {}))
    trained = time.perf_counter() - began
    line: dict[str, Any] = {
        "name": item["name"],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "command": " ".join(shown),
        "seed": int(seed),
        "hardware": hardware(),
        "note": item.get("note", ""),
    }
    metrics = rows(folder / "metrics.jsonl")
    config = yaml.safe_load(read(folder / "config.yaml") or "{}")
    if config:
        line |= {
            "dataset": config["data"]["source"],
            "base": config["method"]["base"],
            "method": config["method"]["name"],
        }
        line |= {"backbone": config["model"]["backbone"], "epochs": config["train"]["epochs"]}
    if metrics:
        last = metrics[-1]
        speed = sorted(m["views_per_s"] for m in metrics)[len(metrics) // 2]
        line |= {"epochs_done": last["epoch"], "views_per_s": round(speed), "last": last}
    line["minutes"] = round(trained / 60, 2)
    if given_up:
        line["given_up"] = given_up
    elif code != 0:
        line["failed"] = (read(log).strip().splitlines() or ["no output"])[-1]
    return line


def changes(item: dict[str, Any]) -> list[str]:
    """A run's settings, as the commands take them."""
    return [f"{key}={'null' if value is None else value}" for key, value in item.get("set", {}).items()]


@contextlib.contextmanager
def warming(following: dict[str, Any] | None, item: dict[str, Any], out: Path) -> Iterator[None]:
    """While a run trains: what the following one will compile, from when this one has, into the cache of both."""
    if following is None:
        yield
        return
    over = threading.Event()

    def work() -> None:
        while not read(places(item, out)[0] / "metrics.jsonl"):  # it compiles in its first epoch
            if over.wait(1):
                return
        script, into = Path(__file__).with_name("compiling.py"), out / "logs" / f"{following['name']}-compiling"
        with open(f"{into}.txt", "w") as said:
            command = [sys.executable, str(script), f"{into}.json", following["recipe"], *changes(following)]
            with subprocess.Popen(command, stdout=said, stderr=said) as compiling:
                while compiling.poll() is None:
                    if over.wait(1):
                        compiling.kill()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def evaluate(item: dict[str, Any], line: dict[str, Any], out: Path) -> None:
    """Measures a run that was trained, and writes its line."""
    folder, log = places(item, out)
    if "failed" not in line and "given_up" not in line:
        began = time.perf_counter()
        protocols = ",".join(item.get("protocols", ["knn", "linear-fast"]))
        command = [sys.executable, "-m", "prelax", "evaluate", str(folder), "--protocol", protocols, "--json"]
        code, said = call(command, log)
        for path in sorted((folder / "eval").glob("*.json")):
            result = json.loads(path.read_text())
            line[path.stem.replace("-", "_")] = result.get("accuracy")
        line["minutes_with_evaluation"] = round(line["minutes"] + (time.perf_counter() - began) / 60, 2)
        if code != 0:
            line["failed"] = "evaluation: " + (read(log).strip().splitlines() or [said])[-1]
    with open(out / "runs.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    pack(out)
    print(json.dumps({k: v for k, v in line.items() if k not in ("last", "note", "date")}), flush=True)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def pack(out: Path) -> None:
    """All that is small about every run, as one file."""
    temporary = out / ".runs.tar.gz"
    with tarfile.open(temporary, "w:gz") as archive:
        for path in sorted((out / "runs").glob("*/*")) + sorted((out / "runs").glob("*/eval/*.json")):
            if path.is_file() and path.suffix in (".yaml", ".jsonl", ".json", ".txt", ".npz", ".html"):
                archive.add(path, path.relative_to(out / "runs"))
    temporary.replace(out / "runs.tar.gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--data")
    parser.add_argument("--commit")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--warm", action="store_true")
    asked = parser.parse_args()
    deadline = time.monotonic() + 60 * asked.minutes
    for name in ("runs", "logs"):
        (asked.out / name).mkdir(parents=True, exist_ok=True)
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()
    for item in yaml.safe_load(asked.plan.read_text()):
        if not asked.only or item["name"] in asked.only:
            waiting.put(item)

    def lane() -> None:
        while time.monotonic() < deadline:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            if item.get("after") not in (None, *given_up):
                continue
            following = next((i for i in list(waiting.queue) if "after" not in i), None) if asked.warm else None
            with warming(following, item, asked.out):
                line = train(item, asked.out, asked.data, asked.commit)
            if "given_up" in line:
                given_up.add(item["name"])
            judged.append(judge.submit(evaluate, item, line, asked.out))

    judged: list[Future[None]] = []
    given_up: set[str] = set()
    with ThreadPoolExecutor(1) as judge:  # one at a time: they write the same files
        lanes = [threading.Thread(target=lane) for _ in range(asked.lanes)]
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()
    for done in judged:
        done.result()  # what went wrong in it is said


if __name__ == "__main__":
    main()
