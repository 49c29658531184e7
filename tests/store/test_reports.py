"""Reports of sequences, and what of their files is not theirs."""

import json

import numpy as np

from sam2_core.types import Boxes, Masks
from tasks.store.manifests import Seen, report_of
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef


def ref(index, camera="", size_hw=(48, 64)):
    return FrameRef(
        "drive", camera, index, None, f"s3://b/{camera}/{index}.jpg", size_hw, f"e{index}"
    )


def good(frame, count, iou=0.9, empty=0):
    boxes = Boxes(np.ones((count, 4)), np.ones(count), ("car",) * count)
    reasons = ("too small",) * empty + ("",) * (count - empty)
    area = [0] * empty + [5] * (count - empty)
    ones = np.ones(count)
    masks = Masks((b"0",) * count, frame.size_hw, ones * iou, ones * 0.8, ones, area, reasons)
    return LabeledFrame(frame, boxes, masks)


def bad(frame, stage="download", reason=None):
    reason = reason or f"cannot download {frame.uri}: it does not exist"
    failure = FrameFailure("drive", frame.camera, frame.index, frame.uri, stage, reason)
    return LabeledFrame(frame, Boxes.empty(), failure=failure)


def test_a_report_counts_everything_once():
    report = report_of(Seen.of(one) for one in [
        good(ref(0), 4), good(ref(1), 0), good(ref(2), 3, empty=1), bad(ref(3)), bad(ref(4)),
        good(ref(5, size_hw=(10, 10)), 1), good(ref(0, "left"), 2, iou=0.2),
    ])  # fmt: skip
    assert json.loads(json.dumps(report)) == report
    expected = {
        "frames": 7, "failed": 2, "frames_without_boxes": 1, "instances": 10, "masks": 9,
        "mean_predicted_iou": round((7 * 0.9 + 2 * 0.2) / 9, 4), "mean_stability": 0.8,
        "cameras": {"": 6, "left": 1}, "classes": {"car": 10}, "rejected": {"too small": 1},
        "failures": {"download: cannot download the frame: it does not exist": 2},
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    assert [(one["camera"], one["index"]) for one in report["failed_frames"]] == [("", 3), ("", 4)]
    doubts = {("", 1): "no boxes", ("", 5): "(10, 10)", ("left", 0): "0.20"}
    assert len(report["suspicious_frames"]) == len(doubts)
    for one in report["suspicious_frames"]:
        assert doubts[one["camera"], one["index"]] in one["reason"]
