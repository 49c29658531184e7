"""What tidying masks gains and costs: `python -m tests.tools.measure_masks CACHE`.

On the labels of rendered drives that `measure_tracks` keeps in CACHE: mean mask IoU of the objects
that were found, before and after each rule, and the milliseconds a frame.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.types import Masks
from tasks.masks.rules import MaskRules, tidied
from tests.tools.measure_tracks import drives
from tests.tools.track_metrics import MATCH_IOU, true_frames

RULES = {
    "as the model says": MaskRules(),
    **{f"clean {share:g}": MaskRules(share) for share in (0.002, 0.01, 0.03, 0.1, 0.3)},
    "overlap by score": MaskRules(0, "score"),
    "overlap by depth": MaskRules(0, "depth"),
    "clean 0.03, depth": MaskRules(0.03, "depth"),
}


def _ious(masks: Masks, true: list) -> np.ndarray:
    made = [{"counts": rle, "size": list(masks.size_hw)} for rle in masks.rle]
    if not made or not true:
        return np.zeros((len(made), len(true)))
    return np.asarray(coco_mask.iou(made, true, [0] * len(true)))


def main() -> None:
    """Print a line for each way of prompting and each rule."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=Path)
    parser.add_argument("--drives", type=int, default=6)
    parser.add_argument("--frames", type=int, default=40)
    given = parser.parse_args()
    sums: dict[tuple[str, str], list[float]] = {}
    for drive, truth in drives(given.cache, given.drives, given.frames):
        for true, one in zip(true_frames(truth), drive.frames, strict=True):
            if one.masks is None:
                continue
            first = _ious(one.masks, list(true.rle))
            best = first.argmax(axis=1) if first.size else np.zeros(len(first), int)
            found = np.flatnonzero(first.max(axis=1, initial=0) >= MATCH_IOU)
            for name, rules in RULES.items():
                started = time.process_time()
                masks = tidied(one.masks, one.boxes, rules)
                spent = time.process_time() - started
                after = _ious(masks, list(true.rle))
                total = sums.setdefault((drive.prompt, name), [0.0] * 5)
                gain = after[found, best[found]] - first[found, best[found]]
                for place, value in enumerate(
                    (
                        after[found, best[found]].sum(), len(found), spent,
                        (gain > 0.001).sum(), (gain < -0.001).sum(),
                    )
                ):  # fmt: skip
                    total[place] += float(value)
    frames = given.drives * given.frames
    for (prompt, name), (iou, count, spent, better, worse) in sums.items():
        print(
            f"{prompt:11} {name:20} mIoU {iou / max(count, 1):.5f} of {count:.0f}, better "
            f"{better:.0f}, worse {worse:.0f}, {1000 * spent / frames:.2f} ms a frame"
        )


if __name__ == "__main__":
    main()
