"""Frames that a device fetches by itself, and the parts of them that it is to look at.

Where a device resizes and cuts, a prepared frame holds no pixels of its own but views: the frame is
uploaded once, as it was decoded, for the detector, the whole frame and every close-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.types import EncoderImage, ImageArray


def checked_image(image: npt.NDArray[Any]) -> ImageArray:
    """Return an image as it is, uint8 (H, W, 3) with at least one pixel.

    Raises:
        ValueError: it is no such image.

    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"expected a uint8 (H, W, 3) image, got {image.dtype} {image.shape}")
    return image


@dataclass(eq=False)
class StagedFrame:
    """A decoded frame in page-locked memory.

    Attributes:
        pixels: uint8 (H, W, 3) RGB; keeps its memory alive.
        gpu: whose memory that is; None: nobody's.
        on_device: the device's copy, made by the device's thread when it is first needed.

    """

    pixels: ImageArray
    gpu: Any = field(default=None, repr=False)
    on_device: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        freeze_arrays(self, pixels="uint8 (H, W, 3)")

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def whole(self) -> View:
        """Return a view of all of it."""
        height, width = self.size_hw
        return View(self, (0, 0, width, height))


@dataclass(frozen=True, eq=False)
class View:
    """A part of a staged frame that is to become a square.

    Attributes:
        frame: the frame.
        region_xyxy_px: left, top, right, bottom, inside the frame.

    """

    frame: StagedFrame
    region_xyxy_px: tuple[int, int, int, int]

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        left, top, right, bottom = self.region_xyxy_px
        return bottom - top, right - left

    def cut(self) -> ImageArray:
        """Return its pixels."""
        left, top, right, bottom = self.region_xyxy_px
        return self.frame.pixels[top:bottom, left:right]


def size_hw_of(image: EncoderImage) -> tuple[int, int]:
    """Return the height and width, in pixels, of what an encoder is given."""
    return image.size_hw if isinstance(image, View) else (image.shape[0], image.shape[1])
