"""A look at this machine, and at a run that went wrong: what was found, and what to do about it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prelax
from prelax.errors import PrelaxError, PrelaxWarning

EXTRAS = {
    "timm": "timm backbones",
    "pycocotools": "detection on COCO",
    "faiss": "search in large sets",
    "pyarrow": "`prelax embed` to parquet",
    "webdataset": "shards",
    "h5py": "HDF5 files of images",
    "tensorboard": "logs",
    "onnx": "`prelax export --to onnx`",
    "kornia": "`prelax bench augment` beside kornia",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; what was found says what to do when it is not fine."""

    fine: bool
    what: str
    found: str
    curves: Mapping[str, float | None] = field(default_factory=dict)  # metrics that show it, and where the limit is


def environment() -> dict[str, str]:
    """Versions and hardware, as one would put them into a bug report."""
    import torch
    import torchvision

    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "prelax": prelax.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "cuda": str(torch.version.cuda) if devices else "no device",
        "devices": ", ".join(devices) or "cpu",
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "extras": ", ".join(name for name in EXTRAS if importlib.util.find_spec(name)) or "none",
    }


def examine_machine() -> list[Finding]:
    """Whether this machine can train, and what it lacks."""
    import torch

    found = [Finding(sys.version_info >= (3, 11), "python", platform.python_version())]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            found.append(
                Finding(free > 2**30, f"cuda:{index}", f"{name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
            )
    else:
        said = "none: everything runs on the CPU; long recipes (cifar10, imagenette) need a GPU"
        found.append(Finding(True, "cuda", said))
    found.append(works_on(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    room = shutil.disk_usage(Path.cwd()).free / 2**30
    found.append(Finding(room > 2, "disk here", f"{room:.0f} GiB free" + ("" if room > 2 else ": make room")))
    found.append(writable(Path.cwd()))
    for module, use in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        found.append(Finding(True, module, f"for {use}" if there else f"not installed (for {use})"))
    return found


def works_on(device: Any) -> Finding:
    """A step of training on the device, for real."""
    import torch

    try:
        from prelax.nets import backbone

        net = backbone("resnet8", channels=1, image_size=16).to(device)
        net(torch.zeros(4, 1, 16, 16, device=device)).square().mean().backward()
    except Exception as error:
        return Finding(False, f"a step on {device}", f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return Finding(True, f"a step on {device}", "works")


def writable(folder: Path) -> Finding:
    fine = os.access(folder, os.W_OK)
    return Finding(fine, "runs here", "can be written" if fine else f"{folder} cannot be written: use --out")


def examine_run(path: Path | str) -> list[Finding]:
    """The health of a run: is it whole, did it finish, and does its training look like training."""
    from prelax.run import Run
    from prelax.tensors import read_checkpoint

    try:
        run = Run.open(path)
        settings, metrics = run.settings, run.metrics()
    except PrelaxError as error:
        return [Finding(False, "run", str(error))]
    found = [Finding(True, "run", f"{settings.recipe}, {settings.method.name}, seed {settings.seed}")]
    last = metrics[-1] if metrics else {}
    done, epochs = int(last.get("epoch", 0)), settings.train.epochs
    go_on = f"; go on with `prelax pretrain {shlex.quote(str(run.path))} --resume`"
    found.append(Finding(done >= epochs, "epochs", f"{done} of {epochs}" + ("" if done >= epochs else go_on)))
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        if (run.path / name).exists():
            try:
                state = read_checkpoint(run.path / name)
                found.append(Finding(True, name, f"whole, epoch {state.get('epoch', '?')}"))
            except PrelaxError as error:
                found.append(Finding(False, name, str(error)))
    try:
        with warnings.catch_warnings(action="ignore"):  # how far it came is said above
            run.load_backbone()
        found.append(Finding(True, "backbone", "that of the last checkpoint" if run.unfinished else "can be read"))
    except PrelaxError as error:
        found.append(Finding(False, "backbone", str(error)))
    from prelax.evaluate.curves import diagnose, forgot, unlearnt

    root = settings.data.root
    if root is not None and not root.expanduser().exists():
        moved = f"`prelax pretrain {shlex.quote(str(run.path))} --resume data.root=FOLDER` says where they are now"
        found.append(Finding(False, "images", f"{root} is not there; {moved}"))
    images = run.trained_on().get("images")
    found += diagnose(metrics, settings, images if isinstance(images, int) else None)
    try:
        measured = run.evals()
        found += [said for said in (unlearnt(measured), forgot(measured, settings)) if said is not None]
    except PrelaxError as error:
        found.append(Finding(False, "eval", str(error)))
    return found


def draw_findings(path: Path | str, findings: Sequence[Finding]) -> list[Path]:
    """The curves that show what is wrong with a run, in ``RUN/doctor.png``; nothing where nothing is wrong."""
    from prelax.report.health import draw_health
    from prelax.run import Run
    from prelax.whole import Unwritable

    wrong = [finding for finding in findings if not finding.fine and finding.curves]
    try:
        return draw_health(Run.open(path).metrics(), wrong, Path(path) / "doctor.png") if wrong else []
    except Unwritable as error:
        warnings.warn(f"not drawn: {error.said}", PrelaxWarning, stacklevel=2)
        return []
