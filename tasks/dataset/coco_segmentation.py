"""Masks as COCO instances json holds them: polygons, run lengths, compressed run lengths.

What is no mask is found here: pycocotools asks for memory until the process is killed where a
corner is far away or no number, and reads memory that nobody wrote where runs end too early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Objects may reach over the picture's edge; corners so many pictures away are damage.
_MOST_PICTURES_AWAY = 10
# Of a run length's code: 7 * 5 bits hold what any picture needs.
_MOST_CHARACTERS = 7


def to_rle(segmentation: Any, size_hw: tuple[int, int]) -> bytes:
    """One COCO segmentation as compressed run-length counts of the whole image.

    Args:
        segmentation: polygons (lists of x, y), uncompressed counts or compressed counts.
        size_hw: (height, width) of the image.

    Raises:
        ValueError: when it is none of these, its size is not the image's, or no pixel is in it.

    """
    from pycocotools import mask as coco_mask

    if isinstance(segmentation, list):
        rle = _of_polygons(segmentation, size_hw)
    elif isinstance(segmentation, dict) and "counts" in segmentation:
        rle = _of_counts(segmentation, size_hw)
    else:
        raise ValueError("a segmentation is a list of polygons or an object with counts and size")
    if not coco_mask.area({"counts": rle, "size": list(size_hw)}):
        raise ValueError("the mask has no pixel in the picture")
    return rle


def _of_polygons(polygons: list[Any], size_hw: tuple[int, int]) -> bytes:
    from pycocotools import mask as coco_mask

    height, width = size_hw
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) % 2:
            raise ValueError("a polygon is a list of x, y, x, y, ...: an even count of numbers")
        if not all(_near(x, width) and _near(y, height) for x, y in _corners(polygon)):
            raise ValueError("a corner of the polygon is not a finite number near the picture")
    kept = [polygon for polygon in polygons if len(polygon) >= 6]
    if not kept:
        raise ValueError("a polygon needs at least three points")
    return bytes(coco_mask.merge(coco_mask.frPyObjects(kept, height, width))["counts"])


def _corners(polygon: Sequence[Any]) -> zip[tuple[Any, Any]]:
    return zip(polygon[::2], polygon[1::2], strict=True)


def _near(value: Any, side_px: int) -> bool:
    number = isinstance(value, int | float) and math.isfinite(value)
    return number and -_MOST_PICTURES_AWAY <= value / side_px <= _MOST_PICTURES_AWAY + 1


def _of_counts(segmentation: dict[str, Any], size_hw: tuple[int, int]) -> bytes:
    from pycocotools import mask as coco_mask

    height, width = size_hw
    size = tuple(int(value) for value in segmentation.get("size", size_hw))
    if size != size_hw:
        told = "x".join(map(str, size))
        raise ValueError(f"the mask is {told}, the image {height}x{width} (h x w)")
    counts = segmentation["counts"]
    if isinstance(counts, list):
        if not all(type(run) is int and run >= 0 for run in counts):
            raise ValueError("counts are whole numbers of pixels")
        _check_sum(sum(counts), size_hw)
        return bytes(coco_mask.frPyObjects({"counts": counts, "size": size}, *size_hw)["counts"])
    if not isinstance(counts, str):
        raise ValueError("counts are a list of numbers or a text")
    rle = counts.encode()
    _check_sum(sum(_runs(rle)), size_hw)
    return rle


def _check_sum(pixels: int, size_hw: tuple[int, int]) -> None:
    wanted = size_hw[0] * size_hw[1]
    if pixels != wanted:
        raise ValueError(f"counts add up to {pixels}, not to {wanted} pixels")


def _runs(rle: bytes) -> list[int]:
    """Decode COCO's text of run lengths: see `sam2_core.rle`; `ValueError` when it is none."""
    runs: list[int] = []
    value = place = 0
    for character in rle:
        code = character - 48
        if not 0 <= code < 64 or place == _MOST_CHARACTERS:
            raise ValueError("counts are no run lengths in COCO's code")
        value |= (code & 0x1F) << (5 * place)
        place += 1
        if code & 0x20:
            continue
        if code & 0x10:
            value -= 1 << (5 * place)
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        if runs[-1] < 0:
            raise ValueError("counts are no run lengths in COCO's code")
        value = place = 0
    if place:
        raise ValueError("counts end in the middle of a number")
    return runs


def rle_box_xyxy_px(rle: bytes, size_hw: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Bound a mask: float32 (4,) left, top, right, bottom; zeros when it is empty."""
    from pycocotools import mask as coco_mask

    x, y, w, h = coco_mask.toBbox({"counts": rle, "size": list(size_hw)})
    return np.array([x, y, x + w, y + h], np.float32)


def areas_px(rles: Sequence[bytes], size_hw: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Count the pixels of N masks: int64 (N,)."""
    from pycocotools import mask as coco_mask

    # One by one: `area` of more than 255 masks fails with NumPy 2.
    sized = [{"counts": one, "size": list(size_hw)} for one in rles]
    return np.array([int(coco_mask.area(one)) for one in sized], np.int64)
