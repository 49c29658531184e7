"""An object followed from one of its masks through the sequence, forward and then backward.

Somebody repairs a mask once, and memory carries it on. The page asks for one step after another
and says how far it is; what was found until the end, or until somebody stops, becomes one act.
Labels that people have decided on, and frames that are done, stay as they are; so do labels that
agree with the followed mask. Others of the object get that mask, and where there is no label one is
added: labels of the machine, on which nobody has decided. They are an object of their own, so the
queue asks about it, whatever was decided where it began.
"""

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sam2_core.checkpoints import NoMemoryError
from sam2_core.follow import Follower, FollowRules
from sam2_core.mask_geometry import mask_iou
from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset.documents import carried_id, mask_of, rle_of, sample_id, stamp_text, window_of
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import DONE, MACHINE_FIELD, REVIEWED_FIELD
from tasks.masks.crops import BoolArray, bounds_of, masks_of
from tasks.masks.follow import LEAST_PREDICTED_IOU, finished
from tasks.masks.model import choose_model
from tasks.review.actions import (
    FRAME,
    Chosen,
    as_corrected,
    decide,
    frame_of,
    labels_of,
    refuse_changed,
)
from tasks.review.events import DELETED, REJECTED, Event, refuse_changed_labels
from tasks.review.mask_repair import MODEL_VARIABLE, models, picture_of, read_picture
from tasks.review.queue import ORDER_AGAIN
from tasks.review.stats import recalibration_of
from tasks.risk.compute_risk import compute_risk, recalibrated
from tasks.store.tables import FOLLOWED, LabeledFrame
from tasks.wording import counted

RULES = FollowRules()
DECIDED = "somebody has decided"
STEP_S = 0.5  # so often the page hears how far it is


class Following:
    """An object on its way through a sequence.

    Args:
        dataset: the dataset.
        chosen: a frame with the one label to begin with.

    Raises:
        AutolabelError: the label has no mask, or was rejected; a picture has changed; or the model
            has no memory.

    """

    def __init__(self, dataset: Any, chosen: Chosen) -> None:
        chosen = as_corrected(dataset, chosen)
        ((_, label),) = chosen.labels
        if label.get("decision") in {REJECTED, DELETED} or not label.get("area_px"):
            raise AutolabelError(
                f"{label.get('label')}: no mask to follow, or one that was rejected: repair it "
                "first (Shift+C)"
            )
        model = os.environ.get(MODEL_VARIABLE) or "auto"
        choice = choose_model(model, "onnxruntime-cpu")
        try:
            self._backend = models.follow_backend(choice)
        except NoMemoryError as error:
            raise AutolabelError(f"{error}. {MODEL_VARIABLE} names another model") from error
        self._dataset, self._seed, self._model = dataset, chosen, stamp_text(choice.stamp)
        where = {name: chosen.frame.get(name) for name in ("sequence_id", "camera")}
        rows = sample_collection(dataset).find(where, {"_id": 1}).sort("frame_number", 1)
        ids = [one["_id"] for one in rows]
        refuse_changed(dataset, ids)
        at = ids.index(sample_id(chosen.frame_key))
        self._ways = {"forward": ids[at + 1 :], "backward": ids[:at][::-1]}
        self._object, self._name = self._object_of(label), str(label.get("label"))
        self.carried, self._recalibration = uuid.uuid4().hex, recalibration_of(dataset)
        self._steps = self._follow()
        self.frames, self.of = 0, len(ids) - 1  # looked at, of the sequence
        self.way = "forward" if self._ways["forward"] else "backward"
        self.made: list[tuple[Chosen, Event]] = []
        self.left = Counter[str]()  # frames without a new mask, by why

    def advance(self) -> dict[str, Any]:
        """Go on for a moment; return how far it is."""
        until = time.monotonic() + STEP_S
        done = next(self._steps, None) is None
        while not done and time.monotonic() < until:
            done = next(self._steps, None) is None
        return self.so_far() | {"done": done}

    def so_far(self) -> dict[str, Any]:
        """Return what goes which way from where, how many frames were looked at, and masks."""
        start = self._seed.frame.get("frame_number")
        return {"frames": self.frames, "of": self.of, "masks": len(self.made), "way": self.way,
                "start": start, "object": self._name}  # fmt: skip

    def take(self) -> list[Event]:
        """Record what was found, as one act; labels that were decided on meanwhile are left out."""
        kept = [(frame, event) for frame, event in self.made if _unchanged(self._dataset, frame)]
        self.left[DECIDED] += len(self.made) - len(kept)
        return decide(self._dataset, [one for one, _ in kept], [event for _, event in kept])

    def told(self, events: Sequence[Event]) -> str:
        """Say how many frames got a mask, and why others got none: together those looked at."""
        if not self.of:
            return "no other frame: this camera has no more of this sequence"
        why = ", ".join(f"{what} ({count})" for what, count in self.left.items() if count)
        others = f", {self.left.total()} got none: {why}" if why else ""
        seen = f"Nobody has seen these masks: {ORDER_AGAIN} asks about them first"
        return (
            f"looked at {self.frames} of {counted(self.of, 'frame')}: {len(events)} got a mask of "
            f"the {self._name}{others}{f'. {seen}' if events else ''}"
        )

    def _object_of(self, label: Mapping[str, Any]) -> set[str]:
        """Names of the object that a label, or those that it was made of, shows."""
        where = {"frame_key": self._seed.frame_key}
        sample = sample_collection(self._dataset).find_one(where, {MACHINE_FIELD: 1}) or {}
        ids = {str(label["_id"]), *map(str, label.get("sources") or ())}
        named = [one for _, one in labels_of(sample) if str(one["_id"]) in ids]
        return {str(one["object"]) for one in named if one.get("object")}

    def _follow(self) -> Iterator[int]:
        ((_, label),) = self._seed.labels
        height, width = self._seed.size_hw
        mask = np.zeros((1, height, width), np.bool_)
        left, top, right, bottom = window_of(label["bounding_box"], self._seed.size_hw)
        mask[0, top:bottom, left:right] = mask_of(label, self._seed.size_hw)
        fields = {**FRAME, MACHINE_FIELD: 1, REVIEWED_FIELD: 1, "review_status": 1}
        for name, way in self._ways.items():
            self.way = name
            follower = Follower(self._backend)
            follower.see(read_picture(picture_of(self._seed)))
            follower.condition_on_masks(mask)
            absent = 0
            for age, identity in enumerate(way, 1):
                sample = sample_collection(self._dataset).find_one({"_id": identity}, fields)
                self.frames += 1
                masks = self._masks(follower, sample) if sample else None
                absent = absent + 1 if masks is None else 0
                if masks is None:
                    self.left["the object is not seen"] += 1
                elif sample and sample["review_status"] != DONE:
                    self._note(frame_of(sample), dict(sample), masks, age)
                else:
                    self.left["the frame is done"] += 1
                yield self.frames
                if absent >= RULES.absent_frames:
                    break

    def _masks(self, follower: Follower, sample: Mapping[str, Any]) -> Masks | None:
        """Track the object on the next frame; None where it is not seen."""
        frame = frame_of(sample)
        try:
            pixels = read_picture(picture_of(frame))
        except AutolabelError:  # a frame that failed has no labels
            follower.skip()
            return None
        follower.see(pixels)
        follower.track()
        low_res = follower.followed().masks
        masks = finished(low_res, frame.size_hw)
        good = low_res.object_score[0] > 0 and low_res.predicted_iou[0] >= LEAST_PREDICTED_IOU
        return masks if good and masks.area_px[0] else None

    def _note(self, frame: Chosen, sample: Mapping[str, Any], masks: Masks, age: int) -> None:
        """Remember what becomes of a frame's label of the object, or of a new one."""
        (rle,) = masks.rle
        box = bounds_of(masks_of(masks.rle, masks.size_hw))[0].tolist()
        labels = list(labels_of(sample))
        iou = [_iou(rle, box, one, frame.size_hw) for _, one in labels]
        same = [
            (value, field, label)
            for value, (field, label) in zip(iou, labels, strict=True)
            if value >= RULES.joins_iou or label.get("object") in self._object
        ]
        if any(field == REVIEWED_FIELD or label.get("decision") for _, field, label in same):
            self.left[DECIDED] += 1
            return
        best = max(same, key=lambda one: one[0], default=None)
        if best and best[0] >= RULES.agrees_iou:
            self.left["its label agrees"] += 1
            return
        ((_, seed),) = self._seed.labels
        known = best[2] if best else seed
        carried = carried_id(frame.frame_key, frame.run_key, str(seed["_id"]))
        name = str(known["_id"] if best else carried)
        boxes = Boxes(np.array([box], np.float32), np.ones(1, np.float32), (self._name,), None, "")
        labeled = LabeledFrame(picture_of(frame), boxes, masks)
        judgement = recalibrated(compute_risk([labeled])[0], self._recalibration)
        values = {
            "id": name, "label": self._name, "size_hw": list(masks.size_hw),
            "box_xyxy_px": [float(side) for side in box], "rle": rle.decode("ascii"),
            "area_px": int(masks.area_px[0]), "model": self._model,
            "predicted_iou": float(masks.predicted_iou[0]), "stability": float(masks.stability[0]),
            "object_score": float(masks.object_score[0]), "reason": masks.reasons[0],
            "risk": float(judgement.risk[0]), "reasons": list(judgement.reasons[0]),
            "source": FOLLOWED, "undetected_frames": age, "object": self.carried,
            "changed": f"mask: followed from frame {self._seed.frame.get('frame_number')}",
            **{what: known[what] for what in ("index", "track") if what in known},
        }  # fmt: skip
        noted = {what: values[what] for what in ("label", "risk", "reasons", "changed")}
        event = frame.event("follow", overrides={name: values}, changes={name: noted})
        self.made.append((replace(frame, labels=(best[1:],) if best else ()), event))


def _iou(rle: bytes, box: list[int], label: Mapping[str, Any], size_hw: tuple[int, int]) -> float:
    """IoU of a whole picture's mask, with its box, and a label's mask."""
    left, top, right, bottom = window_of(label["bounding_box"], size_hw)
    if right <= box[0] or bottom <= box[1] or left >= box[2] or top >= box[3]:
        return 0.0
    own: BoolArray = mask_of(label, size_hw)
    other = rle_of(own, left, top, size_hw).encode("ascii")
    return mask_iou(rle, other, size_hw)


def _unchanged(dataset: Any, frame: Chosen) -> bool:
    try:
        refuse_changed_labels(dataset, [frame])
    except AutolabelError:
        return False
    return True


_held: list[Following] = []  # one at a time: another page's is forgotten


def begin(dataset: Any, chosen: Chosen) -> dict[str, Any]:
    """Begin to follow the object of a label; return the name of it and how far it is.

    Raises:
        AutolabelError: as `Following`.

    """
    _held[:] = [Following(dataset, chosen)]
    return {"following": _held[0].carried, "done": False, **_held[0].so_far()}


def held(name: str) -> Following:
    """Return what `begin` has begun.

    Raises:
        AutolabelError: it is not held any more.

    """
    if [one.carried for one in _held] != [name]:
        raise AutolabelError("this object is not followed any more: begin again")
    return _held[0]
