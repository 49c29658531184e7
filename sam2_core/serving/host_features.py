"""Features of encoded images between a backend's own form and arrays that processes can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sam2_core.backends.protocol import Backend, HostFeatures
from sam2_core.types import AutolabelError, Features


def to_host(backend: Backend, features: Features) -> HostFeatures:
    """Return features as arrays of this machine's memory, first dimension B.

    Raises:
        AutolabelError: nobody knows how, for this backend.

    """
    copied = backend.features_to_host(features)
    if copied is not None:
        return copied
    data = features.data
    if isinstance(data, Mapping) and all(isinstance(one, np.ndarray) for one in data.values()):
        return dict(data)
    if isinstance(data, tuple) and all(hasattr(one, "cpu") for one in data):  # PyTorch's
        return {str(index): one.cpu().numpy() for index, one in enumerate(data)}
    raise AutolabelError("the features of this backend cannot leave its process: serve another one")


def from_host(
    backend: Backend,
    arrays: HostFeatures,
    sizes_hw: Sequence[tuple[int, int]],
    example: Features,
) -> Features:
    """Return arrays of `to_host` as features again, where and as `example` has its own."""
    copied = backend.features_from_host(arrays, sizes_hw)
    if copied is not None:
        return copied
    batch = len(sizes_hw)
    if isinstance(example.data, Mapping):
        return Features(dict(arrays), batch, tuple(sizes_hw))
    import torch

    found = tuple(
        torch.from_numpy(np.array(arrays[str(index)])).to(one.device)
        for index, one in enumerate(example.data)
    )
    return Features(found, batch, tuple(sizes_hw))


def rows_of(
    arrays: Mapping[str, np.ndarray[Any, Any]], start: int, stop: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the features of some images of a batch."""
    return {name: array[start:stop] for name, array in arrays.items()}
