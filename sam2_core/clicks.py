"""Clicks and boxes on an open image: what was encoded is kept, so that another click only decodes.

A model of close-ups looks at the surroundings of a prompt's box, grown until its clicks are inside,
and encodes anew only when that changes; a model of whole frames encodes the image once. A box grows
until it holds its positive clicks. A click that the model does not follow is held all the same
(`sam2_core.click_hold`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import Backend
from sam2_core.batching import gather, slice_prompts
from sam2_core.click_hold import hold_clicks
from sam2_core.postprocess import finish
from sam2_core.preprocess import (
    LEAST_MARGIN_PX,
    View,
    checked_image,
    regions_xyxy_px,
    resize_square,
)
from sam2_core.prompts import PointPrompts, point_prompts
from sam2_core.types import (
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    AutolabelError,
    EncoderImage,
    Features,
    FloatArray,
    ImageArray,
    IntArray,
    LowResMasks,
    Masks,
    Prompts,
)

NO_BOX = "no box: this model looks at the surroundings of one; drag a box around the object"
# Regions of an image whose features are kept: what somebody goes back and forth between.
KEPT_REGIONS = 4
# Close-ups of one call where there are many, as in `Segmenter` on a CPU.
TOGETHER = 32
AROUND_CLICK_PX = np.float32(2)


class OpenImage:
    """An image that somebody clicks on; any thread may ask.

    Args:
        backend: a loaded model.
        image: uint8 (H, W, 3) RGB.

    """

    def __init__(self, backend: Backend, image: ImageArray) -> None:
        checked_image(image)
        self.backend, self._image = backend, image
        self._staged = backend.stage(image)  # for a device that cuts and resizes by itself
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, ...], Features] = OrderedDict()

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width of the image."""
        return self._image.shape[0], self._image.shape[1]

    def segment(self, given: PointPrompts) -> Masks:
        """Make a mask of every prompt.

        Args:
            given: N prompts in the image's pixels. A model of close-ups needs a box with each, and
                refines no earlier masks.

        Returns:
            N rows; one that is no valid prompt is empty and says why.

        Raises:
            AutolabelError: earlier masks are given to a model of close-ups.

        """
        info = self.backend.info
        if info.close_ups and given.mask_logits is not None:
            raise AutolabelError(
                "earlier masks are prompts of whole frames, and this model was loaded for "
                "close-ups: load it with close_ups=False"
            )
        given = _grown(given)
        prompts, rows, reasons = point_prompts(given, self.size_hw, info.image_size)
        if info.close_ups and given.xyxy_px is None:
            reasons = tuple(reason or NO_BOX for reason in reasons)
            prompts, rows = _some(prompts, slice(0, 0)), rows[:0]
        around = self._surroundings(given, rows)
        plain = self._without_clicks(prompts)
        decoded = [
            (np.array([row]), self._decode(_some(prompts, slice(row, row + 1)), around[row]))
            for row in np.flatnonzero(~plain)
        ]
        boxes = np.flatnonzero(plain)
        for start in range(0, len(boxes), TOGETHER):
            some = boxes[start : start + TOGETHER]
            decoded.append((some, self._decode_boxes(prompts, some, around)))
        low_res = gather(decoded, info.image_size // 4)
        return finish(low_res, self.size_hw, rows, reasons, around if info.close_ups else None)

    def look_at(self, box_xyxy_px: FloatArray) -> None:
        """Encode what a click on this box would look at, float32 (4,), ahead of the click."""
        box = np.asarray(box_xyxy_px, np.float32).reshape(1, 4)
        nothing = PointPrompts(np.zeros((1, 0, 2), np.float32), np.zeros((1, 0), np.int32), box)
        _, rows, _ = point_prompts(nothing, self.size_hw, self.backend.info.image_size)
        for around in self._surroundings(nothing, rows):
            self._features(around)

    def _surroundings(self, given: PointPrompts, rows: IntArray) -> IntArray:
        """Return the close-ups of prompts, grown until they hold the clicks: int64 (V, 4) px.

        Of prompts without a box it is the whole image.
        """
        height, width = self.size_hw
        if given.xyxy_px is None:
            return np.tile(np.array([0, 0, width, height], np.int64), (len(rows), 1))
        size = np.array([width, height], np.float64)
        regions = regions_xyxy_px(given.xyxy_px[rows], self.size_hw)
        points = given.points_px[rows].astype(np.float64)
        real = (given.labels[rows] != POINT_PADDING)[..., None]
        low = np.where(real, points - LEAST_MARGIN_PX, np.inf).min(1, initial=np.inf)
        high = np.where(real, points + LEAST_MARGIN_PX, -np.inf).max(1, initial=-np.inf)
        low = np.minimum(regions[:, :2], np.floor(low).clip(0, size))
        high = np.maximum(regions[:, 2:], np.ceil(high).clip(0, size))
        return np.concatenate([low, high], 1).astype(np.int64)

    def _without_clicks(self, prompts: Prompts) -> npt.NDArray[np.bool_]:
        """Return which of many boxes have no clicks: they share calls, and are not kept."""
        kinds = np.isin(prompts.labels, (POINT_POSITIVE, POINT_NEGATIVE))
        clicked: npt.NDArray[np.bool_] = np.asarray(kinds.any(axis=1), np.bool_)
        if not self.backend.info.close_ups or (~clicked).sum() <= KEPT_REGIONS:
            return np.zeros(len(clicked), bool)
        return ~clicked

    def _decode_boxes(self, prompts: Prompts, rows: IntArray, around: IntArray) -> LowResMasks:
        """Decode boxes without clicks, each in its close-up, in one call."""
        size, regions = self.backend.info.image_size, around[rows]
        moved = _in_region(_some(prompts, rows), regions, self.size_hw, size)
        together = replace(moved, image_index=np.arange(len(rows), dtype=np.int64))
        views = [self._seen(tuple(region)) for region in regions.tolist()]
        return self.backend.decode(self.backend.encode(views), together)

    def _decode(self, prompt: Prompts, around: IntArray) -> LowResMasks:
        """Decode one prompt and hold its clicks."""
        info, size = self.backend.info, np.array([self.size_hw[1], self.size_hw[0]], np.float64)
        clicks = np.isin(prompt.labels[0], (POINT_POSITIVE, POINT_NEGATIVE))
        places_px = prompt.points_model[0, clicks] * (size / info.image_size)
        grid = info.image_size // 4
        first, last = np.zeros(2, np.int64), np.full(2, grid)
        if info.close_ups:
            prompt = _in_region(prompt, around[None], self.size_hw, info.image_size)
        else:  # clicks are held in the cells around them, in pixels of the image again
            first = np.floor(around[:2] * grid / size).astype(np.int64)
            last = np.ceil(around[2:] * grid / size).astype(np.int64)
        decoded = self.backend.decode(self._features(around), prompt)
        if not clicks.any():
            return decoded
        if not info.close_ups:
            edges = np.concatenate([first, last]) * np.tile(size, 2) / grid
            around = np.round(edges).astype(np.int64)
        left, top, right, bottom = around.tolist()
        logits = np.array(decoded.logits[0], np.float32)
        cells = np.s_[first[1] : last[1], first[0] : last[0]]
        logits[cells] = hold_clicks(
            logits[cells], self._image[top:bottom, left:right],
            (places_px - around[:2]) / (around[2:] - around[:2]),
            prompt.labels[0, clicks] == POINT_POSITIVE,
        )  # fmt: skip
        return replace(decoded, logits=logits[None])

    def _seen(self, region_xyxy_px: tuple[int, ...]) -> EncoderImage:
        """Return a part of the image as the model takes it."""
        left, top, right, bottom = region_xyxy_px
        if self._staged is not None:
            return View(self._staged, (left, top, right, bottom))
        size = self.backend.info.image_size
        return resize_square(self._image[top:bottom, left:right], size)

    def _features(self, around: IntArray) -> Features:
        """Return what the model has encoded of a close-up, or of the whole image."""
        whole = (0, 0, self.size_hw[1], self.size_hw[0])
        key = tuple(around.tolist()) if self.backend.info.close_ups else whole
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self.backend.encode([self._seen(key)])
                if len(self._kept) > KEPT_REGIONS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _grown(given: PointPrompts) -> PointPrompts:
    """Grow boxes until they hold their positive clicks, with a little around them."""
    if given.xyxy_px is None:
        return given
    inside = (given.labels == POINT_POSITIVE)[..., None]
    far = np.float32(np.inf)
    low = np.where(inside, given.points_px - AROUND_CLICK_PX, far).min(1, initial=far)
    high = np.where(inside, given.points_px + AROUND_CLICK_PX, -far).max(1, initial=-far)
    boxes = np.asarray(given.xyxy_px, np.float32)
    grown = np.concatenate([np.minimum(boxes[:, :2], low), np.maximum(boxes[:, 2:], high)], 1)
    return replace(given, xyxy_px=grown)


def _some(prompts: Prompts, rows: slice | IntArray) -> Prompts:
    """Return some prompts of one image, without padding beyond the one point that is part of it."""
    real = (prompts.labels[rows] != POINT_PADDING).sum(1)
    some = slice_prompts(prompts, rows, int(real.max(initial=0)) + 1)
    return replace(some, image_index=np.zeros(len(real), np.int64))


def _in_region(
    prompts: Prompts, regions_xyxy_px: IntArray, size_hw: tuple[int, int], image_size: int
) -> Prompts:
    """Move prompts from the square of the whole image to those of their regions (P, 4) of it."""
    size = np.array([size_hw[1], size_hw[0]], np.float64)
    points_px = prompts.points_model * (size / image_size)
    first, last = regions_xyxy_px[:, None, :2], regions_xyxy_px[:, None, 2:]
    points = (points_px - first) * (image_size / (last - first))
    points = np.where((prompts.labels != POINT_PADDING)[..., None], points, 0)
    return replace(prompts, points_model=points.astype(np.float32))
