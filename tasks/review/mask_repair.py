"""Masks mended by clicking on an open frame; what somebody takes of it becomes a correction.

The model makes a mask of the clicks and a dragged box there and then. The page keeps what was
clicked and sends all of it each time: nothing of a repair lives here but the warm model and the
last pictures, with what the model has encoded of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from bson import ObjectId
from pydantic import Field, FiniteFloat, TypeAdapter
from rlemasklib import RLEMask

from sam2_core.arrays import freeze_arrays
from sam2_core.clicks import BGRA, MADE, OpenImage, drawn
from sam2_core.prompts import PointPrompts
from sam2_core.types import AutolabelError, FloatArray, ImageArray, Masks, ModelStamp
from tasks.dataset.documents import (
    Values,
    detections_of,
    fingerprint,
    mask_of,
    rle_of,
    stamp_text,
    window_of,
)
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import REVIEWED_FIELD
from tasks.masks.crops import BoolArray, bounds_of, cut_out, masks_of
from tasks.masks.model import Segmenters, choose_model
from tasks.masks.rules import large_parts, least_of, without_holes
from tasks.review.actions import Chosen, as_corrected, choose, confirming, decide
from tasks.review.events import CORRECTED, EDITED, Event
from tasks.types import FrameRef
from tasks.wording import counted

MODEL_VARIABLE = "AUTOLABEL_CLICK_MODEL"
# Pictures that stay open: the one at hand, the one before, those of other tabs.
KEPT_PICTURES = 4
OLD: BGRA = (21, 204, 250, 90)
DRAWN: Values = {"changed": "drawn in the App"}
NOTHING_FOUND = "nothing is left of the mask: undo a click, or drag a box around the object"


@dataclass(frozen=True)
class Clicked:
    """All that somebody has clicked and dragged for one label.

    Attributes:
        sample_id, label_id: what it is about.
        version: of the label when it was opened.
        points: x, y in pixels of the picture, and whether the object is there.
        box_xyxy_px: dragged, None for the label's own.

    """

    sample_id: str
    label_id: str
    version: str
    points: Annotated[tuple[tuple[FiniteFloat, FiniteFloat, bool], ...], Field(max_length=64)] = ()
    box_xyxy_px: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat] | None = None

    @staticmethod
    def of(params: Mapping[str, Any]) -> Clicked:
        """Read what the page has sent.

        Raises:
            AutolabelError: it is not that.

        """
        try:
            return TypeAdapter(Clicked).validate_python(dict(params))
        except ValueError as error:
            raise AutolabelError(f"these are no clicks on a label: {error}") from error

    def text(self) -> str:
        """Say in a few words what it was."""
        parts = ["a box"] * bool(self.box_xyxy_px)
        parts += [counted(len(self.points), "click")] * bool(self.points)
        return " and ".join(parts)


@dataclass(frozen=True, eq=False)
class Mended:
    """A mask that the model made of clicks.

    Attributes:
        masks: one row.
        mask: bool (height, width), cut out at `box_xyxy_px`.
        box_xyxy_px: of whole pixels, tight around the mask.
        stamp: the model.

    """

    masks: Masks
    mask: BoolArray
    box_xyxy_px: tuple[int, int, int, int]
    stamp: ModelStamp

    def __post_init__(self) -> None:
        freeze_arrays(self, mask="bool (height, width)")

    def shown(self) -> dict[str, Any]:
        """Return what the page draws."""
        left, top, _, _ = self.box_xyxy_px
        return {"mask": drawn(self.mask, left, top, MADE), "area_px": int(self.masks.area_px[0]),
                "predicted_iou": round(float(self.masks.predicted_iou[0]), 3)}  # fmt: skip


def open_label(dataset: Any, sample_id: str, label_id: str) -> dict[str, Any]:
    """Return what the page shows before the first click: picture, label, mask.

    Raises:
        AutolabelError: the label is gone, or its picture has changed.

    """
    frame = _frame_with(dataset, sample_id, label_id)
    ((_, label),) = frame.labels
    left, top, right, bottom = window_of(label["bounding_box"], frame.size_hw)
    mask = mask_of(label, frame.size_hw)
    return {
        "sample_id": sample_id, "label_id": str(label["_id"]),
        "version": version_of(label), "label": label.get("label") or "",
        "filepath": frame.filepath, "size_hw": list(frame.size_hw),
        "box_xyxy_px": [left, top, right, bottom], "mask": drawn(mask, left, top, OLD),
    }  # fmt: skip


def warm_up(dataset: Any, sample_id: str, label_id: str) -> str:
    """Load the model and let it look at a label's surroundings; return the model's name.

    Raises:
        AutolabelError: there is no such model, or the picture cannot be read.

    """
    frame = _frame_with(dataset, sample_id, label_id)
    image = open_image(frame)
    image.look_at(_box_of(frame))
    return str(image.backend.info.stamp.name)


def mend(dataset: Any, clicked: Clicked) -> tuple[Chosen, Mended]:
    """Make the mask of clicks on a label, as it was opened.

    Raises:
        AutolabelError: the label has been changed meanwhile, the picture cannot be read, or
            nothing is left of the mask.

    """
    frame = _frame_with(dataset, clicked.sample_id, clicked.label_id)
    ((_, label),) = frame.labels
    if version_of(label) != clicked.version:
        raise AutolabelError(
            f"this label was changed since you opened it (it is {label.get('decision') or 'open'} "
            "now): press Escape and open it again"
        )
    image = open_image(frame)
    limits = np.array([frame.size_hw[1], frame.size_hw[0]])
    places = np.array([point[:2] for point in clicked.points], np.float32).reshape(1, -1, 2)
    positive = np.array([[point[2] for point in clicked.points]], np.int32).reshape(1, -1)
    dragged = clicked.box_xyxy_px
    box = _box_of(frame) if dragged is None else np.array(dragged, np.float32)
    masks = image.segment(PointPrompts(places.clip(0, limits), positive, box[None]))
    if masks.reasons[0] or not masks.area_px[0]:
        reason = "" if masks.reasons[0].startswith("empty") else masks.reasons[0]
        raise AutolabelError(reason or NOTHING_FOUND)
    (whole,) = masks_of(masks.rle, masks.size_hw)
    bounds = bounds_of([whole])[0].tolist()
    left, top, _, _ = bounds
    mask = tidied(cut_out(whole, bounds), (left, top), clicked.points, dragged)
    if not mask.any():
        raise AutolabelError(NOTHING_FOUND)
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    mask = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    left, top = left + int(columns[0]), top + int(rows[0])
    box_px = (left, top, left + mask.shape[1], top + mask.shape[0])
    run_lengths = rle_of(mask, left, top, frame.size_hw).encode("ascii")
    masks = replace(masks, rle=(run_lengths,), area_px=np.array([mask.sum()]))
    return frame, Mended(masks, mask, box_px, image.backend.info.stamp)


def take(dataset: Any, clicked: Clicked) -> list[Event]:
    """Make the mask of clicks the label's correction.

    Raises:
        AutolabelError: as `mend`; or nothing was clicked.

    """
    if not clicked.points and clicked.box_xyxy_px is None:
        raise AutolabelError("nothing was clicked: the mask is as it was")
    frame, made = mend(dataset, clicked)
    ((_, label),) = frame.labels
    masks, model = made.masks, stamp_text(made.stamp)
    changed = f"mask: {clicked.text()}"
    values = {
        "changed": changed, "model": model, "rle": masks.rle[0].decode("ascii"),
        "box_xyxy_px": list(made.box_xyxy_px), "area_px": int(masks.area_px[0]),
        "predicted_iou": float(masks.predicted_iou[0]), "stability": float(masks.stability[0]),
        "object_score": float(masks.object_score[0]), "risk": None,
        "source": None, "undetected_frames": None,
    }  # fmt: skip
    action = "repair" if label.get("fingerprint") else "add"  # what was drawn just now has none
    event = confirming(frame, action, CORRECTED, lambda _: values)
    prompts = {
        "points_xy_px": [list(point) for point in clicked.points],
        "box_xyxy_px": clicked.box_xyxy_px and list(clicked.box_xyxy_px),
    }
    provenance = {"source": "clicks", "model": model, "prompts": prompts}
    changes = {one: {**noted, **provenance} for one, noted in event.changes.items()}
    return decide(dataset, [frame], [replace(event, changes=changes)])


def take_drawn(dataset: Any, sample_ids: Sequence[str]) -> tuple[list[Event], str]:
    """Record what somebody has drawn in the tab Annotate, each label as an act; boxes get masks.

    Returns:
        The events, and what was wrong with the last box that got no mask.

    """
    events: list[Event] = []
    wrong = ""
    wanted = {"_id": {"$in": [ObjectId(one) for one in sample_ids]}}
    for sample in sample_collection(dataset).find(wanted, {REVIEWED_FIELD: 1}):
        for label in detections_of(sample, REVIEWED_FIELD):
            if label.get("fingerprint"):  # recorded already
                continue
            where = str(sample["_id"]), str(label["_id"])
            frame = _frame_with(dataset, *where)
            try:
                box = window_of(label["bounding_box"], frame.size_hw)
                by_hand = [confirming(frame, "add", EDITED, lambda _: DRAWN)]
                events += (
                    decide(dataset, [frame], by_hand) if label.get("mask")
                    else take(dataset, Clicked(*where, version_of(label), (), box))
                )  # fmt: skip
            except AutolabelError as error:
                wrong = f"the box '{label.get('label')}' has no mask yet, C makes one: {error}"
    return events, wrong


def version_of(label: Mapping[str, Any]) -> str:
    """Name a label's present state: changes with its mask, its class and what was decided."""
    return f"{label['_id']} {label.get('decision') or ''} {fingerprint(label)}"


def _frame_with(dataset: Any, sample_id: str, label_id: str) -> Chosen:
    """Find a frame with one label: the reviewed one, where the machine's has become that."""
    (frame,) = choose(dataset, [sample_id], [label_id])
    return as_corrected(dataset, frame)


def _box_of(frame: Chosen) -> FloatArray:
    """Box that a label was made of; else the one around it, float32 (4,)."""
    _, label = frame.labels[0]
    box = label.get("box_xyxy_px") or window_of(label["bounding_box"], frame.size_hw)
    return np.array(box, np.float32)


# FiftyOne makes operators anew for every call: what they keep is the App's process's.
models = Segmenters(certified=False)


def open_image(frame: Chosen) -> OpenImage:
    """Open a frame's picture for clicks, or return it as it was opened before.

    Raises:
        AutolabelError: it cannot be read, or it is not of the size that was labeled.

    """
    return _opened(os.environ.get(MODEL_VARIABLE) or "auto", picture_of(frame))


def picture_of(frame: Chosen) -> FrameRef:
    """Say where a frame's picture is."""
    fields = frame.frame
    return FrameRef(
        str(fields.get("sequence_id") or ""), str(fields.get("camera") or ""),
        int(fields.get("frame_number") or 0), None, frame.filepath, frame.size_hw,
        local_path=frame.filepath,
    )  # fmt: skip


@functools.lru_cache(maxsize=KEPT_PICTURES)
def _opened(model: str, frame: FrameRef) -> OpenImage:
    pixels = read_picture(frame)
    # ONNX Runtime, whatever there is: PyTorch compiles for minutes before its first mask on a GPU.
    return OpenImage(models.load(choose_model(model, "onnxruntime")).backend, pixels)


def read_picture(frame: FrameRef) -> ImageArray:
    """Read a frame's picture, uint8 (H, W, 3) RGB.

    Raises:
        AutolabelError: it cannot be read, or it is not of the size that was labeled.

    """
    from tasks.frames.images import read_image

    pixels = read_image(frame)
    if pixels.shape[:2] != frame.size_hw:
        height, width = frame.size_hw
        raise AutolabelError(
            f"{frame.local_path} is {pixels.shape[1]}x{pixels.shape[0]} and was labeled as "
            f"{width}x{height}: label it again"
        )
    return pixels


# Parts and holes under this share of the largest part are crumbs and pinholes.
CRUMB_SHARE = 0.02
AROUND_CLICK_PX = 2


def tidied(
    mask: BoolArray,
    corner_xy_px: tuple[int, int],
    points: Sequence[tuple[float, float, bool]],
    box_xyxy_px: tuple[float, float, float, float] | None,
) -> BoolArray:
    """Return a mask without crumbs, pinholes and what is outside a dragged box.

    Args:
        mask: bool (height, width), cut out of the picture.
        corner_xy_px: where its first pixel is in the picture.
        points: x, y in pixels of the picture, and whether the object is there.
        box_xyxy_px: dragged; it grows until it holds the clicks on the object.

    """
    left, top = corner_xy_px
    on, off = np.zeros(mask.shape, np.bool_), np.zeros(mask.shape, np.bool_)
    for x, y, yes in points:
        row, column = int(y) - top + AROUND_CLICK_PX, int(x) - left + AROUND_CLICK_PX
        near = slice(max(row - 2 * AROUND_CLICK_PX, 0), max(row + 1, 0))
        (on if yes else off)[near, max(column - 2 * AROUND_CLICK_PX, 0) : max(column + 1, 0)] = True
    kept = mask.copy()
    if box_xyxy_px is not None:
        kept &= _within(mask.shape, corner_xy_px, points, box_xyxy_px)
    whole = RLEMask.from_array(kept)
    whole = large_parts(whole, least_of(whole, CRUMB_SHARE), RLEMask.from_array(on))
    least, clicks = int(CRUMB_SHARE * whole.area()), RLEMask.from_array(off)
    return np.asarray(without_holes(whole, least, clicks).to_array(), np.bool_)


def _within(
    shape: tuple[int, ...],
    corner_xy_px: tuple[int, int],
    points: Sequence[tuple[float, float, bool]],
    box_xyxy_px: tuple[float, float, float, float],
) -> BoolArray:
    """Return the box, grown until it holds the clicks on the object."""
    on = np.array([point[:2] for point in points if point[2]], np.float64).reshape(-1, 2)
    low = np.vstack([[box_xyxy_px[:2]], on - AROUND_CLICK_PX]).min(0) - corner_xy_px
    high = np.vstack([[box_xyxy_px[2:]], on + AROUND_CLICK_PX]).max(0) - corner_xy_px
    (x0, y0), (x1, y1) = np.floor(low).clip(0).astype(int), np.ceil(high).clip(0).astype(int)
    inside = np.zeros(shape, np.bool_)
    inside[y0:y1, x0:x1] = True
    return inside
