"""EXIF orientations (1 to 8; TIFF 6.0, tag 274): stored pictures and their boxes, as displayed."""

from __future__ import annotations

import numpy as np

from sam2_core.types import FloatArray, ImageArray

UPRIGHT = 1
# How a stored picture is turned: first transposed, then mirrored left to right, then upside down.
_TRANSPOSED = frozenset({5, 6, 7, 8})
_MIRRORED = frozenset({2, 3, 6, 7})
_UPSIDE_DOWN = frozenset({3, 4, 7, 8})


def shown_size(stored_hw: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) as displayed of a picture as stored."""
    height, width = stored_hw
    return (width, height) if orientation in _TRANSPOSED else stored_hw


def turn_pixels(pixels: ImageArray, orientation: int) -> ImageArray:
    """Turn a stored picture, uint8 (H, W, 3), to how it is displayed."""
    if orientation in _TRANSPOSED:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def turn_boxes(xyxy_px: FloatArray, stored_hw: tuple[int, int], orientation: int) -> FloatArray:
    """Turn boxes, float32 (N, 4) in pixels of the stored picture, with it."""
    height, width = shown_size(stored_hw, orientation)
    left, top, right, bottom = xyxy_px.T
    if orientation in _TRANSPOSED:
        left, top, right, bottom = top, left, bottom, right
    if orientation in _MIRRORED:
        left, right = width - right, width - left
    if orientation in _UPSIDE_DOWN:
        top, bottom = height - bottom, height - top
    return np.stack([left, top, right, bottom], axis=1)
