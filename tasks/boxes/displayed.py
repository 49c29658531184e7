"""Imported boxes on the picture that people and models see: the one that EXIF has turned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sam2_core.types import Boxes
from tasks.boxes.coco_boxes import BadBoxesError
from tasks.frames.images import stored_size
from tasks.frames.orientation import UPRIGHT, shown_size, turn_boxes
from tasks.types import FrameRef


def as_displayed(
    boxes: Boxes,
    made_on_hw: tuple[int, int] | None,
    frame: FrameRef,
    *,
    fractions: bool = False,
) -> Boxes:
    """Return boxes in pixels of a downloaded frame as displayed.

    Args:
        boxes: as imported.
        made_on_hw: (height, width) of the picture that they were made on, None where nobody says.
        frame: only its header is read.
        fractions: the boxes are in fractions of the picture, not in pixels.

    Raises:
        BadBoxesError: they were made on a picture of another size, or nothing tells whether on the
            turned one.
        BadImageError: the header cannot be read.

    """
    stored_hw, orientation = stored_size(frame)
    shown_hw = shown_size(stored_hw, orientation)
    if made_on_hw is not None and made_on_hw not in {stored_hw, shown_hw}:
        raise BadBoxesError(
            f"the boxes are for {made_on_hw[1]}x{made_on_hw[0]} pixels, the frame has "
            f"{shown_hw[1]}x{shown_hw[0]}"
        )
    if fractions:
        boxes = replace(boxes, xyxy_px=boxes.xyxy_px * np.array(stored_hw[::-1] * 2, np.float32))
    if orientation == UPRIGHT or (made_on_hw == shown_hw and shown_hw != stored_hw):
        return boxes
    if made_on_hw is None or shown_hw == stored_hw:
        raise BadBoxesError(
            f"EXIF orientation {orientation} turns the frame, but nothing says whether the boxes "
            "are for the picture before or after that; save the picture turned, or give COCO boxes "
            "with width and height of the picture that they were made on"
        )
    return replace(boxes, xyxy_px=turn_boxes(boxes.xyxy_px, stored_hw, orientation))
