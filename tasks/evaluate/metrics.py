"""How good masks and boxes are: mask IoU, boundary F, average precision, by object size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from sam2_core.mask_geometry import SIZES, boundary_f, boundary_tolerance_px, mask_iou
from sam2_core.types import Boxes, Masks
from tasks.dataset.coco_truth import TruthImage, areas_px, rle_box_xyxy_px
from tasks.evaluate.records import Record, by_size, grouped, more_results, summary
from tasks.risk.geometry import box_ious

BoolArray = npt.NDArray[np.bool_]
MATCH_BOX_IOU = 0.5
DAVIS_TOLERANCE = 0.008  # of the diagonal
# Average precision at IoU 0.5, and over 0.5:0.95.
_Precision = tuple[float | None, float | None]


def box_iou(
    first: npt.NDArray[np.floating[Any]], second: npt.NDArray[np.floating[Any]]
) -> npt.NDArray[np.float64]:
    """IoU (N, M) of boxes (N, 4) and (M, 4), x1 y1 x2 y2; NaN boxes overlap nothing."""
    iou = box_ious(np.asarray(first, np.float64), np.asarray(second, np.float64))
    return np.asarray(np.nan_to_num(iou))


def match_boxes(truth: TruthImage, boxes: Boxes) -> dict[int, int]:
    """Pair instances with predicted boxes of the same class: COCO's greedy matching at IoU 0.5.

    Returns:
        {row of the truth: row of the boxes}; each row at most once, better scores choose first.

    """
    overlap = box_iou(truth.boxes_xyxy_px, boxes.xyxy_px)
    same = np.array(truth.labels, object)[:, None] == np.array(boxes.labels, object)[None]
    overlap = np.where(same, overlap, 0.0)
    pairs: dict[int, int] = {}
    for row in np.argsort(-boxes.scores, kind="stable"):
        free = [i for i in range(len(truth)) if i not in pairs]
        best = max(free, key=lambda i: overlap[i, row], default=None)
        if best is not None and overlap[best, row] >= MATCH_BOX_IOU:
            pairs[best] = int(row)
    return pairs


@dataclass(frozen=True)
class FailedImage:
    """An image that could not be measured, and why; its instances are not in the means."""

    image_id: int
    file_name: str
    reason: str


@dataclass
class Scores:
    """Adds up how well predictions fit the truth; `result()` gives one JSON-able object.

    `miou` and `boundary_f` are means over all true instances; one that was not found counts 0.
    `miou_matched` and `boundary_f_matched` leave those out.
    """

    categories: Sequence[str]
    _images: list[dict[str, Any]] = field(default_factory=list)
    _true: list[dict[str, Any]] = field(default_factory=list)
    _found: list[dict[str, Any]] = field(default_factory=list)
    other_classes: int = 0
    records: list[Record] = field(default_factory=list)
    failed: list[FailedImage] = field(default_factory=list)

    def add(self, truth: TruthImage, boxes: Boxes, masks: Masks, *, by_row: bool) -> list[float]:
        """Score one image.

        Args:
            truth: what there is.
            boxes: N predicted boxes.
            masks: their N masks.
            by_row: row i of the prediction is row i of the truth (prompted with the true boxes);
                boxes for average precision are then those of the masks, scored by predicted IoU.
                Otherwise pairs are found by class and box IoU, and the boxes are taken as given.

        Returns:
            The mask IoU of each true instance.

        Raises:
            ValueError: when the sizes do not fit.

        """
        if masks.size_hw != truth.size_hw:
            raise ValueError(f"masks are {masks.size_hw}, the truth {truth.size_hw} (h, w)")
        if by_row and len(masks) != len(truth):
            raise ValueError(f"{len(masks)} masks for {len(truth)} true instances")
        pairs = {i: i for i in range(len(truth))} if by_row else match_boxes(truth, boxes)
        ious = [self._instance(truth, i, masks, pairs.get(i)) for i in range(len(truth))]
        self._collect(truth, boxes, masks, by_row=by_row)
        return ious

    def _instance(self, truth: TruthImage, i: int, masks: Masks, row: int | None) -> float:
        iou = boundary = 0.0
        if row is not None:
            iou = mask_iou(truth.rle[i], masks.rle[row], truth.size_hw)
            tolerance = boundary_tolerance_px(truth.size_hw)
            boundary = boundary_f(masks.rle[row], truth.rle[i], truth.size_hw, tolerance)
        self.records.append(_record(truth, i, masks, row, (iou, boundary)))
        return iou

    def _collect(self, truth: TruthImage, boxes: Boxes, masks: Masks, *, by_row: bool) -> None:
        ids = {name: i + 1 for i, name in enumerate(self.categories)}
        size = list(truth.size_hw)
        image_id = len(self._images) + 1
        self._images.append({"id": image_id, "height": size[0], "width": size[1]})
        crowds = zip(truth.crowd_labels, truth.crowd_rle, strict=True)
        rows = [
            (*pair, box, 0)
            for *pair, box in zip(truth.labels, truth.rle, truth.boxes_xyxy_px, strict=True)
        ]
        rows += [(*pair, rle_box_xyxy_px(pair[1], truth.size_hw), 1) for pair in crowds]
        for label, rle, box, crowd in rows:
            self._true.append({
                "id": len(self._true) + 1, "image_id": image_id, "category_id": ids[label],
                "bbox": _xywh(box), "iscrowd": crowd,
                "area": float(areas_px([rle], truth.size_hw)[0]),
                "segmentation": {"counts": rle.decode("ascii"), "size": size},
            })  # fmt: skip
        scores = masks.predicted_iou if by_row else boxes.scores
        for row, label in enumerate(truth.labels if by_row else boxes.labels):
            box = rle_box_xyxy_px(masks.rle[row], truth.size_hw) if by_row else boxes.xyxy_px[row]
            if label not in ids or not np.isfinite(box).all():
                self.other_classes += label not in ids
                continue
            self._found.append({
                "image_id": image_id, "category_id": ids[label], "bbox": _xywh(box),
                "score": float(scores[row]),
                "segmentation": {"counts": masks.rle[row].decode("ascii"), "size": size},
            })  # fmt: skip

    def result(self) -> dict[str, Any]:
        """Every number so far."""
        boxes, masks = (self._average_precision(kind) for kind in ("bbox", "segm"))

        def row(group: str, records: Sequence[Record]) -> dict[str, Any]:
            return {
                **summary(records), **_named(boxes[group]), **_named(masks[group], "mask_"),
            }  # fmt: skip

        sizes, classes = by_size(self.records), grouped(self.records, lambda one: one.label)
        return {
            **row("all", self.records),
            "images": len(self._images),
            "by_size": {size: row(size, sizes.get(size, [])) for size in SIZES},
            "by_class": {
                name: row(f"class {name}", some) for name, some in sorted(classes.items())
            },
            "detections_of_other_classes": self.other_classes,
            **more_results(self.records),
            "failed_images": [vars(one) for one in self.failed],
        }

    def _average_precision(self, kind: str) -> dict[str, _Precision]:
        """COCO's average precision of all, of each size and of each class.

        Returns:
            For "all", every size and "class NAME": at IoU 0.5, and over 0.5:0.95; None where there
            is no truth.

        """
        groups = ("all", *SIZES, *(f"class {name}" for name in self.categories))
        if not any(not row["iscrowd"] for row in self._true):
            return dict.fromkeys(groups, (None, None))
        if not self._found:
            there = {"all", *by_size(self.records)}
            there |= {f"class {one.label}" for one in self.records}
            return {name: (0.0, 0.0) if name in there else (None, None) for name in groups}
        from faster_coco_eval import COCO, COCOeval_faster

        categories = [{"id": i + 1, "name": name} for i, name in enumerate(self.categories)]
        truth = COCO({"images": self._images, "annotations": self._true, "categories": categories})
        run = COCOeval_faster(truth, truth.loadRes(self._found), kind)
        run.params.maxDets = [1, 10, 500]
        run.evaluate()
        run.accumulate()
        # Threshold, recall, class; of all sizes and of each.
        precision = np.asarray(run.eval["precision"])[..., -1]
        parts = {size: precision[..., i] for i, size in enumerate(("all", *SIZES))}
        parts |= {
            f"class {name}": parts["all"][:, :, [i]] for i, name in enumerate(self.categories)
        }
        return {name: (_mean_precision(part[:1]), _mean_precision(part))
                for name, part in parts.items()}  # fmt: skip


def _mean_precision(values: npt.NDArray[np.float64]) -> float | None:
    """Mean of what COCO computed; it marks by -1 where there is no truth."""
    valid = values[values > -1]
    return round(float(valid.mean()), 4) if valid.size else None


def _named(precision: _Precision, of: str = "") -> dict[str, float | None]:
    return {f"{of}ap50": precision[0], f"{of}ap": precision[1]}


def _record(
    truth: TruthImage, i: int, masks: Masks, row: int | None, agreement: tuple[float, float]
) -> Record:
    visible = None if truth.visible_fraction is None else float(truth.visible_fraction[i])
    left, top, right, bottom = (float(value) for value in truth.boxes_xyxy_px[i])
    contour = None
    if truth.sequence and truth.track_ids is not None:
        contour = 0.0 if row is None else _davis_f(masks.rle[row], truth.rle[i], truth.size_hw)
    return Record(
        truth.file_name, i, truth.labels[i], int(truth.area_px[i]), (left, top, right, bottom),
        round(agreement[0], 6), round(agreement[1], 6), row is not None,
        0.0 if row is None else round(float(masks.predicted_iou[row]), 5),
        None if visible is None or np.isnan(visible) else round(visible, 4), truth.sequence,
        -1 if truth.track_ids is None else int(truth.track_ids[i]), contour,
    )  # fmt: skip


def boundary_map(mask: BoolArray) -> BoolArray:
    """Return where a mask differs from its right, lower or lower right neighbour: bool (H, W)."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    here = padded[:-1, :-1]
    right, below, across = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    found: BoolArray = (here != right) | (here != below) | (here != across)
    found[-1] = mask[-1] != np.append(mask[-1, 1:], mask[-1, -1])
    found[:, -1] = mask[:, -1] != np.append(mask[1:, -1], mask[-1, -1])
    found[-1, -1] = False
    return found


def davis_boundary_f(
    first: BoolArray, second: BoolArray, tolerance: float = DAVIS_TOLERANCE
) -> float:
    """Contour accuracy as DAVIS defines it (Perazzi et al., CVPR 2016), of masks bool (H, W).

    A pixel belongs to the boundary where its right, lower or lower right neighbour has another
    value; boundaries match within the tolerance, rounded up, by dilation with a disk.

    Args:
        first: the predicted mask.
        second: the true one.
        tolerance: at least 1 is in pixels, else of the diagonal.

    """
    radius = math.ceil(tolerance * math.hypot(*first.shape)) if tolerance < 1 else int(tolerance)
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.uint8)
    maps = [boundary_map(one).astype(np.uint8) for one in (first, second)]
    counts = [int(one.sum()) for one in maps]
    near = [cv2.dilate(one, disk, borderType=cv2.BORDER_CONSTANT, borderValue=0) for one in maps]
    matched = int((maps[0] & near[1]).sum()), int((maps[1] & near[0]).sum())
    if not counts[0] and not counts[1]:
        return 1.0
    if not counts[0] or not counts[1]:
        return 0.0
    precision, recall = matched[0] / counts[0], matched[1] / counts[1]
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _davis_f(found: bytes, true: bytes, size_hw: tuple[int, int]) -> float:
    size = list(size_hw)
    arrays = [coco_mask.decode({"counts": one, "size": size}) > 0 for one in (found, true)]
    return round(davis_boundary_f(*arrays), 6)


def _xywh(box: npt.NDArray[np.float32]) -> list[float]:
    x1, y1, x2, y2 = (float(value) for value in box)
    return [x1, y1, x2 - x1, y2 - y1]
