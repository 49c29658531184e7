"""Frames that a device fetches by itself, and the parts of them that it is to look at.

Where a device resizes and cuts, a prepared frame holds no pixels of its own but views: the frame is
uploaded once, as it was decoded, for the detector, the whole frame and every close-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sam2_core.arrays import freeze_arrays
from sam2_core.types import ImageArray


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
