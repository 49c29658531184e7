"""The frame that is measured, and ways from its bytes to encoded masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sam2_core.types import Boxes, FloatArray, ImageArray


@dataclass(frozen=True, eq=False)
class BenchFrame:
    """One encoded image and its boxes.

    Attributes:
        data: the image file's bytes.
        decode: bytes to uint8 (H, W, 3) RGB, as the product reads frames.
        boxes: in the image's pixels.
        source: what a reader of the results is told.

    """

    data: bytes
    decode: Callable[[bytes], ImageArray]
    boxes: Boxes
    source: str

    def read(self) -> ImageArray:
        """Decode the image."""
        return self.decode(self.data)


def crowded(xyxy_px: FloatArray, count: int, size_hw: tuple[int, int], seed: int = 0) -> FloatArray:
    """Return `count` boxes: the first ones as given, then jittered copies of them.

    A copy is shifted by up to half its size and scaled by 0.8 to 1.25: a crowded frame whose boxes
    have the sizes that boxes have.

    Args:
        xyxy_px: float32 (N, 4), N at least 1.
        count: how many to return.
        size_hw: (height, width) of the image, which copies are moved into.
        seed: of the jitter.

    Returns:
        float32 (count, 4).

    """
    given = np.asarray(xyxy_px, np.float32).reshape(-1, 4)
    if len(given) == 0:
        raise ValueError("no box to make copies of")
    generator = np.random.default_rng(seed)
    copies = given[np.arange(max(count - len(given), 0)) % len(given)]
    centre = (copies[:, :2] + copies[:, 2:]) / 2
    size = copies[:, 2:] - copies[:, :2]
    centre = centre + generator.uniform(-0.5, 0.5, centre.shape) * size
    half = size * generator.uniform(0.8, 1.25, size.shape) / 2
    limits = np.array([size_hw[1], size_hw[0]], np.float32)
    centre = np.clip(centre, half, np.maximum(limits - half, half))
    moved = np.concatenate([centre - half, centre + half], 1).astype(np.float32)
    return np.concatenate([given, moved])[:count]
