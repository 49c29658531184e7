"""An engine's masks held against the answers of PyTorch in float32."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.mask_geometry import (
    SIZES,
    SMALL_AREA_PX,
    boundary_f,
    boundary_tolerance_px,
    mask_iou,
    size_class,
)
from sam2_core.segmenter import Segmenter
from sam2_core.trust.answers import Answers, ImageAnswers, answers_of
from sam2_core.trust.calibration import Calibration, CalibrationImage
from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, POINT_PADDING, AutolabelError, Prompts


@dataclass(frozen=True)
class Compared:
    """One mask of the engine beside the reference's.

    Attributes:
        image: index of the picture.
        row: of its boxes.
        iou: of the two masks.
        boundary_f: of the two outlines.
        area_px: of the reference's mask.
        predicted_iou_apart: how far the two predictions of IoU are apart.
        logits_apart: root mean square of the logits' difference, in the reference's deviations.

    """

    image: int
    row: int
    iou: float
    boundary_f: float
    area_px: int
    predicted_iou_apart: float
    logits_apart: float


def engine_answers(segmenter: Segmenter, image: CalibrationImage) -> tuple[ImageAnswers, float]:
    """Segment a picture's boxes as labeling does; returns the masks and the seconds it took."""
    started = time.perf_counter()
    prepared = segmenter.prepare(image.pixels, image.boxes)
    (low_res,) = segmenter.run([prepared])
    masks = segmenter.finish(prepared, low_res)
    return answers_of(masks.rle, low_res), time.perf_counter() - started


def _together(segmenter: Segmenter, images: Sequence[CalibrationImage]) -> list[ImageAnswers]:
    """Segment pictures in batches of frames, which other graphs may decode than single ones."""
    found: list[ImageAnswers] = []
    for start in range(0, len(images), segmenter.frame_batch):
        some = images[start : start + segmenter.frame_batch]
        prepared = [segmenter.prepare(image.pixels, image.boxes) for image in some]
        for one, low_res in zip(prepared, segmenter.run(prepared), strict=True):
            found.append(answers_of(segmenter.finish(one, low_res).rle, low_res))
    return found


def compared(
    segmenter: Segmenter, calibration: Calibration, answers: Answers
) -> tuple[list[Compared], list[ImageAnswers], float]:
    """Hold an engine against recorded answers.

    Where labeling segments several frames at once, pictures are segmented alone and so, and what
    is farther from the reference counts.

    Returns:
        Every mask beside the reference's, the engine's answers, and milliseconds for a picture
        (the median; the first one's are not counted where there are several).

    Raises:
        AutolabelError: the answers are those for other pictures or another way to segment.

    """
    if (answers.calibration, answers.close_ups) != (calibration.digest, segmenter.close_ups):
        raise AutolabelError("the reference's answers are those to other pictures")
    rows: list[Compared] = []
    found: list[ImageAnswers] = []
    seconds: list[float] = []
    batched = _together(segmenter, calibration.images) if segmenter.frame_batch > 1 else []
    for index, (image, expected) in enumerate(zip(calibration.images, answers.images, strict=True)):
        given, spent = engine_answers(segmenter, image)
        seconds.append(spent)
        tries = [given, *(batched[index : index + 1])]
        worst = max(tries, key=lambda one: _logits_apart(one, expected).max(initial=0))
        found.append(worst)
        rows += _rows(index, image, worst, expected)
    return rows, found, float(np.median(seconds[1:] or seconds)) * 1e3


def _rows(
    index: int, image: CalibrationImage, given: ImageAnswers, expected: ImageAnswers
) -> list[Compared]:
    from pycocotools import mask as coco_mask

    size_hw = image.size_hw
    tolerance = boundary_tolerance_px(size_hw)
    rows = []
    apart = _logits_apart(given, expected)
    for row, (own, true) in enumerate(zip(given.rle, expected.rle, strict=True)):
        rows.append(
            Compared(
                index, row, mask_iou(own, true, size_hw),
                boundary_f(own, true, size_hw, tolerance),
                int(coco_mask.area({"counts": true, "size": list(size_hw)})),
                abs(float(given.predicted_iou[row]) - float(expected.predicted_iou[row])),
                float(apart[row]),
            )
        )  # fmt: skip
    return rows


def _logits_apart(given: ImageAnswers, expected: ImageAnswers) -> npt.NDArray[np.float64]:
    """Root mean square of the logits' difference, in deviations: (N,), infinite for NaN."""
    reference = expected.logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        squares = ((given.logits - reference) ** 2).mean(axis=(1, 2))
    apart: npt.NDArray[np.float64] = np.sqrt(squares) / np.maximum(reference.std(axis=(1, 2)), 1e-6)
    return np.nan_to_num(apart, nan=np.inf, posinf=np.inf)


def coordinates_kept(segmenter: Segmenter, image: CalibrationImage) -> bool:
    """Whether the engine keeps coordinates finer than half precision does.

    Two boxes that lie a quarter of a half's step apart are the same box in half precision, and then
    their logits are equal to the last bit; else they are not, in any precision of the features.
    """
    prepared = segmenter.prepare(image.pixels, image.boxes)
    size = segmenter.image_size
    corners = np.array([[0.55, 0.55], [0.9, 0.9]]) * size
    corners = corners.astype(np.float16).astype(np.float32)
    points = np.zeros((2, 3, 2), np.float32)
    points[0, :2], points[1, :2] = corners, corners + np.float32(size / 8192)
    labels = np.tile(np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], np.int32), (2, 1))
    prompts = Prompts(points, labels, np.zeros(2, np.int64))
    pair = replace(
        prepared, images_model=prepared.images_model[:1], prompts=prompts, rows=np.arange(2),
        reasons=("", ""), regions_xyxy_px=None,
    )  # fmt: skip
    (low_res,) = segmenter.run([pair])
    return not np.array_equal(low_res.logits[0], low_res.logits[1])


def summary(rows: Sequence[Compared]) -> dict[str, Any]:
    """Return means, percentiles and worst values, of all masks and by size."""
    over = [one for one in rows if one.area_px >= SMALL_AREA_PX]
    return {
        **_told(rows),
        "over_32x32": _told(over),
        "by_size": {
            size: _told([one for one in rows if size_class(one.area_px) == size]) for size in SIZES
        },
        "predicted_iou_apart": _most([one.predicted_iou_apart for one in rows]),
        "logits_apart": _most([one.logits_apart for one in rows]),
    }


def _most(values: Sequence[float]) -> dict[str, float]:
    """Median and largest value; what is not finite is a very large number, which JSON knows."""
    array = np.nan_to_num(np.array(values or [0.0]), nan=1e9, posinf=1e9)
    return {"median": _rounded(np.median(array)), "max": _rounded(array.max())}


def _rounded(value: float | np.floating[Any]) -> float:
    return float(f"{float(value):.5g}")


def _told(rows: Sequence[Compared]) -> dict[str, Any]:
    if not rows:
        return {"masks": 0}
    iou: npt.NDArray[np.float64] = np.array([one.iou for one in rows])
    low = np.percentile(iou, [1, 5, 10])
    return {
        "masks": len(rows),
        "iou": {
            "mean": _rounded(iou.mean()), "p1": _rounded(low[0]), "p5": _rounded(low[1]),
            "p10": _rounded(low[2]), "min": _rounded(iou.min()),
        },
        "boundary_f": _rounded(np.mean([one.boundary_f for one in rows])),
    }  # fmt: skip
