"""Masks of one frame in other forms: pixels, pictures of who owns a pixel, polygons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.export.types import ExportFrame, Instance

Bitmap = npt.NDArray[np.uint8]
Points = npt.NDArray[np.float64]


def rle_dict(instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
    """Return a mask as pycocotools takes it."""
    return {"size": list(size_hw), "counts": instance.rle}


def bitmap(instance: Instance, size_hw: tuple[int, int]) -> Bitmap:
    """Pixels of a mask: uint8 (H, W) of 0 and 1."""
    from pycocotools import mask as coco_mask

    return np.asarray(coco_mask.decode(rle_dict(instance, size_hw)), np.uint8)


def tight_box(instance: Instance, size_hw: tuple[int, int]) -> tuple[float, float, float, float]:
    """Smallest box around a mask: x, y, width, height in pixels."""
    from pycocotools import mask as coco_mask

    x, y, width, height = coco_mask.toBbox(rle_dict(instance, size_hw)).tolist()
    return x, y, width, height


def owners(frame: ExportFrame) -> npt.NDArray[np.int32]:
    """Position of the instance that owns each pixel: int32 (H, W), -1 for none.

    Where masks overlap the pixel belongs to the higher score, of equal ones to the first.
    """
    owner = np.full(frame.size_hw, -1, np.int32)
    order = sorted(range(len(frame.instances)), key=lambda i: (frame.instances[i].score, -i))
    for number in order:
        owner[bitmap(frame.instances[number], frame.size_hw) > 0] = number
    return owner


def png(values: npt.NDArray[Any]) -> bytes:
    """Encode an image of numbers, uint8 or uint16 (H, W), as a grey PNG."""
    import cv2

    return bytes(cv2.imencode(".png", values)[1].tobytes())


def polygons(mask: Bitmap) -> list[Points]:
    """Outlines of a mask, one closed polygon per part, holes joined to their part by a cut.

    A pixel's centre is at +0.5; outlines run a quarter of a pixel inside the pixels' edges, so that
    rasterising by centres gives the mask again.

    Args:
        mask: uint8 (H, W) of 0 and 1.

    Returns:
        float64 (K, 2) x, y in pixels each.

    """
    import cv2

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    crop = mask[top : rows[-1] + 1, left : columns[-1] + 1]
    doubled = np.pad(crop.repeat(2, 0).repeat(2, 1), 1)
    contours, tree = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    parts: dict[int, list[Points]] = {}
    for number, contour in enumerate(contours):
        points = (contour[:, 0, :].astype(np.float64) - 0.5) / 2 + (left, top)
        around = int(tree[0][number][3])
        parts.setdefault(number if around < 0 else around, []).append(points)
    return [_joined(part) for part in parts.values()]


def one_polygon(parts: Sequence[Points]) -> Points:
    """Join the parts of a mask into one polygon by cuts of no width."""
    return _joined(list(parts))


def _joined(rings: list[Points]) -> Points:
    """Join rings one after another, each to the nearest point of what there is."""
    whole = rings[0]
    for ring in rings[1:]:
        here = int(((whole - ring[0]) ** 2).sum(1).argmin())
        whole = np.concatenate([whole[: here + 1], ring, ring[:1], whole[here:]])
    return whole


def polygon_iou(
    parts: Sequence[Points], instance: Instance, size_hw: tuple[int, int]
) -> float:  # fmt: skip
    """IoU of polygons, rasterised as COCO's tools do, with the mask that they stand for."""
    from pycocotools import mask as coco_mask

    flat = [part.ravel().tolist() for part in parts if len(part) >= 3]
    if not flat:
        return 0.0
    drawn = coco_mask.merge(coco_mask.frPyObjects(flat, *size_hw))
    return float(coco_mask.iou([drawn], [rle_dict(instance, size_hw)], [0])[0][0])
