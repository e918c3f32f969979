"""A pipeline: operations one after the other, the record of what each drew, and views that can be replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from prelax.augment.colour import Normalise
from prelax.augment.geometry import Crop, Flip
from prelax.augment.operation import Named, Operation, Params, Shape, targets_at, trait
from prelax.draws import Draws
from prelax.errors import PrelaxError, PrelaxWarning, first_line
from prelax.record import Record, Target, View

FLOATS = (torch.float16, torch.bfloat16, torch.float32)

# What the compiler is told. A hash uses each number twice, and what is not kept is written out again at each use: keep
# more of it. Block sizes of kernels this small are not worth trying out.
SAMPLING = {"realize_opcount_threshold": 12, "triton.autotune_pointwise": False}
# Stacked colour planes written one by one share their arithmetic; as one masked kernel they would each repeat it.
APPLYING = {"max_pointwise_cat_inputs": 0}


class Pipeline:
    """Views of a batch: every image gets its own parameters, where the batch is, and the record tells them.

    >>> from prelax.augment import preset
    >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    >>> pipeline = preset("simsiam-32")
    >>> view = pipeline(images, 0)
    >>> view.images.shape, view.record["crop.area"].shape
    (torch.Size([8, 3, 32, 32]), torch.Size([8]))
    >>> torch.equal(pipeline.replay(images, view.record), view.images)
    True

    ``ops`` are its operations and ``specs`` all their pretext targets, in the same order; ``specs_at`` has them as they
    are drawn for images of a size, and so has a record.
    """

    def __init__(self, ops: Sequence[Operation]) -> None:
        self.ops = tuple(ops)
        self.specs: tuple[Target, ...] = tuple(target for op in self.ops for target in op.targets)
        names = [op.name for op in self.ops]
        for name in names:
            if names.count(name) > 1:
                raise PrelaxError(f"two operations are called {name!r}: give one another name, Named(op, '{name}-2')")
        self._sample: Callable[..., dict[str, Tensor]] = self._sample_columns
        self._apply: Callable[..., Tensor] = self._apply_columns
        self._compiled = False
        self._specs_at: dict[tuple[int, ...], tuple[Target, ...]] = {}

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(map(repr, self.ops))})"

    @property
    def stages(self) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """The operations before the first Normalise, and the rest: a relaxed operation goes between them."""
        cut = next((i for i, op in enumerate(self.ops) if isinstance(op, Normalise)), len(self.ops))
        return self.ops[:cut], self.ops[cut:]

    def __call__(
        self,
        images: Tensor,
        generator: Draws | torch.Generator | int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> View:
        """A view of uint8 images (or floats in [0, 1]): ``images`` of the asked dtype and their ``record``."""
        self.check(images)
        shape: Shape = tuple(images.shape)  # type: ignore[assignment]
        record = self.sample(shape, Draws.of(generator, shape[0], images.device))
        return View(self.apply(images, record, dtype), record)

    def sample(self, shape: Shape, draws: Draws) -> Record:
        """What to do to a batch of this shape (B x C x H x W, before any operation), as a record."""
        if len(draws) != shape[0]:
            raise PrelaxError(f"draws have {len(draws)} rows for a batch of {shape[0]} images")
        if self._compiled:  # an int key would be compiled in; a tensor is an input
            draws = draws.on_device()
        return Record(self._sample(shape, draws.key, draws.rows), self.specs_at(shape))

    def specs_at(self, shape: Shape) -> tuple[Target, ...]:
        """The pretext targets, standardised as they are drawn for a batch of this shape (before any operation)."""
        size = shape[1:]
        if size not in self._specs_at:
            found: list[Target] = []
            for op in self.ops:
                found += targets_at(op, shape)
                shape = output_shape(op, shape)
            self._specs_at[size] = tuple(found)
        return self._specs_at[size]

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of a view of a batch of this shape."""
        for op in self.ops:
            shape = output_shape(op, shape)
        return shape

    def apply(
        self,
        images: Tensor,
        record: Record,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """The view that a record describes. The input is not modified."""
        self.check(images)
        if dtype not in FLOATS:
            raise PrelaxError(f"a view is float16, bfloat16 or float32, not {dtype}")
        return self._apply(images, record.columns, dtype, memory_format)

    def replay(self, images: Tensor, record: Record, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same view again, bit for bit, from its record (which may have been to disk and back)."""
        return self.apply(images, record.map(lambda column: column.to(images.device)), dtype)

    def compiled(self) -> Pipeline:
        """This pipeline fused by ``torch.compile``; where that fails it stays eager, and one warning says so."""
        twin = Pipeline(self.ops)
        twin._sample = _compile_or_eager(twin._sample_columns, SAMPLING)
        twin._apply = _compile_or_eager(twin._apply_columns, APPLYING)
        twin._compiled = True
        return twin

    def check(self, images: Tensor) -> None:
        """Refuse a batch this pipeline cannot work on, in one line."""
        if not isinstance(images, Tensor):
            kind = f"{type(images).__module__.partition('.')[0]}.{type(images).__name__}".removeprefix("builtins.")
            raise PrelaxError(
                f"images must be a tensor B x C x H x W, not a {kind}: torch.as_tensor makes one of an array"
            )
        if images.ndim != 4 or 0 in images.shape[1:]:
            raise PrelaxError(f"images must be B x C x H x W, got shape {tuple(images.shape)}")
        if images.dtype != torch.uint8 and not images.dtype.is_floating_point:
            raise PrelaxError(f"images must be uint8, or floats in [0, 1], got {images.dtype}: convert them first")
        for op in self.ops:
            if trait(op, "needs_rgb") and images.shape[1] != 3:
                raise PrelaxError(
                    f"{op.name} works on RGB and the images have {images.shape[1]} channel(s): leave it out "
                    f"(presets do so with channels={images.shape[1]})"
                )

    def _sample_columns(self, shape: Shape, key: int | Tensor, rows: Tensor) -> dict[str, Tensor]:
        draws = Draws(key, rows, rows.device)
        columns = {}
        for op in self.ops:
            params = op.make_params(shape, draws.at(op.name))
            columns.update({f"{op.name}.{name}": column for name, column in params.items()})
            shape = output_shape(op, shape)
        return columns

    def _apply_columns(
        self, images: Tensor, columns: dict[str, Tensor], dtype: torch.dtype, memory_format: torch.memory_format
    ) -> Tensor:
        return run(self.ops, images, columns).to(dtype).contiguous(memory_format=memory_format)


def output_shape(op: Operation, shape: Shape) -> Shape:
    """The shape after an operation; only a crop changes it, or an operation with an ``output_shape`` of its own."""
    own = trait(op, "output_shape", None)
    return own(shape) if own is not None else shape


def params_of(op: Operation, columns: dict[str, Tensor]) -> Params:
    """An operation's own columns, without its name."""
    start = f"{op.name}."
    return {name[len(start) :]: column for name, column in columns.items() if name.startswith(start)}


def run(ops: Sequence[Operation], images: Tensor, columns: dict[str, Tensor]) -> Tensor:
    """Images after the operations; flips right after a crop cost nothing, they fold into its products."""
    if images.dtype != torch.uint8:
        images = images.to(torch.float32)
    elif not ops or not trait(ops[0], "takes_uint8"):
        images = images.to(torch.float32) / 255.0
    ops = list(ops)
    while ops:
        op = ops.pop(0)
        params = params_of(op, columns)
        if isinstance(op, Crop):
            flips: dict[str, Tensor] = {}
            while ops and isinstance(ops[0], Flip) and (axis := "flip_y" if ops[0].vertical else "flip_x") not in flips:
                flips[axis] = params_of(ops.pop(0), columns)["applied"]
            images = op.transform(images, params, **flips)
        else:
            images = op.transform(images, params)
    return images


def relaxation(pipeline: Pipeline, op: Operation) -> Operation:
    """The operation as a relaxed third view uses it: renamed ``relaxed-...`` if the pipeline has one of that name.

    One of which only whether it was done is known, and that is done always or never, is done every other time.

    >>> from prelax.augment import Grey
    >>> relaxation(Pipeline(()), Grey(1.0)).p
    0.5
    """
    if getattr(op, "p", None) in (0.0, 1.0) and all(target.kind == "binary" for target in op.targets):
        op = replace(op, p=0.5)  # type: ignore[type-var]
    return Named(op, f"relaxed-{op.name}") if any(op.name == other.name for other in pipeline.ops) else op


def relaxed_pipelines(pipeline: Pipeline, op: Operation) -> tuple[Pipeline, Pipeline]:
    """The operation alone, which draws it, and what shows it: see ``relaxed_view``."""
    op = relaxation(pipeline, op)
    alone, (before, after) = Pipeline((op,)), pipeline.stages
    return alone, alone if trait(op, "moves_pixels") else Pipeline((*before, op, *after))


def relaxed_view(
    pipeline: Pipeline,
    view: View,
    op: Operation,
    images: Tensor,
    draws: Draws,
    given: Mapping[str, Tensor] | None = None,
) -> View:
    """The third view: view 1 with one more operation, sharing all of view 1's record.

    An operation that only moves pixels (rotation, flips, jigsaw) acts on view 1's finished images; any other is put
    between view 1's operations and its normalisation, and view 1 is made again from its record.

    Args:
        pipeline: the one that made ``view``.
        view: view 1, finished.
        op: the relaxed operation; where the pipeline has one of its name, what ``relaxation`` makes of it, whose
            targets are told from view 1's.
        images: the batch view 1 was made of (not looked at if the operation only moves pixels).
        draws: where the operation's parameters come from, for example ``draws.at("view", 3)``.
        given: parameters that are not drawn but given, by column, for example ``{"rotation.turns": turns}``.
    """
    if any(op.name == other.name for other in pipeline.ops):
        raise PrelaxError(
            f"the pipeline has a {op.name} of its own, and a head trained on {op.name}'s targets would be told what "
            "view 1 drew: op = prelax.augment.relaxation(pipeline, op) before it is shown and asked for"
        )
    return show_relaxed(relaxed_pipelines(pipeline, op), view, images, draws, given)


def show_relaxed(
    pipelines: tuple[Pipeline, Pipeline],
    view: View,
    images: Tensor,
    draws: Draws,
    given: Mapping[str, Tensor] | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> View:
    """``relaxed_view`` by pipelines of ``relaxed_pipelines`` that were made once, and perhaps compiled."""
    alone, shows = pipelines
    drawn = alone.sample(tuple(view.images.shape), draws)  # type: ignore[arg-type]
    columns = {name: (given or {}).get(name, column) for name, column in drawn.items()}
    (op,) = alone.ops
    if given and (completed := trait(op, "completed", None)) is not None:
        columns = {f"{op.name}.{name}": column for name, column in completed(params_of(op, columns)).items()}
    record = view.record.then(Record(columns, drawn.specs))
    source = view.images if shows is alone else images
    return View(shows.apply(source, record, view.images.dtype, memory_format), record)


def _compile_or_eager(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """The function compiled; eager, with one warning, wherever that fails (no compiler, too many shapes)."""

    def frame(*args: Any) -> Any:
        return function(*args)

    # The compiler counts recompilations per code object: without one of its own, pipelines would share a limit.
    own = FunctionType(frame.__code__.replace(), frame.__globals__, frame.__name__, None, frame.__closure__)
    fused = torch.compile(own, fullgraph=True, dynamic=False, options=options)
    state = {"worked": False, "failed": False}

    def call(*args: Any) -> Any:
        if state["failed"] and not state["worked"]:
            return function(*args)
        try:
            out = fused(*args)
            state["worked"] = True
            return out
        except Exception as error:
            out = function(*args)  # says it in plain words if the fault is one of the input
            if not state["failed"]:
                said = f"torch.compile failed ({first_line(error)}); augmenting without it, slower"
                warnings.warn(said, PrelaxWarning, stacklevel=3)
            state["failed"] = True
            return out

    return call
