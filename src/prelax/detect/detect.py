"""A detection run from start to scores: the loop, its checkpoints, and the files it leaves.

settings.json          what was asked, and of which data and weights
metrics.jsonl          a line an epoch: the loss and its terms, rate, images a second
checkpoint.pt          written whole or not at all, after an epoch once a minute, at the end and when interrupted
detector.safetensors   the trained detector, in torchvision's names
predictions.json       COCO results on the validation images, as pycocotools' loadRes takes them
predictions.png        a few of them, drawn
detection.json         AP, AP50, AP75, AR of boxes and masks, by category and of any, the loss curve, the settings
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import prelax
from prelax.detect.batches import Samples, Stream, addresses
from prelax.detect.coco import CocoSet, check_alike, pycocotools, read_coco, reasons
from prelax.detect.model import Start, detector, norm_of, onto, read_start
from prelax.detect.picture import draw_predictions
from prelax.detect.score import average_precision, predict, standard_error
from prelax.detect.settings import DetectSettings
from prelax.draws import Draws
from prelax.errors import PrelaxError, PrelaxWarning, first_line
from prelax.run import Run
from prelax.stamp import device_name, now
from prelax.tensors import plain, write_tensors
from prelax.train import choose_device
from prelax.train.devices import tf32
from prelax.train.pretrain import interruptible
from prelax.train.processes import Process, any_of, joined
from prelax.train.progress import SOON, Progress, looking
from prelax.whole import replacing, writing

CHANGEABLE = ("device", "workers", "score", "draws")  # on resume: they do not touch what is learnt
CHECKPOINTS = ("checkpoint.pt", "checkpoint.previous.pt")
RESULTS = ("detector.safetensors", "detection.json")
CHECKPOINT_SECONDS = 60  # at least between checkpoints: of a small set an epoch takes less than writing one


def detect(
    start: Start | Path | str,
    data: Path | str,
    out: Path | str,
    settings: DetectSettings | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains a detector on a COCO-format dataset, scores it, and gives the result that ``detection.json`` holds.

    Interrupted (Ctrl-C) it leaves a checkpoint and raises ``KeyboardInterrupt``; with ``resume`` it goes on from there.
    Under torchrun the batch is shared among the processes, and the first of them writes; the others give what they
    measured without scores.

    Args:
        start: ``random``, a run folder, a ``.safetensors`` file, or what ``read_start`` gave.
        data: holds the train and val splits (see ``read_coco``).
        out: the folder to write.
        progress: show a bar on a terminal; elsewhere a line now and then, on standard error.
    """
    pycocotools()
    settings = settings or DetectSettings()
    start = start if isinstance(start, Start) else read_start(start)
    train, val = (read_coco(data, split, settings.masks) for split in ("train", "val"))
    check_alike(train, val)
    train = train.with_objects()
    batch = min(settings.batch, len(train))  # the rate goes by what a step sees
    settings = replace(settings, norm=norm_of(settings, start), lr=settings.base_lr, batch=batch)
    with joined(settings.device) as process, tf32():
        device = choose_device(settings.device, process)
        folder = Run(out)
        about = {"start": origin(start), "data": identity(train, val), "settings": asdict(settings)}
        if resume:
            check_same(folder, about)
        elif process.writes:
            check_free(folder)
        began = time.perf_counter()
        trainer = Trainer(start, settings, train, device, process)  # refuses what cannot be, before a file is written
        if process.writes:
            with writing(folder.path):
                folder.path.mkdir(parents=True, exist_ok=True)
        with folder.lock() if process.writes else contextlib.nullcontext():
            if process.writes:
                if not resume:
                    begin(folder, about)
                note(folder, train, val)
            trainer.run(folder, resume, progress)
            trainer.agree()
            mine = len(range(process.rank, len(val), process.world))
            with looking(trainer.model, mine, progress and process.writes):
                found = predict(trainer.model, val, device, settings.decoders(process.world), process)
            result = summary(about, trainer, train, val, time.perf_counter() - began)
            if process.writes:
                finish(folder, result, trainer.model, val, found, settings.masks)
    return result


class Trainer:
    """A detector on a device, and how it changes.

    Every draw is addressed by the seed and the step: which images, which are mirrored, which anchors and proposals
    are sampled. So a run stopped anywhere goes on as if it had not been.
    """

    def __init__(
        self, start: Start, settings: DetectSettings, train: CocoSet, device: torch.device, process: Process
    ) -> None:
        self.settings, self.train, self.device, self.process = settings, train, device, process
        self.batch = settings.batch
        if self.batch % process.world:
            raise PrelaxError(f"a batch of {self.batch} images does not divide among {process.world} processes")
        self.steps = len(train) // self.batch
        self.total = self.steps * settings.epochs
        self.model = detector(start, settings, len(train.categories))
        if process.world > 1 and device.type == "cuda" and settings.norm == "trained":
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.model = onto(self.model, device, settings.precision)
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.SGD(
            self.weights, settings.peak_lr, settings.momentum, weight_decay=settings.weight_decay
        )
        self.done = 0  # steps taken
        self.sums: dict[str, float] = {}  # of the terms of the loss, over the epoch under way
        self.curve: list[dict[str, Any]] = []

    def run(self, folder: Run, resume: bool, progress: bool) -> None:
        """All epochs that are left."""
        if resume:
            self.restore(folder)
        module: nn.Module = self.model
        if self.process.world > 1:
            module = DistributedDataParallel(self.model)
        wanted = addresses(
            len(self.train),
            self.batch,
            self.settings.seed,
            range(self.done, self.total),
            self.process.rank,
            self.process.world,
        )
        decoders = self.settings.decoders(self.process.world)
        samples = Samples(self.train, self.settings.masks, self.settings.seed)
        stream = Stream(samples, wanted, decoders, self.device)
        devices = [self.device] if self.device.type == "cuda" else []
        shown = progress and self.process.writes
        bar = Progress(self.settings.epochs, self.steps, self.done // self.steps, shown, SOON)
        clock, first = time.perf_counter(), self.done
        saved = clock
        with torch.random.fork_rng(devices=devices), interruptible() as interrupted, bar:
            for images, targets in stream if self.done < self.total else ():
                self.step(module, images, targets)
                bar.step(self.done % self.steps or self.steps)
                if self.done % self.steps == 0:
                    seconds = time.perf_counter() - clock
                    line = self.close_epoch(seconds, (self.done - first) * self.batch / seconds)
                    clock, first = time.perf_counter(), self.done
                    if self.process.writes:
                        folder.log_metrics(line)
                        bar.epoch(line)
                    if self.process.writes and (self.done == self.total or clock - saved >= CHECKPOINT_SECONDS):
                        folder.save_checkpoint(self.state())
                        saved = time.perf_counter()
                # All stop at the same step, or those left would wait for ever.
                if any_of(self.process, interrupted()) and self.done < self.total:
                    self.sums = self.sums_of_all()  # the one that writes speaks for all
                    if self.process.writes:
                        folder.save_checkpoint(self.state())
                    raise KeyboardInterrupt

    def step(self, module: nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]]) -> None:
        """One step of SGD."""
        rate = self.settings.rate(self.done, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # torchvision samples anchors and proposals from the global generator.
        drawn = Draws(self.settings.seed, 1).at("detect", "sample", self.done, self.process.rank).bits("seed")
        torch.manual_seed(int(drawn.item()) & (2**63 - 1))
        module.train()
        terms: dict[str, Tensor] = module(images, targets)
        loss = torch.stack(list(terms.values())).sum()
        values = torch.stack([loss.detach(), *(term.detach() for term in terms.values())]).tolist()
        if not math.isfinite(values[0]):
            raise PrelaxError(
                f"the loss is {values[0]} at step {self.done + 1}; try a lower --lr than {self.settings.lr:g}"
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.settings.clip)
        self.optimizer.step()
        for name, value in zip(["loss", *(f"loss/{name}" for name in terms)], values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.done += 1

    def close_epoch(self, seconds: float, speed: float) -> dict[str, Any]:
        """The epoch's line: means over its steps and over all processes."""
        line: dict[str, Any] = {"epoch": self.done // self.steps}
        line |= {name: round(value / self.steps, 6) for name, value in self.sums_of_all().items()}
        line["lr"] = self.settings.rate(self.done - 1, self.total)
        self.curve.append(dict(line))  # without what differs from machine to machine
        self.sums = {}
        return line | {"seconds": round(seconds, 3), "images_per_s": round(speed, 2)}

    def sums_of_all(self) -> dict[str, float]:
        """The sums of the epoch under way, as their mean over all processes."""
        if self.process.world == 1:
            return self.sums
        sums = torch.tensor(list(self.sums.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return dict(zip(self.sums, (sums / self.process.world).tolist(), strict=True))

    def agree(self) -> None:
        """Gives all processes the first one's running statistics, which are the detector's that is kept."""
        if self.process.world > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)

    def state(self) -> dict[str, Any]:
        return {
            "detector": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.done,
            "sums": self.sums,
            "curve": self.curve,
        }

    def restore(self, folder: Run) -> None:
        """Goes to where the checkpoint was written; without one, to the beginning."""
        state = folder.load_checkpoint(self.device)
        if state is not None:
            for key in ("detector", "optimizer", "step", "sums", "curve"):
                if key not in state:
                    raise PrelaxError(f"{folder.path}/checkpoint.pt is not of a detection run (it has no {key!r})")
            self.model.load_state_dict(state["detector"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.done, self.sums, self.curve = state["step"], state["sums"], state["curve"]
        if self.process.writes:
            folder.rewind_metrics(self.done // self.steps)
            folder.log(f"resumed at step {self.done} of {self.total}")


def origin(start: Start) -> dict[str, Any]:
    """Where the weights came from."""
    return {
        "name": start.name,
        "weights": start.digest,
        "backbone": start.backbone,
        "stem": start.stem,
        "mean": list(start.mean),
        "std": list(start.std),
    }


def identity(train: CocoSet, val: CocoSet) -> dict[str, Any]:
    return {
        split.name: {"images": len(split), "objects": sum(map(len, split.objects)), "digest": split.digest}
        for split in (train, val)
    }


def check_free(folder: Run) -> None:
    """Refuses a folder with anything in it that a new run would write over.

    A detection run that came to no checkpoint is nothing to keep: it begins anew.
    """
    if (folder.path / "config.yaml").exists():
        raise PrelaxError(f"{folder.path} holds a pre-training run; choose another --out")
    if (folder.path / "settings.json").exists():
        read_settings(folder)
        if any((folder.path / name).exists() for name in (*CHECKPOINTS, *RESULTS)):
            raise PrelaxError(f"{folder.path} already holds a detection run; add --resume or choose another --out")
        return
    for name in (*CHECKPOINTS, *RESULTS, "metrics.jsonl"):
        if (folder.path / name).exists():
            raise PrelaxError(f"{folder.path} has a {name} of something else; choose another --out")


def begin(folder: Run, about: dict[str, Any]) -> None:
    """Writes what the run is, and forgets one that came to nothing."""
    check_free(folder)  # again, now that nobody else writes: another run may have come to its end meanwhile
    with writing(folder.path):
        (folder.path / "metrics.jsonl").unlink(missing_ok=True)
    folder.write("settings.json", json.dumps(about, indent=1) + "\n")


def read_settings(folder: Run) -> dict[str, Any]:
    """What ``settings.json`` says: the settings, and the digests of the data and of the weights."""
    file = folder.path / "settings.json"
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        return {
            "name": tree["start"]["name"],
            "settings": dict(tree["settings"]),
            "data": [part["digest"] for part in tree["data"].values()],
            "weights": {key: value for key, value in tree["start"].items() if key != "name"},
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise PrelaxError(f"{file} is not the settings of a detection run; choose another --out") from None


def check_same(folder: Run, about: dict[str, Any]) -> None:
    """Refuses to go on with a run that was another."""
    if not (folder.path / "settings.json").is_file():
        raise PrelaxError(f"{folder.path} holds no detection run to go on with")
    before, wanted = read_settings(folder), about["settings"]
    was = before["settings"]
    for key in wanted:
        if key not in CHANGEABLE and was.get(key) != wanted[key]:
            raise PrelaxError(f"{key} was {was.get(key)!r} in {folder.path} and cannot become {wanted[key]!r}")
    if before["weights"] != {key: value for key, value in about["start"].items() if key != "name"}:
        raise PrelaxError(f"{folder.path} began from {before['name']}, not from these weights")
    if before["data"] != [part["digest"] for part in about["data"].values()]:
        raise PrelaxError(f"the data are not those that {folder.path} began with; begin anew in another --out")


def note(folder: Run, train: CocoSet, val: CocoSet) -> None:
    """What was left out of the data, in the log."""
    for split in (train, val):
        if split.left_out:
            folder.log(f"{split.name}: left out {reasons(split.left_out)}")
        for what, why in split.left_out:
            folder.log(f"{split.name}: left out {what}: {why}")


def summary(about: dict[str, Any], trainer: Trainer, train: CocoSet, val: CocoSet, seconds: float) -> dict[str, Any]:
    """The result but for its scores."""
    settings = trainer.settings
    return {
        "protocol": "detection",
        "dataset": train.name.rpartition("/")[0],
        "model": settings.model,
        **about,
        "peak_lr": settings.peak_lr,
        "seeds": [settings.seed],
        "train_images": len(train),
        "val_images": len(val),
        "left_out": {"train": train.counts(), "val": val.counts()},
        "steps": trainer.total,
        "processes": trainer.process.world,
        "curve": trainer.curve,
        "device": device_name(trainer.device),
        "seconds": round(seconds, 1),
    }


def finish(
    folder: Run, result: dict[str, Any], model: nn.Module, val: CocoSet, found: list[dict[str, Any]], masks: bool
) -> None:
    """Scores, and everything that is written at the end."""
    draws = result["settings"]["draws"]
    for kind in ("box", "mask"):
        scored = kind == "box" or masks
        for name, any_class in ((kind, False), (f"{kind}_any_class", True)):
            result[name] = average_precision(val, found, kind, any_class) if scored else None
            spread = standard_error(val, found, kind, draws, any_class) if scored and draws else None
            result[f"{name}_standard_error"] = spread
    result["predictions"] = len(found)
    result |= {"date": now(), "prelax": prelax.__version__}
    target = folder.path / "detector.safetensors"
    with writing(target), replacing(target) as temporary:
        write_tensors(plain(model.state_dict()), temporary)
    folder.write("predictions.json", json.dumps(found))
    folder.write("detection.json", json.dumps(result, indent=1) + "\n")
    title = f"{result['model']} on {result['dataset']} from {Path(result['start']['name']).name}: "
    title += f"box AP {percent(result['box']['AP'])}" + (f", mask AP {percent(result['mask']['AP'])}" if masks else "")
    try:
        draw_predictions(val, found, folder.path / "predictions.png", title, masks=masks)
    except Exception as error:  # the scores are safe, and worth more than their picture
        said = f"{folder.path}/predictions.png was not drawn ({first_line(error)}); everything else is written"
        warnings.warn(said, PrelaxWarning, stacklevel=2)


def percent(value: float | None) -> str:
    """A score as the picture's title has it.

    >>> percent(31.26), percent(0.04), percent(None)
    ('31.3', '0.04', '–')
    """
    return "–" if value is None else f"{value:.{2 if value < 0.1 else 1}f}"
