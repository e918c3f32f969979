"""The run folder: everything about a run, and nothing else holds it.

config.yaml            the whole resolved settings, versions, seed, commit
data.json              what it is trained on, to be recognised later
metrics.jsonl          a line an epoch
checkpoint.pt          written whole or not at all; loaded without executing anything
backbone.safetensors   a plain torchvision or timm state dict
start.safetensors      what it began with, where that was not random
eval/*.json            a file per evaluation
log.txt · report.html
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shlex
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import prelax
from prelax.config import FOUND, SUITED, Settings, leaves, left_open, to_yaml, validate, with_values
from prelax.errors import PrelaxError, PrelaxWarning, first_line, readable
from prelax.stamp import commit, now
from prelax.tensors import plain, read_checkpoint, read_tensors, write_tensors
from prelax.whole import NoSpace, Unwritable, numeric, replacing, writing

FORMAT = 1  # of the folder; a newer one is refused
START = "start.safetensors"

# What may differ when a run goes on: it decides where and how fast, not what is computed.
CHANGEABLE = {
    "data.root",
    "data.test_root",
    "data.shards",
    "data.download",
    "data.cache",
    "data.store",
    "data.workers",
    "augment.compile",
    "train.device",
    "train.compile",
    "train.checkpoint_every",
    "train.knn_every",
    "train.stop_on_collapse",
    "train.watch",
}


class Run:
    """A run folder, opened."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if (shown := readable(str(path))) != str(path):  # safetensors would not open a file in it
            raise PrelaxError(f"{shown} cannot be a run folder: its path is not UTF-8; rename it, or choose another")
        self.torn = False  # checkpoint.pt was found damaged: nothing worth keeping beside the next one
        self.unkept = False  # a result could not be written

    # -- making and opening ------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path | str, settings: Settings) -> Run:
        """A new run folder; refuses one that already holds a run."""
        run = cls(path)
        run.check_free()
        run.make_folder()
        with run.lock():
            run.begin(settings)
        return run

    def make_folder(self) -> None:
        """The folder, with nothing in it yet."""
        with writing(self.path):
            (self.path / "eval").mkdir(parents=True, exist_ok=True)

    def begin(self, settings: Settings) -> None:
        """``config.yaml`` of a run that begins, by the process that holds the lock of its folder."""
        self.check_free(locked=True)
        about = {
            "format": FORMAT,
            "prelax": prelax.__version__,
            "torch": str(torch.__version__),  # a TorchVersion, which YAML does not know
            "python": platform.python_version(),
            "commit": commit(),
            "created": now(),
        }
        self.write("config.yaml", to_yaml(settings) + yaml.safe_dump({"run": about}, sort_keys=False))

    def check_free(self, locked: bool = False) -> None:
        """Refuses a folder that already holds a run, or a detector; ``locked``: by this very process."""
        if (self.path / "config.yaml").exists():
            said = f"{self.path} already holds a run; add --resume to go on with it, or choose another --out"
            with contextlib.nullcontext() if locked else self.lock():  # if another process writes to it, it says that
                raise PrelaxError(said)
        for name in ("settings.json", "detector.safetensors"):
            if (self.path / name).exists():
                raise PrelaxError(f"{self.path} already holds a detection run ({name} is there); choose another --out")
        for name in ("checkpoint.pt", "checkpoint.previous.pt", "backbone.safetensors"):
            if (self.path / name).exists():
                raise PrelaxError(f"{self.path} holds weights of a run whose config.yaml is gone; choose another --out")

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """A run folder that exists; says what is wrong with one that is not."""
        run = cls(path)
        if not run.path.is_dir():
            raise PrelaxError(f"no run folder {run.path}; give one that `prelax pretrain` made")
        if not (run.path / "config.yaml").is_file():
            raise PrelaxError(
                f"{run.path} is not a run folder: it has no config.yaml; give one that `prelax pretrain` made"
            )
        run.read_config()
        return run

    def read_config(self) -> tuple[Settings, dict[str, Any]]:
        """The settings, and what the folder says of its making."""
        where = self.path / "config.yaml"
        try:
            tree = yaml.safe_load(where.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
            raise PrelaxError(f"{where} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict):
            raise PrelaxError(f"{where} is not the settings of a run")
        about = tree.pop("run")
        written = about.get("format", 0)
        if not isinstance(written, int):
            raise PrelaxError(f"{where}: run.format is {written!r}; it should be a number up to {FORMAT}")
        if written > FORMAT:
            version = about.get("prelax", "a newer version")
            raise PrelaxError(
                f"{self.path} was written by a later prelax ({version}; this is {prelax.__version__}): upgrade prelax"
            )
        return validate(tree, str(where)), about

    @property
    def settings(self) -> Settings:
        return self.read_config()[0]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def check_resumable(self, settings: Settings) -> None:
        """Refuses, by name, a setting that differs from the run's and would make it another run."""
        old, new = (leaves(one.model_dump(mode="json")) for one in (self.settings, settings))
        for key, wanted in new.items():
            was = old[key]
            free = key in CHANGEABLE or key == "recipe" or key.startswith("evaluate.") or left_open(settings, key)
            if key == "data.labels" and was is not None and wanted is not None:  # runs used to keep it as it was typed
                free = Path(was).expanduser().absolute() == Path(wanted).expanduser().absolute()
            if was != wanted and not free:
                on = ""
                if key == "train.epochs":
                    on = f"; model.weights={shlex.quote(str(self.path))} in it begins with this one's backbone"
                raise PrelaxError(
                    f"{key} was {was!r} in {self.path} and cannot become {wanted!r} on resume; "
                    f"another value is another run, with an --out of its own{on}"
                )

    def settings_with(self, settings: Settings) -> Settings:
        """New settings to go on with, where what went by the images stays as it was."""
        stored = leaves(self.settings.model_dump())
        return with_values(settings, {key: stored[key] for key in (*FOUND, *SUITED) if left_open(settings, key)})

    def keep_changes(self, settings: Settings) -> None:
        """What the run goes on with, where that may differ: for the next time, and whatever is done with it later."""
        stored, about = self.read_config()
        wanted = leaves(settings.model_dump())
        kept = (key for key in wanted if key in CHANGEABLE or key == "data.labels" or key.startswith("evaluate."))
        if (changed := with_values(stored, {key: wanted[key] for key in kept})) != stored:
            self.write("config.yaml", to_yaml(changed) + yaml.safe_dump({"run": about}, sort_keys=False))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second process out of the folder while this one writes to it."""
        with writing(self.path):
            handle = open(self.path / ".lock", "w")  # noqa: SIM115
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PrelaxError(
                    f"another process is writing to {self.path}; wait for it or choose another --out"
                ) from None
            yield

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, name: str, content: str | bytes) -> Path:
        """A file of the folder, whole or not at all."""
        target = self.path / name
        data = content.encode() if isinstance(content, str) else content
        with writing(target), replacing(target) as temporary:
            temporary.write_bytes(data)
        return target

    def log(self, message: str) -> None:
        """A dated line of ``log.txt``."""
        with writing(self.path / "log.txt"), open(self.path / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{now()} {readable(message)}\n")

    def log_metrics(self, line: Mapping[str, Any]) -> None:
        """A line of ``metrics.jsonl``; what is no number is null there, which any reader of JSON takes."""
        with writing(self.path / "metrics.jsonl"), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({key: numeric(value) for key, value in line.items()}) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Every whole line of ``metrics.jsonl`` (the last may be torn by a kill)."""
        lines = []
        path = self.path / "metrics.jsonl"
        try:
            texts = path.read_bytes().splitlines() if path.is_file() else []
        except OSError as error:
            raise PrelaxError(f"cannot read {path}: {error.strerror}") from None
        for text in texts:
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(text)
                if isinstance(line, dict) and type(line.get("epoch")) is int:
                    lines.append(line)
        return lines

    def check_as_begun(self, settings: Mapping[str, Any]) -> None:
        """Refuses to go on where ``config.yaml`` does not say what the checkpoint was trained with."""
        now_so, before = leaves(self.settings.model_dump(mode="json")), leaves(settings)
        for key, value in before.items():
            free = key in CHANGEABLE or key.startswith("evaluate.") or key in ("recipe", "data.labels")
            if key in now_so and now_so[key] != value and not free:
                raise PrelaxError(
                    f"{self.path}/checkpoint.pt was trained with {key}={value!r} and config.yaml says {now_so[key]!r}: "
                    "one of them was changed, or is of another run; put back what was there, or begin another run"
                )

    def rewind_metrics(self, epoch: int) -> None:
        """Forgets the lines after an epoch: what resume is about to do again."""
        kept = [line for line in self.metrics() if line["epoch"] <= epoch]
        self.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    def trained_on(self) -> dict[str, Any]:
        """What ``data.json`` says of the images a run is trained on; nothing where it is not there, or not whole."""
        try:
            about = json.loads((self.path / "data.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return about if isinstance(about, dict) else {}

    def seen_before(self) -> list[dict[str, Any]] | None:
        """The data that the weights a run began with were trained on; none where these were random, None: not known."""
        if self.settings.model.weights is None:
            return []
        seen = self.trained_on().get("seen_before")
        return seen if isinstance(seen, list) and all(isinstance(one, dict) for one in seen) else None

    def write_eval(self, name: str, result: Mapping[str, Any], unfinished: bool = False) -> None:
        """``eval/NAME.json``, stamped with date and version, and with whether it is of a run that is not finished.

        In a folder that may not be written, or on a full disk, it is not kept, which is said: what was measured is not
        lost by that.
        """
        stamped = {**result, "date": now(), "prelax": prelax.__version__}
        if unfinished and not self.unfinished:
            warnings.warn(f"{self.path} was finished meanwhile: measure it again", PrelaxWarning, stacklevel=3)
        stamped |= {"unfinished": True} if unfinished else {}
        try:
            with writing(self.path / "eval"):
                (self.path / "eval").mkdir(exist_ok=True)
            self.write(f"eval/{name}.json", json.dumps(stamped, indent=1) + "\n")
        except (Unwritable, NoSpace) as error:
            self.unkept = True
            said = error.said if isinstance(error, Unwritable) else str(error)
            warnings.warn(f"not kept: {said}", PrelaxWarning, stacklevel=3)

    def evals(self) -> dict[str, dict[str, Any]]:
        """Every evaluation by file name."""
        found = {}
        for path in sorted((self.path / "eval").glob("*.json")):
            try:
                found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError):
                raise PrelaxError(f"{path} is not JSON; remove it and evaluate again") from None
            except OSError as error:
                raise PrelaxError(f"cannot read {path}: {error.strerror}; remove it and evaluate again") from None
            if not isinstance(found[path.stem], dict):
                raise PrelaxError(f"{path} is not an evaluation; remove it and evaluate again")
        return found

    # -- weights -----------------------------------------------------------------------------------------------------

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """``checkpoint.pt``; the one before it is kept as ``checkpoint.previous.pt``."""
        target, previous = self.path / "checkpoint.pt", self.path / "checkpoint.previous.pt"
        with writing(target), replacing(target, keep=None if self.torn else previous) as temporary:
            torch.save(dict(state), temporary)
        self.torn = False

    def load_checkpoint(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The last whole checkpoint, or None where there is none; a torn one is passed over, and the log says so.

        When none can be read it is refused: to begin anew would write over what may still be mended.
        """
        problem = None
        for name in ("checkpoint.pt", "checkpoint.previous.pt"):
            path = self.path / name
            if not os.path.lexists(path):
                continue
            try:
                path.open("rb").close()
            except OSError as error:  # it may well be whole: mend the cause, do not pass it over
                raise PrelaxError(f"cannot read {path}: {error.strerror}; move it away to go on without it") from None
            try:
                return read_checkpoint(path, device)
            except PrelaxError as error:
                self.torn = True
                problem = problem or error
                with contextlib.suppress(PrelaxError):
                    self.log(f"{error}; trying the one before it")
        if problem is not None:
            raise PrelaxError(f"{problem}, and there is no whole one before it; remove it to begin anew")
        return None

    def save_backbone(self, state: Mapping[str, Tensor], name: str = "backbone.safetensors") -> None:
        """``backbone.safetensors``, or under another name what it begins with: plain names, no prefix to strip."""
        target = self.path / name
        with writing(target), replacing(target) as temporary:
            write_tensors(plain(state), temporary)

    def load_start(self) -> dict[str, Tensor] | None:
        """The weights the backbone began with; None where they were random, or are not kept."""
        path = self.path / START
        if not path.is_file():
            return None
        try:
            return read_tensors(path)
        except Exception as error:
            raise PrelaxError(f"{path} cannot be read ({first_line(error)}); remove it to do without") from None

    def load_backbone(self) -> dict[str, Tensor]:
        """The state dict of the trained backbone."""
        path = self.path / "backbone.safetensors"
        if not path.is_file():
            return self._stopped_backbone()
        try:
            return read_tensors(path)
        except Exception as error:
            raise PrelaxError(
                f"{path} cannot be read ({first_line(error)}); "
                f"`prelax pretrain {shlex.quote(str(self.path))} --resume` writes it again from a whole checkpoint"
            ) from None

    def _stopped_backbone(self) -> dict[str, Tensor]:
        """The backbone of a run that is not finished, from its last checkpoint; a warning says how far it came."""
        go_on = f"`prelax pretrain {shlex.quote(str(self.path))} --resume` goes on"
        state = self.load_checkpoint() or {}
        network = state.get("network")
        weights = {
            name.removeprefix("online.backbone."): value
            for name, value in (network if isinstance(network, dict) else {}).items()
            if isinstance(name, str) and isinstance(value, Tensor) and name.startswith("online.backbone.")
        }
        if not weights:
            raise PrelaxError(f"{self.path} has no backbone yet: {go_on}")
        warnings.warn(
            f"{self.path} is not finished: this is its network after epoch {state.get('epoch')} of "
            f"{self.settings.train.epochs}; {go_on}",
            PrelaxWarning,
            stacklevel=3,
        )
        return weights

    @property
    def unfinished(self) -> bool:
        """Whether there are weights of a checkpoint alone."""
        return not (self.path / "backbone.safetensors").is_file()

    def drop_unfinished(self) -> None:
        """Removes what was measured of a network that learns on, and the page about it."""
        for name, result in self.evals().items():
            if result.get("unfinished"):
                (self.path / "eval" / f"{name}.json").unlink(missing_ok=True)
        (self.path / "report.html").unlink(missing_ok=True)
