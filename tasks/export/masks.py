"""Masks of one frame in other forms: pixels, and pictures of who owns a pixel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.mask_geometry import Bitmap, Points, one_polygon
from tasks.export.types import ExportFrame, Instance


def rle_dict(instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
    """Return a mask as pycocotools takes it."""
    return {"size": list(size_hw), "counts": instance.rle}


def bitmap(instance: Instance, size_hw: tuple[int, int]) -> Bitmap:
    """Pixels of a mask: uint8 (H, W) of 0 and 1."""
    from pycocotools import mask as coco_mask

    return np.asarray(coco_mask.decode(rle_dict(instance, size_hw)), np.uint8)


def tight_crops(
    frame: ExportFrame,
) -> Iterator[tuple[Instance, tuple[int, int, int, int], npt.NDArray[np.bool_]]]:
    """Yield each label with the smallest box around its mask, xyxy in pixels, and what is in it.

    The masks are bool (height, width) of their boxes; no picture of the whole image is made.
    """
    from tasks.masks.crops import paint, segments_of

    segments = segments_of([one.rle for one in frame.instances], frame.size_hw)
    bounds = segments.bounds_xyxy_px()
    masks = paint(segments, bounds)
    for one, box, mask in zip(frame.instances, bounds.tolist(), masks, strict=True):
        left, top, right, bottom = box
        yield one, (left, top, right, bottom), np.ascontiguousarray(mask)


def tight_box(instance: Instance, size_hw: tuple[int, int]) -> tuple[float, float, float, float]:
    """Smallest box around a mask: x, y, width, height in pixels."""
    from pycocotools import mask as coco_mask

    x, y, width, height = coco_mask.toBbox(rle_dict(instance, size_hw)).tolist()
    return x, y, width, height


COVERED = "wholly covered by labels of higher scores"


def owners(
    frame: ExportFrame, written: Collection[int] | None = None
) -> tuple[npt.NDArray[np.int32], int]:
    """Who owns each pixel, and how many labels own none.

    Where masks overlap the pixel belongs to the higher score, of equal ones to the first.

    Args:
        frame: with its labels.
        written: positions of the labels that are written, None for all: no other owns a pixel.

    Returns:
        The position of the owner, int32 (H, W), -1 for nobody; and the number of labels, of those
        written, that are wholly covered by others.

    """
    among = range(len(frame.instances)) if written is None else written
    owner = np.full(frame.size_hw, -1, np.int32)
    for number in sorted(among, key=lambda i: (frame.instances[i].score, -i)):
        owner[bitmap(frame.instances[number], frame.size_hw) > 0] = number
    return owner, len(among) - len(np.unique(owner[owner >= 0]))


def png(values: npt.NDArray[Any]) -> bytes:
    """Encode an image of numbers, uint8 or uint16 (H, W), as a grey PNG."""
    import cv2

    return bytes(cv2.imencode(".png", values)[1].tobytes())


def polygon_iou(parts: Sequence[Points], instance: Instance, size_hw: tuple[int, int]) -> float:
    """IoU of polygons, rasterised as COCO's tools do, with the mask that they stand for."""
    from pycocotools import mask as coco_mask

    # Parts lie apart: as one polygon they have the same pixels, in a hundredth of the time.
    (drawn,) = coco_mask.frPyObjects([one_polygon(parts).ravel().tolist()], *size_hw)
    return float(coco_mask.iou([drawn], [rle_dict(instance, size_hw)], [0])[0][0])


class PolygonLoss:
    """Mean and worst IoU of polygons with the masks that they stand for."""

    def __init__(self) -> None:
        self._count, self._sum, self._worst = 0, 0.0, 1.0

    def note(self, iou: float) -> None:
        """Count one mask."""
        self._count += 1
        self._sum += iou
        self._worst = min(self._worst, iou)

    def facts(self) -> dict[str, Any]:
        """Return the figures for the report."""
        if not self._count:
            return {}
        mean = self._sum / self._count
        return {"polygon_iou_mean": round(mean, 6), "polygon_iou_worst": round(self._worst, 6)}
