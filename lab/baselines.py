"""What a mask model has to beat: filling the box, and GrabCut started from the box.

`python -m lab.baselines TRUTH --images FOLDER [--method box]` measures one as `autolabel evaluate`
measures a model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sam2_core.types import Boxes, ImageArray, Masks
from tasks.dataset.coco_truth import TruthImage
from tasks.evaluate.evaluate import evaluate, one_by_one, open_truth, true_boxes

# GrabCut works on the box and this share of its size around it: it needs some background, and
# the whole image would take seconds per box.
CONTEXT = 0.5
GRABCUT_ITERATIONS = 5
GRABCUT_LONG_SIDE_PX = 400


def baseline_masks(image: ImageArray, boxes: Boxes, method: str) -> Masks:
    """Masks of one RGB image uint8 (H, W, 3) by a method without a model, row i for box i."""
    from pycocotools import mask as coco_mask

    size_hw = (image.shape[0], image.shape[1])
    rles, areas, reasons = [], [], []
    for box in boxes.xyxy_px:
        mask = np.zeros(size_hw, np.uint8)
        reason = "" if _fill(mask, box) else "no pixel inside the image"
        if method == "grabcut" and not reason:
            mask = _grabcut(image, box)
        encoded = coco_mask.encode(np.asfortranarray(mask))
        rles.append(bytes(encoded["counts"]))
        areas.append(int(mask.sum()))
        reasons.append(reason)
    ones = np.ones(len(boxes), np.float32)
    return Masks(tuple(rles), size_hw, ones, ones, ones, np.array(areas, np.int64), tuple(reasons))


def _pixels(box: npt.NDArray[np.float32], size_hw: tuple[int, int]) -> tuple[int, int, int, int]:
    """Round a box to pixels inside the image: left, top, right, bottom; all 0 for none."""
    if not np.isfinite(box).all():
        return 0, 0, 0, 0
    limits = np.array([size_hw[1], size_hw[0]] * 2)
    left, top, right, bottom = np.clip(np.rint(box), 0, limits).astype(int)
    return (
        (int(left), int(top), int(right), int(bottom))
        if right > left and bottom > top
        else (0,) * 4
    )


def _fill(mask: npt.NDArray[np.uint8], box: npt.NDArray[np.float32]) -> bool:
    left, top, right, bottom = _pixels(box, (mask.shape[0], mask.shape[1]))
    mask[top:bottom, left:right] = 1
    return right > left


def _grabcut(image: ImageArray, box: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """GrabCut (Rother et al., 2004), OpenCV's, started from the box, on a crop around it."""
    import cv2

    height, width = image.shape[:2]
    left, top, right, bottom = _pixels(box, (height, width))
    dx, dy = round((right - left) * CONTEXT) + 4, round((bottom - top) * CONTEXT) + 4
    x0, y0 = max(left - dx, 0), max(top - dy, 0)
    x1, y1 = min(right + dx, width), min(bottom + dy, height)
    crop = np.ascontiguousarray(image[y0:y1, x0:x1, ::-1])
    scale = min(1.0, GRABCUT_LONG_SIDE_PX / max(crop.shape[:2]))
    small = cv2.resize(crop, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    labels = np.full(small.shape[:2], cv2.GC_BGD, np.uint8)
    ax, ay = int((left - x0) * scale), int((top - y0) * scale)
    bx, by = int(np.ceil((right - x0) * scale)), int(np.ceil((bottom - y0) * scale))
    labels[ay:by, ax:bx] = cv2.GC_PR_FGD
    full = np.zeros((height, width), np.uint8)
    if (labels == cv2.GC_BGD).any():
        models = np.zeros((1, 65)), np.zeros((1, 65))
        cv2.setRNGSeed(0)
        cv2.grabCut(small, labels, (0, 0, 0, 0), *models, GRABCUT_ITERATIONS, cv2.GC_INIT_WITH_MASK)
    found = np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.uint8)
    full[y0:y1, x0:x1] = cv2.resize(
        found, (crop.shape[1], crop.shape[0]), interpolation=cv2.INTER_NEAREST
    )
    return full


def main() -> None:
    """Print what a baseline reaches, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("truth")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--method", choices=["box", "grabcut"], default="grabcut")
    given = parser.parse_args()

    def answer(pixels: ImageArray, image: TruthImage) -> tuple[Boxes, Masks]:
        boxes = true_boxes(image)
        return boxes, baseline_masks(pixels, boxes, given.method)

    truth = open_truth(given.truth, given.images)
    *_, last = evaluate(truth, given.images, one_by_one(answer))
    print(json.dumps(last.result()))  # noqa: T201


if __name__ == "__main__":
    main()
