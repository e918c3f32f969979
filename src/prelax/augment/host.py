"""A plain first stage on the host: torchvision-v2 or albumentations pipelines, image by image, unrecorded.

For what has to happen while images are loaded (decoding, a fixed resize, an augmentation prelax does not have). What
it draws is not in the record; the recorded operations follow on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prelax.errors import PrelaxError


def host_stage(transform: Callable[..., Any]) -> Callable[[Any], Tensor]:
    """A function from one image (tensor C x H x W, PIL image or H x W x C array) to a uint8 tensor C x H x W.

    Give it to a dataset as its transform, or map it over images and stack:

    >>> from torchvision.transforms import v2
    >>> load = host_stage(v2.Compose([v2.CenterCrop(24), v2.RandomPosterize(4, p=0.5)]))
    >>> batch = batch_of(load, torch.zeros(8, 3, 32, 32, dtype=torch.uint8))
    >>> batch.shape, batch.dtype
    (torch.Size([8, 3, 24, 24]), torch.uint8)
    """
    albumentations = type(transform).__module__.partition(".")[0].startswith("albu")

    def stage(image: Any) -> Tensor:
        if albumentations:  # wants H x W x C arrays and names its arguments
            return _as_uint8(transform(image=_as_array(image))["image"])
        return _as_uint8(transform(image))

    return stage


def batch_of(stage: Callable[[Any], Tensor], images: Iterable[Any]) -> Tensor:
    """The stage over all images, stacked: a uint8 batch for a pipeline.  B x C x H x W"""
    made = [stage(image) for image in images]
    shapes = {tuple(image.shape) for image in made}
    if len(shapes) > 1:
        raise PrelaxError(
            f"the host stage gave images of different shapes {sorted(shapes)}; end it with a resize or a crop"
        )
    return torch.stack(made)


def _as_array(image: Any) -> np.ndarray:
    if isinstance(image, Tensor):
        return image.permute(1, 2, 0).contiguous().numpy()
    return np.asarray(image)


def _as_uint8(image: Any) -> Tensor:
    if not isinstance(image, Tensor):
        array = np.asarray(image)  # PIL or numpy: H x W or H x W x C
        image = torch.from_numpy(np.array(array if array.ndim == 3 else array[:, :, None])).permute(2, 0, 1)
    image = image.as_subclass(Tensor)
    if image.dtype.is_floating_point:
        image = (image.clamp(0.0, 1.0) * 255.0).round()
    elif image.dtype != torch.uint8:
        raise PrelaxError(f"the host stage gave {image.dtype}; end it with uint8, or floats in [0, 1]")
    return image.to(torch.uint8).contiguous()
