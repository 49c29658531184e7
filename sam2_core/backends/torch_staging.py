"""Host memory that a GPU fetches from by itself, so that uploads wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sam2_core.types import SquareArray


def page_locked(arrays: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
    """Stack arrays of one shape in page-locked memory, from which uploads are asynchronous."""
    dtype = torch.from_numpy(np.empty(0, arrays[0].dtype)).dtype
    target = torch.empty((len(arrays), *arrays[0].shape), dtype=dtype, pin_memory=True)
    np.stack(arrays, out=target.numpy())
    return target


def uploads(images: Sequence[SquareArray]) -> tuple[torch.Tensor, ...]:
    """Return images of one shape as batches in page-locked memory; those that lie there stay."""
    if all(image.flags.writeable for image in images):
        given = [torch.from_numpy(image) for image in images]
        if all(image.is_pinned() for image in given):
            return tuple(image[None] for image in given)
    return (page_locked(images),)
