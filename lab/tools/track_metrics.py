"""HOTA, IDF1, id switches against a drive's truth, by motrics (the numbers of TrackEval)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks

MATCH_IOU = 0.5


@dataclass(frozen=True, eq=False)
class TrueFrame:
    """What there is in a frame: ids, classes and masks; `ignored` masks count neither way."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    rle: tuple[dict[str, Any], ...]
    ignored: tuple[dict[str, Any], ...]


def true_frames(path: Path) -> list[TrueFrame]:
    """Read a rendered drive's `truth.json`."""
    values = json.loads(path.read_text())
    names = {one["id"]: one["name"] for one in values["categories"]}
    frames = []
    for image in values["images"]:
        rows = [one for one in values["annotations"] if one["image_id"] == image["id"]]
        some = [one for one in rows if not one["iscrowd"]]
        frames.append(
            TrueFrame(
                tuple(one["track_id"] for one in some),
                tuple(names[one["category_id"]] for one in some),
                tuple(one["segmentation"] for one in some),
                tuple(one["segmentation"] for one in rows if one["iscrowd"]),
            )
        )
    return frames


def _ious(made: Sequence[Any], true: Sequence[Any]) -> np.ndarray:
    if not made or not true:
        return np.zeros((len(true), len(made)))
    return np.asarray(coco_mask.iou(list(made), list(true), [0] * len(true))).T


def track_metrics(
    truth: Sequence[TrueFrame], labeled: Sequence[LabeledFrame], tracks: Sequence[FrameTracks]
) -> dict[str, float]:
    """Return HOTA, DetA, AssA, IDF1 (all in percent), id switches, and right classes.

    Labels that fit an ignored region better than any object are left out.
    """
    import motrics

    gt_ids: list[list[int]] = []
    made_ids: list[list[int]] = []
    similarity: list[list[list[float]]] = []
    right = {"detector": 0, "track": 0, "of": 0}
    for true, one, frame_tracks in zip(truth, labeled, tracks, strict=True):
        masks = [] if one.masks is None else [
            {"counts": rle, "size": list(one.masks.size_hw)} for rle in one.masks.rle
        ]  # fmt: skip
        ious = _ious(masks, true.rle)
        beside = _ious(masks, true.ignored).max(axis=0, initial=0)
        kept = np.flatnonzero(beside <= np.maximum(ious.max(axis=0, initial=0), MATCH_IOU))
        ious = ious[:, kept]
        for row, column in enumerate(kept):
            best = int(ious[:, row].argmax()) if len(ious) else -1
            if best >= 0 and ious[best, row] >= MATCH_IOU:
                right["of"] += 1
                right["detector"] += one.boxes.labels[column] == true.labels[best]
                right["track"] += frame_tracks.labels[column] == true.labels[best]
        similarity.append(ious.tolist())
        gt_ids.append(list(true.ids))
        made_ids.append(frame_tracks.ids[kept].tolist())
    given = (gt_ids, made_ids, similarity)
    hota = motrics.compute_hota_from_similarity(*given)
    identity = motrics.compute_identity_from_similarity(*given)
    clear = motrics.compute_clear_from_similarity(*given)
    shares = {
        f"class_{name}": 100 * right[name] / max(right["of"], 1) for name in ("detector", "track")
    }
    return {
        "HOTA": 100 * hota.hota, "DetA": 100 * hota.deta, "AssA": 100 * hota.assa,
        "IDF1": 100 * identity.idf1, "switches": clear.num_switches,
        "tracks": len({one for ids in made_ids for one in ids}),
        "objects": len({one for ids in gt_ids for one in ids}), **shares,
    }  # fmt: skip
