"""The store on a CUDA device, from each of its three places. Run by hand: see README.md."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prelax.data import Store, order


@pytest.mark.parametrize("where", ["device", "host", "disk"])
def test_batches_on_cuda_are_the_images_at_the_indices(tmp_path: Path, where):
    many = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (5000, 3, 32, 32), dtype=np.uint8))
    store = Store(many, "cuda", where)
    walked = order(3, 1, 5000)
    for indices, images in store.batches(walked, 64):
        busy = torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
        assert torch.equal(images.cpu(), many[indices.cpu()])
        del busy
    assert Store(many, "cuda").where == "device"
