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


def upload_of(image: SquareArray) -> torch.Tensor:
    """Return an image as a batch of one in page-locked memory; one that lies there stays."""
    if image.flags.writeable:
        given = torch.from_numpy(image)
        if given.is_pinned():
            return given[None]
    return page_locked([image])
