"""Reports of sequences, and what of their files is not theirs."""

import json

import numpy as np

from sam2_core.types import Boxes, Masks
from tasks.store.artifacts import Chunk, RunStamp
from tasks.store.manifests import ChunkRecord, Manifest, report_of, tally_of
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef


def ref(index, camera="", size_hw=(48, 64)):
    return FrameRef(
        "drive", camera, index, None, f"s3://b/{camera}/{index}.jpg", size_hw, f"e{index}"
    )


def good(frame, count, empty=0):
    boxes = Boxes(np.ones((count, 4)), np.ones(count), ("car",) * count)
    reasons = ("too small",) * empty + ("",) * (count - empty)
    area = [0] * empty + [5] * (count - empty)
    ones = np.ones(count)
    masks = Masks((b"0",) * count, frame.size_hw, ones, ones, ones, area, reasons)
    return LabeledFrame(frame, boxes, masks)


def bad(frame, stage="download", reason=None):
    reason = reason or f"cannot download {frame.uri}: it does not exist"
    failure = FrameFailure("drive", frame.camera, frame.index, frame.uri, stage, reason)
    return LabeledFrame(frame, Boxes.empty(), failure=failure)


def test_a_report_counts_everything_once():
    front = [good(ref(0), 4), good(ref(1), 0), good(ref(2), 3, empty=1), bad(ref(3)), bad(ref(4))]
    left = [good(ref(0, "left"), 2)]
    chunks = [(Chunk("0", tuple(one.frame for one in some)), some) for some in (front, left)]
    records = tuple(ChunkRecord.of(chunk, some) for chunk, some in chunks)
    manifest = Manifest("drive", "s3://b", "key", RunStamp("detector"), records)
    failures = [one.failure for one in front if one.failure]
    report = report_of(manifest, tally_of(front) + tally_of(left), failures)
    assert json.loads(json.dumps(report)) == report
    expected = {
        "frames": 6, "failed": 2, "frames_without_boxes": 1, "instances": 9, "masks": 8,
        "cameras": {"": 5, "left": 1}, "classes": {"car": 9}, "rejected": {"too small": 1},
        "failures": {"download: cannot download the frame: it does not exist": 2},
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    assert [(one["camera"], one["index"]) for one in report["failed_frames"]] == [("", 3), ("", 4)]
