"""From settings to a run folder: the outer loop, its checkpoints, its metrics, and when to stop."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from prelax.config import Settings
from prelax.data import ImageSet, ShardSet, ShardStore, bar, load, load_training
from prelax.errors import PrelaxError, PrelaxWarning, first_line
from prelax.evaluate.collapse import collapse_limits, crowded
from prelax.evaluate.remedies import calmer, remedies
from prelax.run import START, Run
from prelax.train.devices import choose_device, start_compilers
from prelax.train.engine import Engine
from prelax.train.processes import Process, Unread, any_of, ask_first, joined, wait_for_all
from prelax.train.progress import Progress, stopwatch
from prelax.train.refuse import check_apart, check_data, check_enough, check_views
from prelax.train.settled import as_found, forget, note_data, with_weights, with_whole_paths
from prelax.train.suit import remarks, suit
from prelax.train.trial import estimate, too_little_memory
from prelax.train.watching import watcher, watching
from prelax.weights import Weights, put_into
from prelax.whole import NoSpace, check_writable, remove_leftovers

PATIENCE = 10  # epochs a collapse must last: runs have come back after six
# Steps after which several processes ask one another whether to stop. torchrun, interrupted itself, gives its workers
# half a minute, which may be less than an epoch. On CUDA the answer waits for the device, so it is asked less often.
ASK = {"cpu": 1, "cuda": 16}
WRITTEN = (  # by who holds the folder's lock, and nobody else
    "config.yaml",
    "data.json",
    "metrics.jsonl",
    "checkpoint.pt",
    "checkpoint.previous.pt",
    "backbone.safetensors",
    START,
)


def pretrain(
    settings: Settings,
    out: Path | str,
    *,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
    on_epoch: Callable[[dict[str, Any]], object] = lambda line: None,
) -> Run:
    """Trains a backbone as the settings say, into a run folder.

    For a folder of images, what neither recipe nor user set is chosen to suit them (``prelax.train.suit``).

    Interrupted (Ctrl-C) it leaves a checkpoint at the step it came to and raises ``KeyboardInterrupt``; with
    ``resume`` it goes on from there, and ends with the weights of a run that never stopped.

    Args:
        settings: from ``prelax.config.resolve``.
        out: the run folder, made if it is not there.
        resume: go on with the run in ``out``.
        progress: show a bar on a terminal; elsewhere a line now and then, on standard error.
        say: called with a line for each choice, and with how long it will take.
        on_epoch: called with each epoch's line of ``metrics.jsonl``, of several processes in the one that writes. Where
            it gives True, or raises, training ends with a checkpoint, from which ``resume`` goes on.
    """
    settings = with_whole_paths(settings)
    with joined(settings.train.device) as process:
        device = choose_device(settings.train.device, process)
        began = process.again and process.writes and (Path(out) / "config.yaml").exists()
        resume = any_of(process, resume or began)  # the first has looked; the others may look too late
        run = Run.open(out) if resume else Run(out)
        if resume:
            run.check_resumable(settings)
            settings = run.settings_with(settings)
            check_views(run, settings)
            if process.writes and run.unfinished:
                done = max((line["epoch"] for line in run.metrics()), default=0)
                say(f"going on after {done} of {settings.train.epochs} epochs")
        elif process.writes:
            run.check_free()
            check_writable(run.path)  # before an hour of decoding, not after it
            check_apart(run.path, settings.data)
        watcher(settings)
        settings, weights = with_weights(settings, run)
        start_compilers(settings, device)  # while data are read
        with bar() if progress and process.writes else contextlib.nullcontext() as drawn:
            images = load_training(settings.data, drawn)
        settings = as_found(settings, images)
        check_enough(settings, images, process.world)
        chosen = []
        if weights is not None:
            whose = settings.model.backbone if weights.backbone is None else weights.backbone
            chosen.append(f"the backbone, a {whose}, begins with {weights.name} (model.weights)")
        for line in chosen if process.writes else ():
            say(line)
        if settings.data.source == "folder" and not resume:
            settings, suited = suit(settings, images, device, process.world)
            suited += remarks(settings, images)
            for line in (*images.notes, *suited) if process.writes else ():
                say(line)
            chosen += suited
            if process.world == 1 and (expected := estimate(settings, images, device)):  # several would step together
                say(expected)
                chosen.append(expected)
        if len(images) < settings.train.batch_size:
            line = f"a step takes all {len(images)} images: train.batch_size={settings.train.batch_size} is more"
            chosen.append(line)
            if process.writes:
                say(line)
        with contextlib.suppress(torch.OutOfMemoryError):
            return begin(run, settings, images, device, process, resume, chosen, progress, weights, on_epoch, say)
        # Here and not where it was caught: the error would hold on to the memory.
        raise PrelaxError(too_little_memory(settings, images, device, process.world))


def begin(
    run: Run,
    settings: Settings,
    images: ImageSet | ShardSet,
    device: torch.device,
    process: Process,
    resume: bool,
    chosen: list[str],
    progress: bool,
    weights: Weights | None = None,
    on_epoch: Callable[[dict[str, Any]], object] = lambda line: None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """From what may refuse, while nothing is written, to the run folder and the outer loop."""
    recorded = resume and process.writes and check_data(run, images)
    engine = Engine(settings, images, device, process)
    start = None
    if weights is not None:
        start = put_into(engine.objective.network, weights, settings.model.backbone, images.shape[0], engine.maker.size)
    probe = knn_probe(settings, engine, images) if settings.train.knn_every else None
    if process.writes and not resume:
        run.check_free()
        run.make_folder()
    with run.lock() if process.writes else contextlib.nullcontext():
        if process.writes and not resume:
            run.begin(settings)
        wait_for_all(process)  # the others read the folder too
        try:
            if process.writes:
                remove_leftovers(run.path, WRITTEN)
                if resume and run.unfinished:
                    forget(run, say)
                if resume:
                    run.keep_changes(settings)
                note_data(run, settings, images, recorded, weights)
                if start is not None:
                    run.save_backbone(start, START)
                for line in chosen:
                    run.log(line)
            return train(run, engine, probe, progress, on_epoch, say)
        except NoSpace as full:
            raise PrelaxError(f"no space left to write {full.target}; free some and go on with --resume") from None
        except Exception:
            if process.writes and not resume:
                let_go(run)
            raise
        finally:
            engine.release()  # an error on its way up would keep it beyond the group of processes


def train(
    run: Run,
    engine: Engine,
    probe: Callable[[], float] | None = None,
    progress: bool = True,
    on_epoch: Callable[[dict[str, Any]], object] = lambda line: None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """The outer loop over epochs; ``probe`` gives the kNN accuracy of now."""
    settings, process = engine.settings, engine.process
    epoch, step = restore(run, engine)
    wait_for_all(process)
    epochs, history = settings.train.epochs, [line for line in run.metrics() if line["epoch"] <= epoch]
    shown, told = progress and process.writes, False
    with (
        torch.random.fork_rng(devices=[engine.device] if engine.device.type == "cuda" else []),
        interruptible() as interrupted,
        watching(run, settings) if process.writes else contextlib.nullcontext(lambda line: None) as watch,
        Progress(epochs, engine.steps, epoch, shown) as bar,
    ):

        def after_step(done: int) -> bool:
            bar.step(done)
            if process.world == 1:
                return interrupted()
            return done < engine.steps and done % ASK[engine.device.type] == 0 and any_of(process, interrupted())

        while epoch < epochs:
            clock, first = stopwatch(), step
            try:
                step = engine.run_epoch(epoch + 1, first, after_step)
            except Unread as error:
                if epoch + engine.taken > 0:
                    save(run, engine, epoch, engine.taken)
                wait_for_all(process)  # one that ended now would have torchrun end the one that writes
                if interrupted():  # the signal ended the processes that decode, too
                    raise KeyboardInterrupt from None
                if epoch + engine.taken == 0:
                    raise
                where = f"epoch {epoch + 1}, step {engine.taken}"
                again = f"`prelax pretrain {shlex.quote(str(run.path))} --resume` goes on from {where}"
                raise PrelaxError(f"{error}; {again}") from None
            if step < engine.steps:
                save(run, engine, epoch, step)
                raise KeyboardInterrupt
            found = engine.measurements(engine.steps)
            epoch, step = epoch + 1, 0
            seconds = clock()
            line: dict[str, Any] = {"epoch": epoch, **found, "lr": engine.rates[epoch * engine.steps - 1]}
            speed = (engine.steps - first) * engine.batch / seconds
            line |= {"seconds": round(seconds, 3), "images_per_s": round(speed, 1)}
            line["views_per_s"] = round(speed * len(engine.objective.views), 1)
            if engine.device.type == "cuda":
                line["memory_gib"] = round(torch.cuda.max_memory_allocated(engine.device) / 2**30, 3)
            line["data_wait"] = round(engine.waited / seconds, 4)
            history.append(line)
            problem = trouble(history, settings, engine.batch)
            if probe is not None and (epoch % settings.train.knn_every == 0 or epoch == epochs) and problem is None:
                try:
                    line["knn"] = probe()
                except (PrelaxError, RuntimeError) as error:  # too little memory is a RuntimeError, too
                    if process.world > 1:  # the others wait for this one inside the probe
                        raise
                    probe = None
                    said = f"the kNN probe after epoch {epoch} failed ({first_line(error)}): there will be no more"
                    run.log(said)
                    warnings.warn(said, PrelaxWarning, stacklevel=2)
            if process.writes and not told and (few := crowded(history, settings, engine.steps)):
                told = True
                run.log(few.found)
                warnings.warn(few.found, PrelaxWarning, stacklevel=2)
            if process.writes:
                for broken in engine.store.new_broken() if isinstance(engine.store, ShardStore) else ():
                    run.log(f"skipped {broken}")
                run.log_metrics(line)
            if problem is None and (epoch % settings.train.checkpoint_every == 0 or epoch == epochs):
                save(run, engine, epoch, 0)
            if process.writes:
                watch(line)
                bar.epoch(line)
            if problem is not None:
                kept = (
                    f" The last good checkpoint in {run.path} stays." if (run.path / "checkpoint.pt").exists() else ""
                )
                raise PrelaxError(f"stopped after epoch {epoch}: {problem}{kept}")
            enough = asked(on_epoch, line, run, engine)
            if any_of(process, interrupted()) and epoch < epochs:
                save(run, engine, epoch, 0)
                raise KeyboardInterrupt
            if enough and epoch < epochs:
                save(run, engine, epoch, 0)
                if process.writes:
                    run.log(f"stopped after epoch {epoch} of {epochs}: on_epoch gave True")
                return run
    if process.writes:
        if run.unfinished:
            forget(run, say)  # measured while it was trained
        run.save_backbone(engine.objective.network.backbone.state_dict())
        run.log(f"finished {epochs} epoch{'s' if epochs != 1 else ''}")
    return run


def restore(run: Run, engine: Engine) -> tuple[int, int]:
    """Where training goes on: finished epochs, and steps of the next one."""
    state = run.load_checkpoint(engine.device)
    if state is None:
        if engine.process.writes:
            run.rewind_metrics(0)
        return 0, 0
    for key in ("network", "optimizer", "epoch", "step"):
        if key not in state:
            raise PrelaxError(f"{run.path}/checkpoint.pt is not a training checkpoint (it has no {key!r})")
    epoch, step = state["epoch"], state["step"]
    if (
        type(epoch) is not int
        or type(step) is not int
        or not 0 <= epoch <= engine.settings.train.epochs
        or not 0 <= step < engine.steps
    ):
        raise PrelaxError(f"{run.path}/checkpoint.pt is not of this training (epoch {epoch!r}, step {step!r})")
    if isinstance(begun := state.get("settings"), dict):
        run.check_as_begun(begun)
    engine.load(state)
    if engine.process.writes:
        run.rewind_metrics(state["epoch"])
        run.log(f"resumed at epoch {state['epoch']}, step {state['step']}")
    return state["epoch"], state["step"]


def asked(on_epoch: Callable[[dict[str, Any]], object], line: dict[str, Any], run: Run, engine: Engine) -> bool:
    """Whether it has had enough, having seen an epoch's line; where it raises, there is a checkpoint first."""
    epoch, process = line["epoch"], engine.process
    try:
        return ask_first(process, partial(on_epoch, dict(line)))
    except (Exception, SystemExit) as error:
        if epoch < engine.settings.train.epochs:
            save(run, engine, epoch, 0)
        wait_for_all(process)  # one that ended now would have torchrun end the one that writes
        if isinstance(error, torch.OutOfMemoryError):  # not of a step, for which a smaller batch would be proposed
            said = f"on_epoch had too little memory after epoch {epoch} ({first_line(error)})"
            raise PrelaxError(f"{said}; mend it, and resume goes on from there") from error
        raise


def save(run: Run, engine: Engine, epoch: int, step: int) -> None:
    """A checkpoint with what every process has to tell; one of them writes it."""
    settings = engine.settings.model_dump(mode="json")
    state = {"epoch": epoch, "step": step, "settings": settings, **engine.state()}
    if engine.process.writes:
        run.save_checkpoint(state)


def trouble(lines: list[dict[str, Any]], settings: Settings, batch: int) -> str | None:
    """What is wrong with the last of some epochs, of steps of so many images, in words with what to try, or None.

    A loss that is not finite is trouble at once, a collapse when it has lasted: runs pass near one and come back.
    """
    line = lines[-1]
    losses = {name: value for name, value in line.items() if name.startswith("loss")}
    for name, value in losses.items():
        if not math.isfinite(value):
            return f"{name} is {value}. Try {calmer(settings)}."
    if settings.train.stop_on_collapse:
        limits = collapse_limits(settings, batch)
        collapsed = [
            any(isinstance(v := e.get(k), int | float) and v < low for k, low in limits.items()) for e in lines
        ]
        if len(lines) >= PATIENCE and all(collapsed[-PATIENCE:]):
            shown = f"embedding std {line['embedding_std']:.3f}, effective rank {line['effective_rank']:.1f}"
            return (
                f"the representation has collapsed ({shown}, for {PATIENCE} epochs). Try {remedies(settings)}; "
                "train.stop_on_collapse=false goes on."
            )
    return None


def let_go(run: Run) -> None:
    """A folder in which nothing was trained is no run: the same command, mended, may begin in it."""
    if not run.metrics() and not (run.path / "checkpoint.pt").exists():
        (run.path / "config.yaml").unlink(missing_ok=True)


def knn_probe(settings: Settings, engine: Engine, images: ImageSet | ShardSet) -> Callable[[], float]:
    """A function that gives the backbone's kNN accuracy now; it draws no random numbers."""
    from prelax.evaluate.probe import backbone_knn

    if isinstance(images, ShardSet):  # they are not all at hand
        images = load(settings.data, "train")
    test = load(settings.data, "test")
    if images.labels is None or test.labels is None:
        raise PrelaxError("train.knn_every needs labels, and the data have none; use train.knn_every=0")
    shared = engine.process.world > 1
    return lambda: backbone_knn(engine.objective.network.backbone, settings, images, test, engine.device, shared)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C as a question asked between steps; a second one stops at once.

    So are a scheduler's SIGTERM, and SIGHUP, which comes (more than once) when a connection or a terminal is closed.
    """
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked and number != signal.SIGHUP:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread hears signals
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: it is meant to go on
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
