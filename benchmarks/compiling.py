"""Where the time before the first epoch goes: imports, the device, and what each compiled part of a step takes.

    python benchmarks/compiling.py OUT.json RECIPE [KEY=VALUE ...]

Builds the engine of a recipe over noise of CIFAR-10's shape and takes two steps. Compiled parts are timed by their
first call, waiting for the device; under "compiler" are the compiler's own stages, seconds and calls, which hold one
another. For a cold start give an empty folder as TORCHINDUCTOR_CACHE_DIR.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()


def main() -> None:
    out, recipe, *changes = sys.argv[1:]
    said: dict[str, Any] = {"recipe": recipe, "changes": changes}
    clock = lap(said, BEGAN)
    import torch

    clock("import torch")
    from torch._dynamo.utils import compilation_time_metrics

    from prelax.config import resolve
    from prelax.data import ImageSet
    from prelax.train import Engine, Process
    from prelax.train.devices import start_compilers

    clock("import prelax")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    said |= {"hardware": torch.cuda.get_device_name() if cuda else "CPU", "torch": torch.__version__}
    torch.zeros(1, device=device)
    clock("device")
    always = [] if cuda else ["train.compile=always", "augment.compile=always"]
    settings = resolve(recipe, [*always, *changes])
    start_compilers(settings, device)
    batch = settings.train.batch_size
    pixels = torch.randint(0, 256, (2 * batch, 3, 32, 32), dtype=torch.uint8)
    images = ImageSet("noise", pixels, torch.zeros(2 * batch, dtype=torch.int64), ["noise"])
    engine = Engine(settings, images, device, Process())
    clock("engine")

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    def timed(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            wait()
            asked = time.perf_counter()
            given = part(*args, **named)
            wait()
            said.setdefault(name, round(time.perf_counter() - asked, 2))
            return given

        return call

    for number, pipeline in engine.maker.pipelines.items():
        pipeline._sample = timed(f"sample {number}", pipeline._sample)
        pipeline._apply = timed(f"apply {number}", pipeline._apply)
    for number, (alone, shows) in engine.maker.relaxing.items():
        alone._sample = timed(f"relaxed sample {number}", alone._sample)
        shows._apply = timed(f"relaxed apply {number}", shows._apply)
    for owner, name in ((engine.objective, "features"), (engine.objective, "judge"), (engine.optimizer, "step")):
        setattr(owner, name, timed(name, getattr(owner, name)))
    torch.Tensor.backward = timed("backward", torch.Tensor.backward)  # type: ignore[method-assign]
    engine.set_rates(0)
    engine.ids.copy_(torch.arange(batch))
    for step in ("first step", "second step"):
        engine._aside(engine.compute)
        wait()
        clock(step)
    stages = sorted(compilation_time_metrics.items(), key=lambda item: -sum(item[1]))
    said["compiler"] = {name: [round(sum(times), 2), len(times)] for name, times in stages[:40]}
    Path(out).write_text(json.dumps(said, indent=1))
    print(json.dumps(said, indent=1))


def lap(said: dict[str, Any], began: float) -> Callable[[str], None]:
    """Notes the seconds since it was last called, under a name."""
    last = [began]

    def note(name: str) -> None:
        now = time.perf_counter()
        said[name], last[0] = round(now - last[0], 2), now

    return note


if __name__ == "__main__":
    main()
