"""Objects followed through video with SAM 2's memory, frame by frame, in constant memory.

`see`, `track`, `condition` and `condition_on_masks` are the published predictor's steps, forward
and with prompts at any frame: same masks, as `lab/tools/follow_with_meta.py` measures. `step` is
the policy on top of them: a detector's boxes begin objects, confirm and condition them anew.

Of an object are held at most eight conditioning frames, six memories before the current frame and
fifteen pointers: going forward the published predictor reads no others, except for conditioning
frames before the last eight, which it never drops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sam2_core.backends.follow_backends import (
    CONDITIONING_FRAMES,
    RECENT_MEMORIES,
    RECENT_POINTERS,
    FollowBackend,
    RememberedMask,
)
from sam2_core.prompts import box_prompts
from sam2_core.types import POINT_PADDING, FloatArray, ImageArray, IntArray, LowResMasks, Prompts

CORRECTED_LOGIT = 32.0  # previous logits are clamped to this where a mask is corrected


@dataclass
class Moment:
    """What is remembered of an object at a frame.

    Its mask is encoded when a later frame first reads it: of an object that a detection joins on
    every frame nothing is ever read.

    Attributes:
        pointer: kept longest.
        mask: to be encoded; None once it is, and when it is too old to be read.
        memory: the encoded mask, None before it is read and when it is too old to be.

    """

    pointer: Any
    mask: RememberedMask | None
    memory: Any = None


@dataclass
class Shown:
    """An object's mask on the current frame, and the pointer that goes with it."""

    logits: Any
    predicted_iou: float
    object_score: float
    pointer: Any
    tracked: bool  # remembered as a frame between prompts, not as a prompt's


@dataclass
class Track:
    """An object that is followed.

    Attributes:
        conditioning: moments of prompts, by frame.
        recent: moments of tracked frames, by frame.
        shown: its mask on the current frame, None before it was tracked there.
        before: logits of its mask on an earlier frame, the last one with a mask.
        detection: row of the detection that joined it on the current frame, -1 without one.
        last_detected: frame.
        last_present: frame on which its object score was last positive.

    """

    conditioning: dict[int, Moment] = field(default_factory=dict)
    recent: dict[int, Moment] = field(default_factory=dict)
    shown: Shown | None = None
    before: Any = None
    detection: int = -1
    last_detected: int = 0
    last_present: int = 0

    @property
    def was_tracked(self) -> bool:
        """Whether its mask on the current frame was made by memory."""
        return self.shown is not None and self.shown.tracked

    def forget(self, frame: int) -> None:
        """Drop what no later frame reads."""
        for old in [old for old in self.recent if frame - old > RECENT_POINTERS]:
            del self.recent[old]
        for old, moment in self.recent.items():
            if frame - old > RECENT_MEMORIES:
                moment.mask = moment.memory = None


@dataclass(frozen=True)
class FollowRules:
    """When detections join objects, and when objects end.

    Attributes:
        still_iou: from this IoU with an object's mask on the frame before on, a detection is that
            object, which is not tracked then.
        joins_iou: least IoU of a detection's mask with a tracked one to be the same object.
        agrees_iou: from this IoU on a detection confirms an object, and does not condition it.
        refresh_frames: a detection conditions its object again after so many frames.
        absent_frames: an object ends after so many frames without detection and without presence.
        undetected_frames: an object ends after so many frames without detection.
        objects: at most so many; the one that was detected longest ago ends.

    """

    still_iou: float = 0.7
    joins_iou: float = 0.5
    agrees_iou: float = 0.8
    refresh_frames: int = 16
    absent_frames: int = 30
    undetected_frames: int = 150
    objects: int = 64


@dataclass(frozen=True, eq=False)
class Followed:
    """N objects on a frame, those of them that are absent included.

    Attributes:
        tracks: int64 (N,), their names: integers that no other object of this follower gets.
        predicted_iou: float32 (N,).
        object_score: float32 (N,), above 0 where the object is present.
        detections: int64 (N,), row of the detection that joined each, -1 without one.
        undetected_frames: int64 (N,), frames since the last detection, 0 with one.

    """

    tracks: IntArray
    predicted_iou: FloatArray
    object_score: FloatArray
    detections: IntArray
    undetected_frames: IntArray
    _logits: Sequence[Any]
    _backend: FollowBackend

    @property
    def masks(self) -> LowResMasks:
        """All masks, on the model's grid."""
        return self.chosen(range(len(self.tracks)))

    def chosen(self, rows: Sequence[int]) -> LowResMasks:
        """Return the masks of some rows."""
        grid = self._backend.image_size // 4
        logits = np.zeros((len(rows), grid, grid), np.float32)
        if rows:
            some = self._backend.stacked([self._logits[row] for row in rows])
            (logits,) = self._backend.fetched([some])
        stability = (logits > 1).sum((1, 2)) / np.maximum((logits > -1).sum((1, 2)), 1)
        return LowResMasks(
            logits, self.predicted_iou[list(rows)], self.object_score[list(rows)],
            stability.astype(np.float32),
        )  # fmt: skip


class Follower:
    """Follows objects through the frames of one camera, in order.

    Args:
        backend: the graphs.
        rules: for `step`.

    """

    def __init__(self, backend: FollowBackend, rules: FollowRules | None = None) -> None:
        self.backend, self.rules = backend, rules or FollowRules()
        self.frame = -1
        self.tracks: dict[int, Track] = {}
        self._began = 0
        self._features: dict[str, Any] = {}

    def step(self, image: ImageArray, boxes_xyxy_px: FloatArray | None = None) -> Followed:
        """Go to the next frame, join detections with objects, and track the others.

        A detection's mask is decoded without memory. It joins the object whose mask on the frame
        before it nearly covers, and is that object's mask. Objects that nothing joined are tracked,
        and detections that are left join those whose tracked masks they overlap most; they are
        the masks of objects that they condition again. Detections that join none begin objects,
        except for those whose mask is empty and invalid boxes.

        Args:
            image: uint8 (H, W, 3) RGB.
            boxes_xyxy_px: float32 (D, 4) of a detector, in pixels of the image; None without one.

        """
        return self.backend.together(lambda: self._step(image, boxes_xyxy_px))

    def _step(self, image: ImageArray, boxes_xyxy_px: FloatArray | None) -> Followed:
        self.see(image)
        if boxes_xyxy_px is None:
            self.track()
        else:
            size = self.backend.image_size
            prompts, rows, _ = box_prompts(boxes_xyxy_px, image.shape[:2], size)
            self._detect(prompts, rows)
        self._end()
        return self.followed()

    def see(self, image: ImageArray) -> None:
        """Go to the next frame: encode it, uint8 (H, W, 3) RGB."""
        self.skip()
        self._features = self.backend.encode(image)
        # Memories of this frame are made of it later, when another frame is encoded.
        self._features["embedding"] = self.backend.kept(self._features["embedding"])

    def skip(self) -> None:
        """Go past a frame that there is no picture of."""
        self.frame += 1
        for track in self.tracks.values():
            track.before = track.shown.logits if track.shown else track.before
            track.shown, track.detection = None, -1
            track.forget(self.frame)

    def track(self) -> None:
        """Track all objects that have no mask on this frame yet."""
        tracked, _ = self._tracked()
        self._remember(tracked, [False] * len(tracked))

    def _tracked(self, others: Sequence[Any] = ()) -> tuple[dict[int, Shown], FloatArray]:
        """Return masks by memory of objects that have none on this frame yet, by name.

        They are compared with other ones as in `_decode`.
        """
        names = [name for name, track in self.tracks.items() if track.shown is None]
        points = np.zeros((len(names), 2, 2), np.float32)
        labels = np.full((len(names), 2), POINT_PADDING, np.int32)
        tracks = [self.tracks[name] for name in names]
        decoded, compared = self._decode(points, labels, tracks, others, recalled=True)
        return dict(zip(names, decoded, strict=True)), compared

    def condition(
        self,
        points_model: FloatArray,
        labels: npt.NDArray[np.int32],
        names: Sequence[int | None] | None = None,
    ) -> list[int]:
        """Prompt O objects on this frame.

        An object that was tracked on this frame is corrected: its memory and its mask are used, and
        the frame stays a tracked one. Otherwise the frame conditions it, without memory.

        Args:
            points_model: float32 (O, K, 2) x, y in model pixels.
            labels: int32 (O, K): 1 positive, 0 negative, 2 and 3 a box's corners.
            names: of the objects, each once; None for new ones.

        Returns:
            Their names.

        """
        known = self._named(names or [None] * len(labels))
        points = np.pad(points_model, ((0, 0), (0, 1), (0, 0)))
        padded = np.pad(labels, ((0, 0), (0, 1)), constant_values=POINT_PADDING)
        tracked = [self.tracks[name].was_tracked for name in known]
        for corrected in (False, True):
            rows = [row for row, track in enumerate(tracked) if track is corrected]
            some = [known[row] for row in rows]
            tracks = [self.tracks[name] for name in some]
            decoded, _ = self._decode(points[rows], padded[rows], tracks, recalled=corrected)
            self._remember(dict(zip(some, decoded, strict=True)), [True] * len(some))
        return known

    def condition_on_masks(
        self, masks: npt.NDArray[np.bool_], names: Sequence[int | None] | None = None
    ) -> list[int]:
        """Take masks of O objects on this frame as they are.

        Args:
            masks: bool (O, H, W), none of them empty, of any size.
            names: as in `condition`.

        Returns:
            Their names.

        """
        if not masks.any((1, 2)).all():
            raise ValueError("an object is not conditioned on an empty mask")
        known = self._named(names or [None] * len(masks))
        size = self.backend.image_size
        squares = np.zeros((len(masks), size, size), np.float32)
        for square, mask in zip(squares, masks, strict=True):
            image = Image.fromarray(mask.astype(np.float32))
            square[:] = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)) >= 0.5
        conditioned, logits, prompts = self.backend.run(
            "memory_mask",
            {"embedding": self._features["embedding"], "masks": squares},
        )
        count = len(masks)
        *_, pointers = self._run_decoder(
            {
                "conditioned": conditioned,
                "conditioned_index": np.zeros(count, np.int64),
                "points": np.zeros((count, 2, 2), np.float32),
                "labels": np.full((count, 2), POINT_PADDING, np.int32),
                "mask_input": prompts,
                "has_mask": np.ones(count, np.bool_),
                "ambiguous": np.zeros(count, np.bool_),
            }
        )
        shown = [
            Shown(mask, 1.0, 10.0, pointer, tracked=self.tracks[name].was_tracked)
            for name, mask, pointer in zip(known, logits, pointers, strict=True)
        ]
        self._remember(dict(zip(known, shown, strict=True)), [True] * len(known))
        return known

    def followed(self) -> Followed:
        """Return all objects that have a mask on this frame."""
        masks = {name: track.shown for name, track in self.tracks.items() if track.shown}
        tracks = [self.tracks[name] for name in masks]
        return Followed(
            np.array(list(masks), np.int64),
            np.array([shown.predicted_iou for shown in masks.values()], np.float32),
            np.array([shown.object_score for shown in masks.values()], np.float32),
            np.array([track.detection for track in tracks], np.int64),
            np.array([self.frame - track.last_detected for track in tracks], np.int64),
            [shown.logits for shown in masks.values()],
            self.backend,
        )

    def _named(self, names: Sequence[int | None]) -> list[int]:
        return [self._begin() if name is None else name for name in names]

    def _begin(self) -> int:
        name = self._began
        self.tracks[name] = Track(last_detected=self.frame, last_present=self.frame)
        self._began += 1
        return name

    def _decode(
        self,
        points: FloatArray,
        labels: npt.NDArray[np.int32],
        tracks: Sequence[Track],
        others: Sequence[Any] = (),
        *,
        recalled: bool,
    ) -> tuple[list[Shown], FloatArray]:
        """Decode a prompt for each object, with its memory if `recalled`.

        Returns:
            What is shown, and how it compares with masks by their logits: see the backend's
            `compared`.

        """
        if recalled:
            self._encode_memories(tracks)
        alike: dict[tuple[int, int], list[int]] = {}
        for row, track in enumerate(tracks):
            counts = (0, 0)
            if recalled and not self.backend.unequal:
                counts = len(self._memories(track)), len(self._pointers(track))
            alike.setdefault(counts, []).append(row)
        result: dict[int, Shown] = {}
        compared = np.zeros((len(tracks), len(others) + 1), np.float32)
        for members in alike.values():
            for start in range(0, len(members), self.backend.objects_at_once):
                rows = members[start : start + self.backend.objects_at_once]
                chosen = [tracks[row] for row in rows]
                inputs = self._mask_inputs(chosen) | {
                    "conditioned": self._features["embedding"],
                    "conditioned_index": np.zeros(len(rows), np.int64),
                    "points": np.ascontiguousarray(points[rows], np.float32),
                    "labels": np.ascontiguousarray(labels[rows], np.int32),
                    "ambiguous": (labels[rows] != POINT_PADDING).sum(1) <= 1,
                }
                if recalled:
                    inputs["conditioned"] = self._recall(chosen)
                    inputs["conditioned_index"] = np.arange(len(rows))
                logits, iou, score, pointers = self._run_decoder(inputs)
                found = self.backend.compared(logits, others)
                # All at once: processes that share a device wait for their turn each time.
                iou, score, compared[rows] = self.backend.fetched([iou, score, found])
                for row, *decoded in zip(rows, logits, iou, score, pointers, strict=True):
                    mask, predicted_iou, object_score, pointer = decoded
                    numbers = float(predicted_iou), float(object_score)
                    result[row] = Shown(mask, *numbers, pointer, recalled)
        return [result[row] for row in range(len(tracks))], compared

    def _run_decoder(self, inputs: dict[str, Any]) -> Sequence[Any]:
        """Return logits, predicted IoU, object scores and pointers of O objects, own arrays."""
        fine = {name: self._features[name] for name in ("high_res_s0", "high_res_s1")}
        return self.backend.run("memory_decoder", inputs | fine)

    def _mask_inputs(self, tracks: Sequence[Track]) -> dict[str, Any]:
        """Return the masks that objects have on this frame already, to be refined."""
        has_mask = np.array([track.shown is not None for track in tracks])
        if not has_mask.any():
            return {"mask_input": self.backend.no_masks(len(tracks)), "has_mask": has_mask}
        grid = self.backend.image_size // 4
        masks = np.zeros((len(tracks), 1, grid, grid), np.float32)
        for mask, track in zip(masks, tracks, strict=True):
            if track.shown:
                (logits,) = self.backend.fetched([track.shown.logits])
                mask[0] = logits.clip(-CORRECTED_LOGIT, CORRECTED_LOGIT)
        return {"mask_input": masks, "has_mask": has_mask}

    def _memories(self, track: Track) -> list[tuple[int, Moment]]:
        """Return what is read on this frame, each with its place in time."""
        conditioning = [(RECENT_MEMORIES, moment) for moment in track.conditioning.values()]
        ages = [(self.frame - frame, moment) for frame, moment in track.recent.items()]
        recent = [(age - 1, moment) for age, moment in ages if 1 <= age <= RECENT_MEMORIES]
        return conditioning + recent

    def _encode_memories(self, tracks: Sequence[Track]) -> None:
        """Encode the masks that these objects' memories on this frame are made of."""
        read = [moment for track in tracks for _, moment in self._memories(track)]
        new = [(moment, moment.mask) for moment in read if moment.mask is not None]
        for start in range(0, len(new), self.backend.objects_at_once):
            some = new[start : start + self.backend.objects_at_once]
            memories = self.backend.remember([mask for _, mask in some])
            for (moment, _), memory in zip(some, memories, strict=True):
                moment.mask, moment.memory = None, memory

    def _pointers(self, track: Track) -> list[tuple[float, Any]]:
        """Return the pointers that are read on this frame, each with its age in frames."""
        moments = (*track.conditioning.items(), *track.recent.items())
        ages = [(self.frame - frame, moment.pointer) for frame, moment in moments]
        return [(float(age), pointer) for age, pointer in ages if age > 0]

    def _recall(self, tracks: Sequence[Track]) -> Any:
        """Condition the frame on what is remembered of O objects."""
        memories = [self._memories(track) for track in tracks]
        pointers = [self._pointers(track) for track in tracks]
        return self.backend.recall(
            self._features["embedding"],
            [[moment.memory for _, moment in some] for some in memories],
            [[place for place, _ in some] for some in memories],
            [[pointer for _, pointer in some] for some in pointers],
            [[age for age, _ in some] for some in pointers],
        )

    def _remember(self, masks: Mapping[int, Shown], prompted: Sequence[bool]) -> None:
        """Let masks of this frame, by name, be those of their objects, and remember them."""
        for (name, shown), by_prompt in zip(masks.items(), prompted, strict=True):
            track = self.tracks[name]
            track.shown = shown
            embedding = self._features["embedding"]
            mask = RememberedMask(embedding, shown.logits, shown.object_score, by_prompt)
            if shown.tracked:  # for a few frames: with the others of its batch
                track.recent[self.frame] = Moment(shown.pointer, mask)
            else:
                alone = mask._replace(logits=self.backend.kept(mask.logits))
                track.conditioning[self.frame] = Moment(self.backend.kept(shown.pointer), alone)
                track.recent.pop(self.frame, None)
                if len(track.conditioning) > CONDITIONING_FRAMES:
                    del track.conditioning[min(track.conditioning)]
            if shown.object_score > 0:
                track.last_present = self.frame

    def _detect(self, prompts: Prompts, rows: IntArray) -> None:
        """Join detections, `rows` of the detector, with objects, and track the others."""
        fresh = [Track() for _ in rows]
        before = {
            name: track.before for name, track in self.tracks.items() if track.before is not None
        }
        detected, compared = self._decode(
            prompts.points_model, prompts.labels, fresh, list(before.values()), recalled=False
        )
        still = _pairs_of(compared[:, :-1], list(before), self.rules.still_iou)
        there = compared[:, -1] > 0
        shown: dict[int, Shown] = {}
        for row, (name, _) in still.items():
            self.tracks[name].shown = shown[name] = detected[row]
        left = [row for row in range(len(detected)) if row not in still]
        tracked, compared = self._tracked([detected[row].logits for row in left])
        moved = _pairs_of(compared[:, :-1].T.copy(), list(tracked), self.rules.joins_iou)
        joined = still | {left[row]: found for row, found in moved.items()}
        for row, mask in enumerate(detected):
            if row not in joined and not there[row]:
                continue
            name, agreement = joined[row] if row in joined else (self._begin(), 0.0)
            track = self.tracks[name]
            track.detection, track.last_detected = int(rows[row]), self.frame
            late = self.frame - max(track.conditioning, default=self.frame)
            again = late >= self.rules.refresh_frames
            if row in still:
                shown[name] = replace(mask, tracked=not again)
            elif again or agreement < self.rules.agrees_iou:
                shown[name] = mask
        masks = tracked | shown
        self._remember(masks, [name in shown for name in masks])

    def _end(self) -> None:
        """End objects that are absent, undetected or too many."""
        for name, track in list(self.tracks.items()):
            undetected = self.frame - track.last_detected
            absent = min(undetected, self.frame - track.last_present)
            if absent >= self.rules.absent_frames or undetected >= self.rules.undetected_frames:
                del self.tracks[name]
        by_age = sorted(self.tracks, key=lambda name: self.tracks[name].last_detected)
        for name in by_age[: max(0, len(by_age) - self.rules.objects)]:
            del self.tracks[name]


def _pairs_of(
    iou: FloatArray, names: Sequence[int], least_iou: float
) -> dict[int, tuple[int, float]]:
    """Join detections with objects, the most alike first: object and IoU by detection.

    Args:
        iou: float32 (D, N) of detections' masks and objects'; overwritten.
        names: of the N objects.
        least_iou: of two that are joined.

    """
    joined = dict[int, tuple[int, float]]()
    while iou.size and iou.max() >= least_iou:
        row, column = divmod(int(iou.argmax()), iou.shape[1])
        joined[row] = names[column], float(iou[row, column])
        iou[row], iou[:, column] = 0, 0
    return joined
