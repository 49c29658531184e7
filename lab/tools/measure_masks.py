"""What tidying masks gains and costs: `python -m lab.tools.measure_masks CACHE [--run OUT]`.

On the labels of rendered drives that `measure_tracks` keeps in CACHE: mean mask IoU of the objects
that were found, before and after each rule, and the milliseconds of a frame. On a run of footage
without truth (--run): how many masks each rule changes and how steady they are over time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask

from lab.tools.measure_tracks import drives
from lab.tools.track_metrics import MATCH_IOU, true_frames
from sam2_core.types import Masks
from tasks.masks.rules import MaskRules, tidied
from tasks.store.manifests import labels_of, newest_manifests
from tasks.store.tables import LabeledFrame
from tasks.tracks.linking import track

RULES = {
    "as the model says": MaskRules(),
    **{f"clean {share:g}": MaskRules(share) for share in (0.003, 0.01, 0.03, 0.1)},
    "overlap by score": MaskRules(0, "score"),
    "overlap by depth": MaskRules(0, "depth"),
    "clean 0.01, score": MaskRules(0.01, "score"),
}
CHANGED_IOU = 0.002


@dataclass
class Sums:
    """What is added up for one rule.

    Attributes:
        iou: of the masks with their objects.
        masks: how many.
        seconds: of the rule.
        better, worse: masks whose IoU changes by more than CHANGED_IOU.
        none: masks that became rows without one.

    """

    iou: float = 0.0
    masks: int = 0
    seconds: float = 0.0
    better: int = 0
    worse: int = 0
    none: int = 0


def _ious(masks: Masks, true: list) -> np.ndarray:
    made = [{"counts": rle, "size": list(masks.size_hw)} for rle in masks.rle]
    if not made or not true:
        return np.zeros((len(made), len(true)))
    return np.asarray(coco_mask.iou(made, true, [0] * len(true)))


def _timed(one: LabeledFrame, rules: MaskRules) -> tuple[Masks, float]:
    started = time.process_time()
    masks = tidied(one.masks, one.boxes, rules)
    return masks, time.process_time() - started


def against_truth(cache: Path, count: int, frames: int) -> None:
    """Print a line for each way of prompting and each rule."""
    sums: dict[tuple[str, str], Sums] = {}
    for drive, truth in drives(cache, count, frames):
        for true, one in zip(true_frames(truth), drive.frames, strict=True):
            if one.masks is None:
                continue
            first = _ious(one.masks, list(true.rle))
            best = first.argmax(axis=1) if first.size else np.zeros(len(first), int)
            found = np.flatnonzero(first.max(axis=1, initial=0) >= MATCH_IOU)
            for name, rules in RULES.items():
                masks, spent = _timed(one, rules)
                after = _ious(masks, list(true.rle))[found, best[found]]
                gain = after - first[found, best[found]]
                total = sums.setdefault((drive.prompt, name), Sums())
                total.iou += float(after.sum())
                total.masks += len(found)
                total.seconds += spent
                total.better += int((gain > CHANGED_IOU).sum())
                total.worse += int((gain < -CHANGED_IOU).sum())
                total.none += int((masks.area_px[found] == 0).sum())
    for (prompt, name), one in sums.items():
        mean, ms = one.iou / max(one.masks, 1), 1000 * one.seconds / (count * frames)
        base = sums[prompt, "as the model says"]
        gain = mean - base.iou / max(base.masks, 1)
        per_ms = f", {gain / ms:+.6f} a ms" if ms > 0.05 else ""
        print(
            f"{prompt:11} {name:20} mIoU {mean:.5f} ({gain:+.5f}) of {one.masks}, better "
            f"{one.better}, worse {one.worse}, none {one.none}, {ms:.2f} ms a frame{per_ms}"
        )


def _contested(masks: Masks) -> tuple[int, int]:
    """Pixels of a frame that several masks claim, and those that any claims."""
    rles = [{"counts": rle, "size": list(masks.size_hw)} for rle in masks.rle]
    count = sum((coco_mask.decode(rle).astype(np.int32) for rle in rles), np.zeros(masks.size_hw))
    return int((count > 1).sum()), int((count > 0).sum())


def without_truth(frames: Iterable[LabeledFrame]) -> None:
    """Print how much footage each rule changes, and how steady its masks are then."""
    before = [one for one in frames if one.masks is not None]
    for name, rules in RULES.items():
        after, seconds, changed, none = [], 0.0, 0, 0
        for one in before:
            masks, spent = _timed(one, rules)
            seconds += spent
            changed += sum(a != b for a, b in zip(one.masks.rle, masks.rle, strict=True))
            none += int(((masks.area_px == 0) & (one.masks.area_px > 0)).sum())
            after.append(replace(one, masks=masks))
        several, any_ = np.array([_contested(one.masks) for one in after]).sum(axis=0)
        found = track(after).measures
        print(
            f"{name:20} changed {changed} of {found['labels']}, none {none}, contested "
            f"{100 * several / max(any_, 1):.2f} % of {any_} px, agreement {found['agreement']}, "
            f"flicker {found['flicker']} of {found['pairs']} pairs, tracks {found['tracks']}, "
            f"{1000 * seconds / len(before):.2f} ms a frame"
        )


def main() -> None:
    """Print a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path, nargs="?")
    parser.add_argument("--drives", type=int, default=4)
    parser.add_argument("--frames", type=int, default=36)
    parser.add_argument("--run", help="--out of a run whose labels are looked at instead")
    given = parser.parse_args()
    if given.run:
        for manifest in newest_manifests(given.run)[0]:
            print(manifest.sequence_id)
            labels = (labels_of(given.run, manifest, one) for one in manifest.chunks)
            without_truth(frame for chunk in labels for frame in chunk)
    elif given.cache:
        against_truth(given.cache, given.drives, given.frames)


if __name__ == "__main__":
    main()
