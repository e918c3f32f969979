"""Augmentations on a CUDA device: the CPU's records and pixels, no waiting, capture. Run by hand: see README.md."""

import pytest
import torch

from prelax.augment import OPERATIONS, Pipeline, operation, presets, relaxation, relaxed_view
from prelax.draws import Draws


def pictures(batch: int = 64, size: int = 36) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (batch, 3, size, size), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("name", ["simsiam-32", "byol-128", "medical", "satellite"])
def test_cuda_and_cpu_draw_the_same_record_and_make_the_same_view(name: str) -> None:
    images = pictures()
    for pipeline in presets(name, size=32):
        here, there = pipeline(images, 5), pipeline(images.cuda(), 5)
        for column in here.record:
            torch.testing.assert_close(there.record[column].cpu(), here.record[column], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(there.images.cpu(), here.images, rtol=0, atol=2e-4)


def test_tf32_and_autocast_around_a_pipeline_change_nothing() -> None:
    images, (pipeline, _) = pictures().cuda(), presets("byol-128", size=32)
    expected = pipeline(images, 1).images
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(pipeline(images, 1).images, expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_nothing_waits_for_the_device() -> None:
    images = pictures().cuda()
    names = [name for name in OPERATIONS if name != "normalise"]
    everything = Pipeline([operation(name) for name in names] + [operation("normalise", mean=(0.5,), std=(0.2,))])
    everything(images, 0)
    generator = torch.Generator("cuda").manual_seed(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for source in (0, None, generator, Draws(torch.zeros((), dtype=torch.int64, device="cuda"), len(images))):
            view = everything(images, source)
            for name in ("rotation", "crop"):
                op = relaxation(everything, operation(name))
                relaxed_view(everything, view, op, images, Draws(1, len(images), "cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_cuda_graph_replays_with_a_new_key() -> None:
    images, (pipeline, _) = pictures().cuda(), presets("simsiam-32")
    key = torch.zeros((), dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            pipeline(images, Draws(key, len(images)))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view = pipeline(images, Draws(key, len(images)))
    for seed in (3, 4):
        key.fill_(seed)
        graph.replay()
        expected = pipeline(images, seed)
        assert torch.equal(view.record["crop.top"], expected.record["crop.top"])
        torch.testing.assert_close(view.images, expected.images)


def test_compiled_on_cuda_is_the_eager_view() -> None:
    images, (pipeline, _) = pictures().cuda(), presets("simsiam-32")
    eager, fused = pipeline(images, 7), pipeline.compiled()(images, 7)
    torch.testing.assert_close(fused.images, eager.images, rtol=0, atol=1e-4)
