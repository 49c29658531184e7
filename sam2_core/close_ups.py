"""Close-ups: each box in a crop of its own surroundings instead of the whole frame.

The mask grid of a whole frame has a cell for 5 x 3 pixels of 1280x720; that of a close-up has
several cells for each pixel of a small object. A crop is resized to a small square of the model's
and encoded and decoded on its own, by the same weights at that input size.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sam2_core.preprocess import PreparedFrame, box_prompts, resize_square
from sam2_core.types import FloatArray, ImageArray, IntArray, Prompts
from sam2_core.views import StagedFrame, View

# Of the box's size along an axis, of its size along the other one, and pixels: at least so much of
# its surroundings on each side. The weights are trained with the same numbers.
OWN_MARGIN, OTHER_MARGIN, LEAST_MARGIN_PX = 0.5, 0.25, 8.0


def regions_xyxy_px(boxes_xyxy_px: FloatArray, size_hw: tuple[int, int]) -> IntArray:
    """Return the part of the image that the close-up of each box shows.

    Args:
        boxes_xyxy_px: (N, 4) finite boxes that share some area with the image.
        size_hw: (height, width) of the image.

    Returns:
        int64 (N, 4) left, top, right, bottom, inside the image.

    """
    size = np.array([size_hw[1], size_hw[0]], np.float64)
    corners = np.asarray(boxes_xyxy_px, np.float64).reshape(-1, 2, 2).clip(0, size)
    sides = corners[:, 1] - corners[:, 0]
    margin = np.maximum(OWN_MARGIN * sides, OTHER_MARGIN * sides[:, ::-1])
    margin = np.maximum(margin, LEAST_MARGIN_PX)
    low = np.floor(corners[:, 0] - margin).clip(0, size)
    high = np.ceil(corners[:, 1] + margin).clip(0, size)
    return np.concatenate([low, high], 1).astype(np.int64)


def close_ups(image: ImageArray, xyxy_px: FloatArray, image_size: int) -> PreparedFrame:
    """Prepare a frame as close-ups: cut out and resize the surroundings of each valid box.

    Args:
        image: uint8 (H, W, 3) RGB.
        xyxy_px: float32 (N, 4) in the image's pixels; may be anything.
        image_size: S, side of a close-up as the model sees it.

    """
    frame, regions = _without_pixels((image.shape[0], image.shape[1]), xyxy_px, image_size)
    crops = [
        resize_square(image[top:bottom, left:right], image_size)
        for left, top, right, bottom in regions.tolist()
    ]
    return replace(frame, images_model=crops)


def close_up_views(staged: StagedFrame, xyxy_px: FloatArray, image_size: int) -> PreparedFrame:
    """Prepare a staged frame as close-ups, as `close_ups` does, for a device that cuts them."""
    frame, regions = _without_pixels(staged.size_hw, xyxy_px, image_size)
    return replace(frame, images_model=[View(staged, tuple(one)) for one in regions.tolist()])


def _without_pixels(
    size_hw: tuple[int, int], xyxy_px: FloatArray, image_size: int
) -> tuple[PreparedFrame, IntArray]:
    found = box_prompts(xyxy_px, size_hw, image_size)
    boxes = found.clipped_xyxy_px[found.rows]
    regions = regions_xyxy_px(boxes, size_hw)
    low, sides = regions[:, None, :2], regions[:, None, 2:] - regions[:, None, :2]
    points = found.points_model.copy()
    points[:, :2] = (boxes.reshape(-1, 2, 2) - low) * (image_size / sides)
    prompts = Prompts(points, found.labels, np.arange(len(boxes)))
    return PreparedFrame((), size_hw, prompts, found.rows, found.reasons, regions), regions
