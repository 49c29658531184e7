"""What a new run changed, instance by instance: labels of now against those that they replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.dataset.reviewed_instances import detections_of, mask_of, window_of
from tasks.dataset.schema import MACHINE_FIELD, PREVIOUS_FIELD
from tasks.risk.geometry import Numbers, best_pairs, shared_box_areas

Label = dict[str, Any]
_SHAPE = ("bounding_box", "mask", "mask_path")


def replaced_labels(collection: Any, ids: Sequence[Any], run_key: str) -> dict[Any, list[Label]]:
    """Labels of the run before this one, by sample: those about to be replaced, or kept earlier."""
    known = {
        "_id": {"$in": list(ids)},
        "$or": [
            {"run_key": {"$exists": True, "$ne": run_key}}, {"previous_model": {"$exists": True}},
        ],
    }  # fmt: skip
    projection = {"run_key": 1, MACHINE_FIELD: 1, PREVIOUS_FIELD: 1}
    result = {}
    for sample in collection.find(known, projection):
        field = PREVIOUS_FIELD if sample["run_key"] == run_key else MACHINE_FIELD
        result[sample["_id"]] = list(detections_of(sample, field))
    return result


def mark_differences(
    now: Sequence[Label], before: Sequence[Label], size_hw: tuple[int, int]
) -> float:
    """Write how much each label differs from its partner, on both sides; return the most.

    The difference is 1 - IoU of the masks with the best partner, each label having one at most; it
    is 1 for another class, and where there is no partner.

    Args:
        now: labels as stored; they get `difference`.
        before: those that they replace; they, too.
        size_hw: of the image.

    """
    for label in (*now, *before):
        label["difference"] = 1.0
    ious = _overlaps(now, before, size_hw)
    rows = np.array([*ious], np.int64).reshape(-1, 2)
    for i, j in best_pairs(np.array([*ious.values()], np.float64), *rows.T).items():
        if now[i].get("label") == before[j].get("label"):
            now[i]["difference"] = before[j]["difference"] = 1.0 - ious[i, j]
    return max((label["difference"] for label in (*now, *before)), default=0.0)


def _overlaps(
    now: Sequence[Label], before: Sequence[Label], size_hw: tuple[int, int]
) -> dict[tuple[int, int], float]:
    """Mask IoU of every two labels that share pixels, by their rows."""
    if not now or not before:
        return {}
    windows = [
        np.array([window_of(one["bounding_box"], size_hw) for one in side], np.float64)
        for side in (now, before)
    ]
    masks: dict[int, Any] = {}
    found = {}
    for i, j in np.argwhere(shared_box_areas(*windows) > 0).tolist():
        one, other = now[i], before[j]
        if all(one.get(name) == other.get(name) for name in _SHAPE):
            found[i, j] = 1.0
            continue
        for label in (one, other):
            if id(label) not in masks:
                masks[id(label)] = mask_of(label, size_hw)
        pair = [(masks[id(one)], windows[0][i]), (masks[id(other)], windows[1][j])]
        iou = _iou(*pair)
        if iou > 0:
            found[i, j] = iou
    return found


def _iou(one: tuple[Any, Numbers], other: tuple[Any, Numbers]) -> float:
    """IoU of two crops at their places."""
    low = np.maximum(one[1][:2], other[1][:2]).astype(int)
    high = np.minimum(one[1][2:], other[1][2:]).astype(int)
    parts = []
    for mask, window in (one, other):
        left, top = window[:2].astype(int)
        parts.append(mask[low[1] - top : high[1] - top, low[0] - left : high[0] - left])
    shared = int((parts[0] & parts[1]).sum())
    return shared / max(int(one[0].sum() + other[0].sum()) - shared, 1)
