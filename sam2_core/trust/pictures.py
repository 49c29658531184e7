"""What two masks of one object differ in, drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sam2_core.types import ImageArray

# Both masks; only the first; only the second.
_BOTH, _FIRST, _SECOND = (70, 200, 90), (235, 70, 60), (70, 120, 240)
_STRENGTH = 0.55
_TILE_PX = 320


def draw_difference(
    pixels: ImageArray, first: bytes, second: bytes, box_xyxy_px: npt.NDArray[np.floating]
) -> ImageArray:
    """Return a crop around a box, as it is and with both masks: green, red only in the first one.

    Args:
        pixels: uint8 (H, W, 3) RGB.
        first: compressed run-length counts of the whole picture, such as an engine's.
        second: the same of the reference's mask; blue where only that is.
        box_xyxy_px: (4,).

    Returns:
        uint8 (T, 2 T, 3).

    """
    from PIL import Image
    from pycocotools import mask as coco_mask

    size = [pixels.shape[0], pixels.shape[1]]
    masks = [coco_mask.decode({"size": size, "counts": one}) > 0 for one in (first, second)]
    picture = pixels.astype(np.float32)
    for where, colour in (
        (masks[0] & masks[1], _BOTH),
        (masks[0] & ~masks[1], _FIRST),
        (masks[1] & ~masks[0], _SECOND),
    ):
        picture[where] = picture[where] * (1 - _STRENGTH) + np.array(colour) * _STRENGTH
    left, top, right, bottom = box_xyxy_px
    side = 1.3 * max(float(right - left), float(bottom - top), 24.0)
    x, y = float(left + right) / 2 - side / 2, float(top + bottom) / 2 - side / 2
    crop = (round(x), round(y), round(x + side), round(y + side))
    tiles = [
        np.asarray(
            Image.fromarray(one).crop(crop).resize((_TILE_PX, _TILE_PX), Image.Resampling.BICUBIC)
        )
        for one in (pixels, picture.astype(np.uint8))
    ]
    return np.hstack(tiles)


def write_difference(
    path: Path,
    pixels: ImageArray,
    first: bytes,
    second: bytes,
    box_xyxy_px: npt.NDArray[np.floating],
) -> None:
    """Write what `draw_difference` draws as a PNG."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw_difference(pixels, first, second, box_xyxy_px)).save(path)
