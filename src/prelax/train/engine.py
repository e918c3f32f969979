"""The loop's inside: pixels, views, objective, backward and optimiser for one epoch after another.

On CUDA the whole step is captured once as a graph and replayed: drawing the views, all terms, backward, the optimiser
and the moving average are one launch, the order of images and the schedules are on the device, and what is measured
is read back once an epoch. On the CPU the same step runs plainly.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prelax.collectives import grouped, rehearsal, rows_of_processes
from prelax.config import Settings
from prelax.data import ImageSet, ShardSet, store_of
from prelax.draws import Draws
from prelax.errors import PrelaxError, PrelaxWarning, first_line
from prelax.memory import keep_freed_memory
from prelax.nets.backbones import channels_last, idle_weights
from prelax.nets.norm import prepare_to_compile, silent_channels
from prelax.objectives import weighed
from prelax.train.devices import in_bfloat16
from prelax.train.norms import synchronise
from prelax.train.optim import load_optimizer, optimizer, schedules
from prelax.train.processes import Process, any_of, next_of_all, wrapped
from prelax.train.rank import effective_rank
from prelax.train.refuse import batch_of, check_backbone, check_labels
from prelax.train.step import Objective
from prelax.train.views import ViewMaker

# What BatchNorm's backward pass reads twice is computed twice: kept, it would be written out in float32, twice as large
# as an activation, by each layer that a ReLU follows.
BACKBONE = {"realize_reads_threshold": 16}
EAGER_STEPS = 3  # real steps before a capture: they compile, choose convolution algorithms and make optimiser state
EAGER_STEPS_GROUPED = 11  # what DistributedDataParallel needs before it can be captured


class Engine:
    """A method's weights on a device, and how they change.

    Args:
        settings: everything.
        images: the training set.
        device: where to train.
        process: this process among those that train together.
    """

    def __init__(self, settings: Settings, images: ImageSet | ShardSet, device: torch.device, process: Process) -> None:
        self.settings, self.device, self.process = settings, device, process
        self.images = len(images)
        train = settings.train
        self.batch = batch_of(settings, images, process.world)
        train = train.model_copy(update={"batch_size": self.batch})  # the rate goes by what a step sees
        self.steps = self.images // self.batch
        self.bfloat16 = in_bfloat16(settings, device)
        channels, side = images.shape[0], images.shape[-1]
        self.maker = ViewMaker(settings, channels, side, device)
        if any(term.kind == "classify" for term in weighed(settings.method)):
            check_labels(images, settings)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)  # torch.manual_seed reaches every device
            self.objective = Objective(
                settings, channels, self.maker.size, self.maker.specs, self.maker.relaxed_specs, len(images.classes)
            ).to(device)
        check_backbone(self.objective, channels, settings, self.maker)
        self.store = store_of(images, device, settings.data, self.batch, process.world)
        self.walk = images.walk
        self.labels = images.labels.to(device) if images.labels is not None else None
        self.optimizer = optimizer(self.objective.network, train, device)
        self.schedules = schedules(settings.method, train, self.steps)
        self.rates = self.schedules["lr"]
        self.sums: dict[str, Tensor] = {}
        self.last_z: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.waited = 0.0
        self.taken = 0  # steps of the epoch under way, while it runs
        self.rolls = ":" in settings.model.backbone  # a network of others may have dropout
        self.module: nn.Module = self.objective
        if grouped() and self.rolls:
            for weight in idle_weights(self.objective.network.backbone, channels, self.maker.size):
                weight.requires_grad_(False)  # DistributedDataParallel would wait for its gradient
        self._prepare()

    @property
    def network(self) -> nn.Module:
        return self.objective.network

    def _prepare(self) -> None:
        """Precision, memory layout, compilation and the wrapping for several processes."""
        cuda = self.device.type == "cuda"
        self.objective.together = cuda or self.process.world > 1
        self.objective.autocast = self.bfloat16
        # Convolutions are quicker so on CUDA, and on the CPU by 4 (ResNet-8) to 12 % (ResNet-18 at 32 px).
        channels_last(self.objective.network)
        self.maker.memory_format = torch.channels_last
        if cuda:
            self._before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
            torch.backends.cudnn.benchmark = True
            torch.backends.cuda.matmul.allow_tf32 = True  # heads; the augmentation's products guard themselves
            self.maker.dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        else:
            keep_freed_memory()
        apart = self._synchronise_norms() if grouped() else []
        wanted = self.settings.train.compile
        self.fused = wanted == "always" or (wanted == "auto" and cuda)
        if self.fused:
            prepare_to_compile()
            for encoder in (self.objective.network.online, self.objective.network.target):
                if encoder is not None:
                    encoder.backbone.compile(dynamic=False, options=BACKBONE)
            self._plain_judge = self.objective.judge
            self.objective.judge = torch.compile(self._plain_judge, dynamic=False)  # type: ignore[method-assign]
        self.capture, self._rehearsed = cuda and self.fused, not grouped()
        # What is captured is made ready on the stream it is captured on, the wrapping for several processes included.
        self._side = torch.cuda.Stream(self.device) if cuda else None
        if grouped():
            self._eager_left = EAGER_STEPS_GROUPED
            side = torch.cuda.stream(self._side) if self.capture else contextlib.nullcontext()
            with side:  # statistics that are synchronised already need not be sent around
                self.module = wrapped(self.objective, self.device, buffers=bool(apart))
        # The inputs of a captured step: the graph reads these very tensors.
        local = self.batch // self.process.world
        self.ids = torch.zeros(local, dtype=torch.int64, device=self.device)
        self.keys = self.maker.keys(1).to(self.device)
        self.tau = torch.tensor(self.settings.method.tau, device=self.device)
        self.pixels: Tensor | None = None
        self.tables = {name: torch.tensor(s, dtype=torch.float64).to(self.device) for name, s in self.schedules.items()}

    def _synchronise_norms(self) -> list[str]:
        """BatchNorm over all processes in any backbone; the names of what cannot be, which is said once."""
        left = synchronise(self.objective.network.online.backbone)
        if self.objective.network.target is not None:
            synchronise(self.objective.network.target.backbone)
        if left and self.process.writes:
            names = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if left[3:] else "")
            said = f"BatchNorm {names} of {self.settings.model.backbone} takes its statistics in each process alone"
            use = "for the losses of one process use nn.BatchNorm1d, 2d or 3d"
            warnings.warn(f"{said}; {use}", PrelaxWarning, stacklevel=4)
        return left

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def run_epoch(self, epoch: int, first: int, after_step: Callable[[int], bool]) -> int:
        """Trains from step ``first`` of an epoch until its end, or ``after_step`` says stop; returns the steps done."""
        self.waited = 0.0  # seconds this epoch spent waiting for pixels
        if first == 0:
            for total in self.sums.values():
                total.zero_()  # in place: a captured step adds to these very tensors
        ids = self.walk(self.settings.seed, epoch, self.batch)
        local = self.batch // self.process.world
        mine = ids[:, self.process.rank * local : (self.process.rank + 1) * local].contiguous()
        self.keys.copy_(self.maker.keys(epoch))
        on_device = mine.to(self.device)
        feed = None if self.store.where == "device" else self.store.batches(mine[first:].flatten(), local)
        for step in range(first, self.steps):
            self.taken = step
            self.set_rates((epoch - 1) * self.steps + step)
            self.ids.copy_(on_device[step])
            if self.rolls:
                torch.manual_seed(self._roll(epoch, step))
            if feed is not None:
                asked = time.perf_counter()
                pixels = (next_of_all(self.process, feed) if self.store.where != "host" else next(feed))[1]
                self.waited += time.perf_counter() - asked
                if self.pixels is None:
                    self.pixels = pixels.clone()
                self.pixels.copy_(pixels, non_blocking=True)
            self.take_step()
            if after_step(step + 1):
                return step + 1
        return self.steps

    def _roll(self, epoch: int, step: int) -> int:
        """What torch's generators begin a step with: dropout too goes by its address, and differs by process."""
        key = Draws(self.settings.seed, 1).at("layers", epoch, step, self.process.rank).key
        assert isinstance(key, int)
        return key >> 1  # torch takes 63 bits

    def set_rates(self, step: int) -> None:
        """The learning rate, the target's decay and the pretexts' share of their weights at a step of the run."""
        for group in self.optimizer.param_groups:
            kind = "turn" if group.get("matrix") else "constant" if group["constant"] else "lr"
            table = self.tables[kind]
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(table[step])
            else:
                group["lr"] = float(table[step])
        self.tau.copy_(self.tables["tau"][step])
        self.objective.share.copy_(self.tables["share"][step])

    def take_step(self) -> None:
        """One step of training, replayed if it was captured. What will not compile, or be captured, runs plainly."""
        if self.graph is not None:
            self.graph.replay()
        elif self.fused and not self._rehearsed:
            self._rehearse()
            self.take_step()
        elif self.fused and self._eager_left > 0:
            self._eager_left -= 1
            self._step_or_uncompile()
        elif self.capture:
            self._record()
        else:
            self.compute()

    _eager_left = EAGER_STEPS

    def _rehearse(self) -> None:
        """Compiles before the first step of several processes: in all of them or in none.

        One that computed plainly among the others would take its sums in another order than their compiled steps.
        """
        self._rehearsed = True
        before, problem = [buffer.clone() for buffer in self.network.buffers()], ""
        try:
            assert isinstance(self.module, DistributedDataParallel)
            with rehearsal(), torch.random.fork_rng([self.device] if self._side else []), self.module.no_sync():
                self._aside(lambda: self.loss()[0].backward())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            problem = first_line(error)
        self._put_back(before)
        self.optimizer.zero_grad(set_to_none=True)
        if any_of(self.process, bool(problem)):
            self._uncompile()
            tell_uncompiled(problem or "in another process")

    def _step_or_uncompile(self) -> None:
        """A step that may be the first to compile something; if that fails the step is taken again without."""
        before = [buffer.clone() for buffer in self.network.buffers()]
        try:
            self._aside(self.compute)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if grouped():  # others are within the step; what it compiles was rehearsed
                raise
            self._uncompile()
            self._put_back(before)
            self.compute()  # fails with words of its own if the fault is not the compiler's
            tell_uncompiled(first_line(error))

    def _put_back(self, before: list[Tensor]) -> None:
        for buffer, was in zip(self.network.buffers(), before, strict=True):
            buffer.copy_(was)

    def _aside(self, work: Callable[[], None]) -> None:
        """Does a part of a step, on a stream of its own where it will be captured, which asks for that beforehand."""
        if not self.capture:
            return work()
        side = self._side
        assert side is not None
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                work()
        finally:  # of a step that failed, too: what it launched still writes what is now put back
            torch.cuda.current_stream().wait_stream(side)

    def _record(self) -> None:
        """Captures a step and replays it; where it cannot be captured it runs launch by launch from now on.

        NCCL wants a sum captured by all processes or by none: they go by the one that could not.
        """
        graph, problem = self._captured()
        if any_of(self.process, graph is None):
            self.capture, graph = False, None
            self.compute()
            said = f"the step cannot be captured ({problem or 'another process cannot'})"
            warnings.warn(f"{said}; launching it piece by piece, slower", PrelaxWarning, stacklevel=3)
            return
        assert graph is not None
        self.graph = graph
        graph.replay()  # capturing only records

    def _captured(self) -> tuple[torch.cuda.CUDAGraph | None, str]:
        """A step as a graph, or None and why not."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        try:
            with torch.cuda.graph(graph, stream=self._side):
                self.compute()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            torch.cuda.synchronize()
            generator.graphsafe_set_state(before)  # a failed capture leaves it refusing to give numbers
            return None, first_line(error)
        return graph, ""

    def release(self) -> None:
        """Lets go of the captured step, and of what was set for the whole process: probes multiply in float32.

        NCCL does not end a group while a graph of its sums is alive, but waits.
        """
        self.graph = None
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32 = self._before

    def _uncompile(self) -> None:
        self.fused = self.capture = False
        self.objective.judge = self._plain_judge  # type: ignore[method-assign]
        for encoder in (self.objective.network.online, self.objective.network.target):
            if encoder is not None:
                encoder.backbone._compiled_call_impl = None

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective's loss of the step's images, and what is measured of them."""
        pixels = self.pixels if self.pixels is not None else self.store.batch(self.ids)
        labels = self.labels[self.ids] if self.labels is not None else None
        found: tuple[Tensor, dict[str, Tensor]] = self.module(self.maker(pixels, self.ids, self.keys, labels))
        return found

    def compute(self) -> None:
        """Views, objective, backward, optimiser, moving average, measurements: no waiting for the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, seen = self.loss()
        loss.backward()
        self.optimizer.step()
        self.objective.network.follow(self.tau)
        z = seen.pop("z")
        for name, value in seen.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), device=self.device)
            self.sums[name].add_(value)
        if self.last_z is None:
            self.last_z = torch.zeros_like(z)
        self.last_z.copy_(z)

    # -- what is read back -------------------------------------------------------------------------------------------

    def measurements(self, steps: int) -> dict[str, float]:
        """Means over the epoch's steps, and the effective rank of the last batch; waits for the device."""
        found = dict(zip(sorted(self.sums), (self._sums_of_all().mean(0) / max(steps, 1)).tolist(), strict=True))
        assert self.last_z is not None
        found["effective_rank"] = effective_rank(rows_of_processes(self.last_z))
        if (share := silent_channels(self.objective.network.backbone)) is not None:
            found["silent_channels"] = share
        return found

    def _sums_of_all(self) -> Tensor:
        """What every process has measured of an epoch, by name."""
        values = [self.sums[name] for name in sorted(self.sums)]
        return rows_of_processes(torch.stack(values)[None] if values else self.ids.new_empty(1, 0))  # processes x names

    def state(self) -> dict[str, Any]:
        """Everything that training changes, in all processes: all of them ask for it."""
        return {
            "network": self.objective.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sums": dict(zip(sorted(self.sums), self._sums_of_all().T.clone(), strict=True)),
            "last_z": self.last_z,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state back, in place."""
        try:
            self.objective.network.load_state_dict(state["network"])
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            first = first.split(', "')[0].rstrip(".")  # it may go on to name every weight
            raise PrelaxError(
                f"the checkpoint is of another model than config.yaml says ({first}): bring back the one or the other"
            ) from None
        except (TypeError, AttributeError):
            raise PrelaxError("the checkpoint holds no network") from None
        try:
            load_optimizer(self.optimizer, state["optimizer"])
            self.sums = {name: self._own(value.to(self.device).view(-1)) for name, value in state["sums"].items()}
            last_z = state["last_z"].to(self.device) if state["last_z"] is not None else None
            # Of another number of processes it has other rows: the next step makes it anew.
            self.last_z = last_z if last_z is not None and len(last_z) == len(self.ids) else None
        except (TypeError, AttributeError, KeyError, ValueError, RuntimeError) as error:
            said = (str(error).splitlines() or [""])[0]
            raise PrelaxError(f"the checkpoint is not of this training ({type(error).__name__}: {said})") from None

    def _own(self, sums: Tensor) -> Tensor:
        """This process's part of a sum; their mean where there were more processes, or fewer."""
        return (sums[self.process.rank] if len(sums) == self.process.world else sums.mean()).clone()


def tell_uncompiled(problem: str) -> None:
    warnings.warn(f"torch.compile failed ({problem}); training without it, slower", PrelaxWarning, stacklevel=4)
