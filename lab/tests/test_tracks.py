"""Tracks of a rendered drive, measured as the benchmarks of tracking measure them."""

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from lab.scenes import write_sequence
from lab.tools.track_metrics import track_metrics, true_frames
from tasks.dataset.coco_truth import rle_box_xyxy_px
from tasks.tracks.linking import track
from tests.tracks.test_track import labeled


def test_tracks_of_a_rendered_drive_follow_its_truth(tmp_path):
    """A detector that misses every eighth object, moves boxes and takes cars for trucks."""
    pytest.importorskip("motrics")
    write_sequence(tmp_path, 70_000_123, 16, (288, 512))
    truth, frames = true_frames(tmp_path / "truth.json"), []
    for index, true in enumerate(truth):
        rng = np.random.default_rng([7, index])
        kept = np.flatnonzero(rng.random(len(true.ids)) > 0.125)
        rle = [true.rle[row]["counts"].encode() for row in kept]
        rows = [
            ("truck" if true.labels[row] == "car" and rng.random() < 0.2 else true.labels[row],
             rle_box_xyxy_px(one, (288, 512)) + rng.normal(0, 1, 4))
            for row, one in zip(kept, rle, strict=True)
        ]  # fmt: skip
        masks = [coco_mask.decode(true.rle[row]) for row in kept]
        frames.append(labeled(index, *rows, masks=masks, size_hw=(288, 512)))
    found = track_metrics(truth, frames, track(frames).frames)
    assert found["HOTA"] > 80, found
    assert found["IDF1"] > 86, found
    assert found["class_detector"] < 95 < found["class_track"], found
