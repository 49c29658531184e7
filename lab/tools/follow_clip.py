"""What following brings back of a real clip's own detections, 30% of them removed at random.

    python -m lab.tools.follow_clip VIDEO [--detector DETECTOR] [--model MODEL] [--frames N]

Nobody has drawn the truth of such a clip: the detector's labels, all of them, stand for it, and
their tracks for the objects. So a followed label that is right and that the detector never had
counts as wrong here. Some of these are told: an object has a label before and after, and a box
between those two fits the followed label's. The rest is as in `follow_policy`.
"""

import argparse
from pathlib import Path

import numpy as np

from lab.tools.follow_policy import bytes_of, counts, in_chunks, matched, tell, without_some
from lab.tools.track_metrics import MATCH_IOU, TrueFrame, track_metrics
from sam2_core.load import load_follow_backend
from sam2_core.types import Boxes
from tasks.boxes.detect import detect
from tasks.boxes.detectors import load_detector
from tasks.dataset.coco_truth import rle_box_xyxy_px
from tasks.frames.discover import discover
from tasks.frames.images import read_image
from tasks.frames.video import expand_videos
from tasks.masks.follow import MOST_UNDETECTED
from tasks.masks.model import choose_model, load_segmenter
from tasks.masks.segment import segment_frames
from tasks.pipeline.params import LabelParams
from tasks.risk.geometry import box_ious
from tasks.store.tables import LabeledFrame
from tasks.tracks.linking import track
from tasks.types import FrameRef


def labeled(video: Path, count: int, detector: str) -> list[LabeledFrame]:
    """Detect and segment the first frames of a clip."""
    (clip,) = discover([str(video)])
    frames = [one for one in expand_videos(clip.frames) if isinstance(one, FrameRef)]
    some = frames[:count]
    params = LabelParams(sources=(str(video),), out="labels", detector=detector)
    found = detect(some, load_detector(detector), min_score=params.least_score)
    pairs = [(one, boxes) for one in some if isinstance(boxes := found[one.index], Boxes)]
    return list(segment_frames(load_segmenter(choose_model("compact")), pairs, read_image))


def as_truth(frames: list[LabeledFrame]) -> list[TrueFrame]:
    """Let labels stand for the truth, and tracks for objects."""
    result = []
    for one, tracks in zip(frames, track(frames).frames, strict=True):
        assert one.masks is not None
        rle = tuple({"size": list(one.masks.size_hw), "counts": rle} for rle in one.masks.rle)
        result.append(TrueFrame(tuple(map(int, tracks.ids)), one.boxes.labels, rle, ()))
    return result


def in_gaps(true: list[TrueFrame], frames: list[LabeledFrame]) -> int:
    """Count followed labels that are on no object's mask, and where one goes through a gap."""
    last, gaps = dict[int, tuple[int, np.ndarray]](), [np.zeros((0, 4)) for _ in true]
    for frame, there in enumerate(true):
        for name, rle in zip(there.ids, there.rle, strict=True):
            box = rle_box_xyxy_px(bytes_of(rle), rle["size"])
            before, old = last.get(name, (frame, box))
            last[name] = frame, box
            for gone in range(before + 1, frame if frame - before <= MOST_UNDETECTED + 1 else 0):
                between = old + (box - old) * (gone - before) / (frame - before)
                gaps[gone] = np.vstack([gaps[gone], between])
    found = 0
    for fits, one, boxes in zip(matched(true, frames), frames, gaps, strict=True):
        rows = [row for row in range(one.detected, len(one.boxes)) if row not in fits]
        if rows and len(boxes):
            ious = box_ious(one.boxes.xyxy_px[rows].astype(np.float64), boxes)
            found += int((ious.max(1) >= MATCH_IOU).sum())
    return found


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("--detector", default="compact", help="as for `label`")
    parser.add_argument("--model", default="compact")
    parser.add_argument("--frames", type=int, default=124)
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    frames = labeled(given.video, given.frames, given.detector)
    true, kept = as_truth(frames), without_some(frames, 0)
    before, left = matched(true, frames), matched(true, kept)
    backend = load_follow_backend(given.model, given.backend, given.precision)
    followed = list(in_chunks(backend, kept, len(kept)))
    ways = {"all detections": frames, "70% of them": kept, "followed, one chunk": followed}
    totals = {}
    for way, some in ways.items():
        fits = matched(true, some)
        found = track_metrics(true, some, track(some).frames)
        totals[way] = [found | counts(true, fits, before, left, some)]
    tell(totals, {})
    print(f"    {in_gaps(true, followed)} followed labels more are where an object has a gap")


if __name__ == "__main__":
    main()
