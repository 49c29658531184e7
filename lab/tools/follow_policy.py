"""What following does to rendered drives: J&F, recall, HOTA, IDF1, flicker, seams of chunks.

    python -m lab.tools.follow_policy CACHE [--model MODEL] [--backend NAME] [--precision NAME]
        [--drives N] [--frames N]

MODEL has a memory, as for `label --follow`; without one, a stand-in whose masks of remembered
objects are the true ones shows what a perfect memory would do.

J&F: objects are prompted with their true boxes on a drive's first frame and tracked through it;
measured as DAVIS does, without the first frame. Then the detector's labels of the drives (kept in
CACHE), 30% of them removed at random, are followed in chunks of several sizes, and tracked. Printed
are the share of true objects with a label (recall), TrackEval's HOTA, IDF1 and switches, objects
that have a label before and after a frame and not on it (flicker), how many of the removed labels
came back, how many detected and followed ones are on an object, and identities at the seams.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from lab.risk_drives import DETECTOR
from lab.tools.measure_tracks import drives
from lab.tools.track_metrics import MATCH_IOU, TrueFrame, track_metrics, true_frames
from sam2_core.backends.follow_backends import FollowBackend
from sam2_core.follow import Follower
from sam2_core.load import load_follow_backend
from sam2_core.mask_geometry import mask_iou
from sam2_core.postprocess import finish
from sam2_core.prompts import box_prompts
from sam2_core.types import ImageArray
from tasks.dataset.coco_truth import rle_box_xyxy_px
from tasks.evaluate.metrics import davis_boundary_f
from tasks.frames.images import read_image
from tasks.masks.follow import follow_objects
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks
from tasks.tracks.linking import track
from tasks.types import FrameRef

GRID = 160


class PerfectMemory(FollowBackend):
    """Draws the true masks of the frame `index`; a pointer is the number of an object.

    A box is that of the object whose true box it fits best, else a rectangle that is never seen
    again.
    """

    image_size, width = 4 * GRID, 1

    def __init__(self, truth: Sequence[TrueFrame]) -> None:
        self.index, self._grids = 0, [self._grids_of(one) for one in truth]

    @staticmethod
    def _grids_of(one: TrueFrame) -> dict[int, np.ndarray]:
        found = {}
        for name, rle in zip(one.ids, one.rle, strict=True):
            mask = coco_mask.decode(rle)
            row, column = (((np.arange(GRID) + 0.5) / GRID * side).astype(int)
                           for side in mask.shape)  # fmt: skip
            found[name] = mask[row][:, column] > 0
        return found

    def encode(self, image: Any) -> dict[str, Any]:
        return dict.fromkeys(("embedding", "high_res_s0", "high_res_s1"), np.zeros(0))

    def run(self, graph: str, inputs: Mapping[str, Any]) -> Sequence[Any]:
        if graph == "memory_encoder":
            return [np.zeros((len(inputs["logits"]), 1))]
        if graph == "memory_attention":
            ages = np.where(inputs["pointer_ages"] < 0, np.inf, inputs["pointer_ages"])
            return [inputs["pointers"][np.arange(len(ages)), ages.argmin(1), 0]]
        here = self._grids[self.index]
        if not len(inputs["conditioned"]):
            drawn = [self._prompted(points / 4) for points in inputs["points"][:, :2]]
        else:
            nothing = np.zeros((GRID, GRID), bool)
            names = inputs["conditioned"][inputs["conditioned_index"]].astype(int).tolist()
            drawn = [(name, here.get(name, nothing)) for name in names]
        masks = np.stack([mask for _, mask in drawn])
        score = np.where(masks.any((1, 2)), 5, -5).astype(np.float32)
        logits = np.where(masks, 8, -8) - 1016 * (score < 0)[:, None, None]
        iou = np.full(len(masks), 0.9, np.float32)
        pointers = np.array([[name] for name, _ in drawn], np.float32)
        return [logits.astype(np.float32), iou, score, pointers]

    def _prompted(self, corners: np.ndarray) -> tuple[int, np.ndarray]:
        (left, top), (right, bottom) = np.clip(np.round(corners), 0, GRID).astype(int)
        box = np.zeros((GRID, GRID), bool)
        box[top:bottom, left:right] = True
        best, found = 0.5, (-1, box)
        for name, mask in self._grids[self.index].items():
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            if not len(rows):
                continue
            around = np.zeros_like(box)
            around[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
            iou = (box & around).sum() / max((box | around).sum(), 1)
            if iou > best:
                best, found = iou, (name, mask)
        return found


def picture_for(backend: FollowBackend, frame: FrameRef) -> ImageArray:
    """Read a frame's picture; the stand-in looks at its number only."""
    if not isinstance(backend, PerfectMemory):
        return read_image(frame)
    backend.index = frame.index
    return np.zeros((*frame.size_hw, 3), np.uint8)


def in_chunks(
    backend: FollowBackend, frames: Sequence[LabeledFrame], size: int
) -> Iterator[LabeledFrame]:
    """Follow objects through chunks of so many frames."""
    for start in range(0, len(frames), size):
        some = frames[start : start + size]
        picture = partial(picture_for, backend)
        yield from follow_objects(backend, [one.frame for one in some], some, picture)


def propagated(
    backend: FollowBackend, truth: Sequence[TrueFrame], frames: Sequence[FrameRef]
) -> list[tuple[float, float]]:
    """J and F of each object of the first frame that covers 32x32 px there, from its box on."""
    follower, sums = Follower(backend), dict[int, list[tuple[float, float]]]()
    for number, (true, frame) in enumerate(zip(truth, frames, strict=True)):
        height, width = frame.size_hw
        there = dict(zip(true.ids, true.rle, strict=True))
        follower.see(picture_for(backend, frame))
        if number == 0:
            sums = {name: [] for name, rle in there.items() if coco_mask.area(rle) >= 32**2}
            if not sums:
                return []
            boxes = [rle_box_xyxy_px(bytes_of(there[name]), frame.size_hw) for name in sums]
            prompts, _, _ = box_prompts(np.array(boxes), frame.size_hw, backend.image_size)
            follower.condition(prompts.points_model, prompts.labels)
            continue
        follower.track()
        made = finish(follower.followed().masks, frame.size_hw).rle
        nothing = bytes(coco_mask.encode(np.zeros((height, width), np.uint8, order="F"))["counts"])
        for name, own in zip(sums, made, strict=True):
            other = bytes_of(there[name]) if name in there else nothing
            pair = [
                coco_mask.decode({"counts": one, "size": [height, width]}) > 0
                for one in (own, other)
            ]
            f = davis_boundary_f(*pair)
            sums[name].append((mask_iou(own, other, frame.size_hw), f))
    return [(float(j), float(f)) for j, f in (np.mean(one, axis=0) for one in sums.values())]


def bytes_of(rle: Mapping[str, Any]) -> bytes:
    """Return run lengths that JSON may have made text."""
    counts = rle["counts"]
    return counts.encode() if isinstance(counts, str) else bytes(counts)


def matched(
    true: Sequence[TrueFrame], frames: Sequence[LabeledFrame]
) -> list[dict[int, tuple[int, float]]]:
    """By frame, for each row: the true object that it fits best, and the IoU, if that is 0.5."""
    found = []
    for truth, one in zip(true, frames, strict=True):
        rows: dict[int, tuple[int, float]] = {}
        if one.masks is not None and len(one.boxes) and truth.ids:
            made = [{"counts": rle, "size": list(one.masks.size_hw)} for rle in one.masks.rle]
            ious = np.asarray(coco_mask.iou(made, list(truth.rle), [0] * len(truth.rle)))
            for row, best in enumerate(ious.argmax(1)):
                if ious[row, best] >= MATCH_IOU:
                    rows[row] = truth.ids[best], float(ious[row, best])
        found.append(rows)
    return found


def seams(
    fits: Sequence[Mapping[int, tuple[int, float]]], tracks: Sequence[FrameTracks], size: int
) -> dict[tuple[int, int], bool]:
    """Whether an object has one id in the last and the first frame around a seam: by both."""
    found = {}
    for seam in range(size, len(fits), size):
        before, after = (
            {name: tracks[frame].ids[row] for row, (name, _) in fits[frame].items()}
            for frame in (seam - 1, seam)
        )
        for name in before.keys() & after.keys():
            found[seam, name] = bool(before[name] == after[name])
    return found


def without_some(frames: Sequence[LabeledFrame], seed: int) -> list[LabeledFrame]:
    """Remove 30% of the labels."""
    random, kept = np.random.default_rng(seed), []
    for one in frames:
        assert one.masks is not None
        rows = np.flatnonzero(random.random(len(one.boxes)) >= 0.3).tolist()
        some = replace(one, boxes=one.boxes.chosen(rows), masks=one.masks.chosen(rows))
        kept.append(some)
    return kept


def flickers(fits: Sequence[Mapping[int, tuple[int, float]]]) -> int:
    """Count objects that have a label before and after a frame, and not on it."""
    names = [{name for name, _ in one.values()} for one in fits]
    together = zip(names, names[1:], names[2:], strict=False)
    return sum(len((before & after) - now) for before, now, after in together)


def counts(
    true: Sequence[TrueFrame],
    fits: Sequence[Mapping[int, tuple[int, float]]],
    before: Sequence[Mapping[int, tuple[int, float]]],
    left: Sequence[Mapping[int, tuple[int, float]]],
    frames: Sequence[LabeledFrame],
) -> dict[str, float]:
    """Objects, those with a label, with none for a moment, that lost it and have it again.

    And detected and followed labels, and those of them that are on an object.
    """
    names = [[{name for name, _ in one.values()} for one in some] for some in (before, left, fits)]
    gone = [all_there - some for all_there, some in zip(*names[:2], strict=True)]
    rows = [
        (row >= one.detected, row in fit)
        for one, fit in zip(frames, fits, strict=True)
        for row in range(len(one.boxes))
    ]
    followed = [right for is_followed, right in rows if is_followed]
    detected = [right for is_followed, right in rows if not is_followed]
    back = sum(len(lost & now) for lost, now in zip(gone, names[2], strict=True))
    return {
        "true": sum(len(one.ids) for one in true), "labeled": sum(map(len, names[2])),
        "flickers": flickers(fits), "lost": sum(map(len, gone)), "back": back,
        "followed": len(followed), "right": sum(followed),
        "detected": len(detected), "right_detected": sum(detected),
    }  # fmt: skip


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--drives", type=int, default=3)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--model", help="a model with a memory; the stand-in without one")
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    loaded = given.model and load_follow_backend(given.model, given.backend, given.precision)
    objects: list[tuple[float, float]] = []
    totals: dict[str, list[dict[str, float]]] = {}
    joined: dict[int, list[tuple[bool, bool]]] = {5: [], 64: []}
    for drive, path in drives(given.cache, given.drives, given.frames):
        if drive.prompt != DETECTOR:
            continue
        true, kept = true_frames(path), without_some(drive.frames, drive.seed)
        before, left = matched(true, drive.frames), matched(true, kept)
        backend = loaded or PerfectMemory(true)
        objects += propagated(backend, true, [one.frame for one in drive.frames])
        ways: dict[str, tuple[int, Sequence[LabeledFrame]]] = {
            "all detections": (0, drive.frames),
            "70% of them": (0, kept),
            "followed, one chunk": (0, list(in_chunks(backend, kept, len(kept)))),
        }
        for size in joined:
            ways[f"followed, chunks of {size}"] = size, list(in_chunks(backend, kept, size))
        whole: dict[int, dict[tuple[int, int], bool]] = {}
        for way, (size, frames) in ways.items():
            tracks, fits = track(frames).frames, matched(true, frames)
            found = track_metrics(true, frames, tracks) | counts(true, fits, before, left, frames)
            totals.setdefault(way, []).append(found)
            if not size:  # the last of these is the one of one chunk
                whole = {one: seams(fits, tracks, one) for one in joined}
                continue
            here = seams(fits, tracks, size)
            shared = here.keys() & whole[size].keys()
            joined[size] += [(here[key], whole[size][key]) for key in shared]
    j, f = np.mean(objects, axis=0) if objects else (np.nan, np.nan)
    print(
        f"from first-frame boxes: {len(objects)} objects, J&F {50 * (j + f):.1f} (J {100 * j:.1f})"
    )
    tell(totals, joined)


def tell(
    totals: Mapping[str, Sequence[Mapping[str, float]]],
    joined: Mapping[int, Sequence[tuple[bool, bool]]],
) -> None:
    """Print what was found."""
    for way, several in totals.items():
        means = {name: np.mean([one[name] for one in several]) for name in several[0]}
        told = ", ".join(f"{name} {means[name]:.1f}" for name in ("HOTA", "IDF1", "switches"))
        total = {name: sum(int(one[name]) for one in several) for name in several[0]}
        recall = total["labeled"] / max(total["true"], 1)
        on_object = total["right_detected"] / max(total["detected"], 1)
        print(
            f"{way}: recall {recall:.1%}, {told}, flicker {total['flickers']}; "
            f"{total['detected']} detected, {on_object:.1%} of them on an object"
        )
        if total["followed"]:
            print(
                f"    {total['back']} of {total['lost']} removed are back; {total['followed']} "
                f"followed, {total['right'] / total['followed']:.1%} of them on an object"
            )
    for size, pairs in joined.items():
        if not pairs:
            continue
        same, alone, together = (
            np.mean(one) for one in ([a == b for a, b in pairs], *zip(*pairs, strict=True))
        )
        print(
            f"seams of chunks of {size}: {len(pairs)} objects on both sides, one id for "
            f"{alone:.1%}, without seams {together:.1%}, the same in {same:.1%}"
        )


if __name__ == "__main__":
    main()
