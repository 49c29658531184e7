"""Connected parts of a mask: which of them are too small to be meant."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tasks.masks.crops import BoolArray


def without_small_parts(
    mask: BoolArray, wanted: BoolArray | None = None, least: int | None = None, share: float = 0.0
) -> BoolArray:
    """Drop the small ones of a mask's connected parts; diagonal neighbours are of one part.

    Args:
        mask: bool (height, width).
        wanted: bool (height, width); a part with one of these pixels stays.
        least: pixels of a part that stays; by default a share of the largest one.
        share: of the largest part.

    """
    import cv2

    _, parts, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    areas: npt.NDArray[np.int32] = stats[:, cv2.CC_STAT_AREA]
    if least is None:
        least = int(share * areas[1:].max(initial=0))
    stays = areas >= least
    if wanted is not None:
        stays[parts[wanted & mask]] = True
    stays[0] = False
    kept: BoolArray = stays[parts]
    return kept
