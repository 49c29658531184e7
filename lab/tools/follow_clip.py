"""What following brings back of a real clip's own detections, 30% of them removed at random.

    python -m lab.tools.follow_clip VIDEO [--model MODEL] [--frames N]

Nobody has drawn the truth of such a clip: the detector's labels, all of them, stand for it, and
their tracks for the objects. So a followed label that is right and that the detector never had
counts as wrong here. The rest is as in `follow_policy`.
"""

import argparse
from pathlib import Path

from lab.tools.follow_policy import counts, in_chunks, matched, tell, without_some
from lab.tools.track_metrics import TrueFrame, track_metrics
from sam2_core.load import load_follow_backend
from sam2_core.types import Boxes
from tasks.boxes.detect import detect
from tasks.boxes.detectors import load_detector
from tasks.frames.discover import discover
from tasks.frames.images import read_image
from tasks.frames.video import expand_videos
from tasks.masks.model import choose_model, load_segmenter
from tasks.masks.segment import segment_frames
from tasks.store.tables import LabeledFrame
from tasks.tracks.linking import track
from tasks.types import FrameRef


def labeled(video: Path, count: int) -> list[LabeledFrame]:
    """Detect and segment the first frames of a clip."""
    (clip,) = discover([str(video)])
    frames = [one for one in expand_videos(clip.frames) if isinstance(one, FrameRef)]
    some = frames[:count]
    found = detect(some, load_detector("compact"))
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


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("--model", default="compact")
    parser.add_argument("--frames", type=int, default=124)
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    frames = labeled(given.video, given.frames)
    true, kept = as_truth(frames), without_some(frames, 0)
    before, left = matched(true, frames), matched(true, kept)
    backend = load_follow_backend(given.model, given.backend, given.precision)
    ways = {
        "all detections": frames,
        "70% of them": kept,
        "followed, one chunk": list(in_chunks(backend, kept, len(kept))),
    }
    totals = {}
    for way, some in ways.items():
        fits = matched(true, some)
        found = track_metrics(true, some, track(some).frames)
        totals[way] = [found | counts(true, fits, before, left, some)]
    tell(totals, {})


if __name__ == "__main__":
    main()
