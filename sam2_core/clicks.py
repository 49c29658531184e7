"""Clicks and boxes on an open image: what was encoded is kept, so that another click only decodes.

A model of close-ups looks at the surroundings of a prompt's box, grown until its clicks are inside,
and encodes anew only when that changes; a model of whole frames encodes the image once. A box grows
until it holds its positive clicks.

A click that the model does not follow is held all the same (`hold_clicks`). A model that was
trained with few clicks, as the bundled one, often leaves its mask as it was. Then the logits are
changed around those clicks: by a field that has the needed value at the click, is zero at the
clicks that were followed, and spreads from cell to cell the better the more alike their colours are
and the less the model sees an edge between them (random walks with a prior, as in Grady, PAMI
2006). Where no click is missed nothing changes.
"""

import base64
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import Backend
from sam2_core.postprocess import finish
from sam2_core.preprocess import (
    LEAST_MARGIN_PX,
    View,
    checked_image,
    regions_xyxy_px,
    resize_square,
)
from sam2_core.prompts import PointPrompts, point_prompts
from sam2_core.segmenter import Segmenter
from sam2_core.types import (
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    AutolabelError,
    Boxes,
    EncoderImage,
    Features,
    FloatArray,
    ImageArray,
    IntArray,
    LowResMasks,
    Masks,
    Prompts,
)

# Side of the grid on which the field is computed.
SIDE = 64
# How much a cell keeps to what the model said, beside 1 for each neighbour that is just alike.
_PRIOR = 0.02
# Differences of colour (CIE Lab) and of logits at which neighbours have little in common.
_COLOUR, _EDGE = 20.0, 0.25
# Logits are clipped at the typical one, which is 1 here; a click wants this much on its side.
_WANTED = 0.12
_LEAST_WEIGHT, _PINNED = 1e-3, 1e3
# Of the distance to where the mask changes; colours (CIE Lab) that count as the click's.
_REACH, _ALIKE = 0.8, 20.0
_FOUR = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
Grid = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def hold_clicks(
    logits: FloatArray,
    region: ImageArray,
    clicks_rel: npt.NDArray[np.float64],
    positive: npt.NDArray[np.bool_],
) -> FloatArray:
    """Return logits that have every click on its side of 0.

    Args:
        logits: float32 (h, w), the mask's over a region of the image.
        region: uint8 (H, W, 3) RGB, the pixels of that region.
        clicks_rel: (K, 2) x, y as shares of the region.
        positive: bool (K,).

    Returns:
        The same array where every click is followed; else float32 (h, w) in another unit, which
        matters to nothing but its sign.

    """
    size = (SIDE, SIDE)
    typical = float(np.median(np.abs(logits))) or 1.0
    prior = cv2.resize(logits / typical, size, interpolation=cv2.INTER_LINEAR).clip(-1, 1)
    # A pixel is a mean of the four cells around it: all of them are to be on the click's side.
    corner = np.floor(clicks_rel * SIDE - 0.5).astype(np.int64)[:, None] + _FOUR
    corner = corner.clip(0, SIDE - 1)
    at = corner[..., 1] * SIDE + corner[..., 0]
    sign = np.where(positive, 1.0, -1.0)
    missed = (prior.ravel()[at] * sign[:, None]).min(1) < 0
    if not missed.any() or not np.isfinite(prior).all():
        return logits
    seen = cv2.resize(region, size, interpolation=cv2.INTER_AREA)
    colours = cv2.cvtColor(seen, cv2.COLOR_RGB2LAB).astype(np.float64)
    flat = prior.ravel()
    pinned, needed = np.zeros(flat.shape, np.bool_), np.zeros(flat.shape)
    for click in np.flatnonzero(missed):
        alike = _around(prior * sign[click], colours, clicks_rel[click] * SIDE)
        pinned |= alike
        needed[alike] = sign[click] * (_WANTED - flat[alike] * sign[click]).clip(0)
    for click in np.arange(len(at)):  # the clicks themselves come last: no other one outvotes them
        pinned[at[click]] = True
        lacking = (_WANTED - flat[at[click]] * sign[click]).clip(0)
        needed[at[click]] = sign[click] * lacking * missed[click]
    field = _spread(prior.astype(np.float64), colours, pinned, needed)
    height, width = logits.shape
    change = cv2.resize(field.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    scaled = logits / np.float32(typical)
    held = np.where(np.abs(change) > 1e-3, scaled.clip(-1, 1) + change, scaled)
    return np.asarray(held, np.float32)


def _around(agreeing: Grid, colours: Grid, click: Grid) -> npt.NDArray[np.bool_]:
    """Find what a missed click is also about: bool (SIDE * SIDE,).

    Who clicks far from where the mask changes means a large part. So: the cells nearer than most of
    that distance whose colour is the click's.

    Args:
        agreeing: prior logits, above 0 where the mask is as the click wants it.
        colours: (SIDE, SIDE, 3).
        click: x, y in cells.

    """
    wrong = np.pad((agreeing < 0).astype(np.uint8), 1)  # the region's border is a change, too
    x, y = (int(value) for value in click.clip(0, SIDE - 1))
    reach = float(cv2.distanceTransform(wrong, cv2.DIST_L2, 3)[y + 1, x + 1]) * _REACH
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    near = np.hypot(columns - click[0], rows - click[1]) <= reach
    alike = near & (np.linalg.norm(colours - colours[y, x], axis=-1) < _ALIKE) & (agreeing < 0)
    _, parts = cv2.connectedComponents(alike.astype(np.uint8), connectivity=4)
    return np.asarray((alike & (parts == parts[y, x])).reshape(-1), np.bool_)


def _spread(prior: Grid, colours: Grid, pinned: npt.NDArray[np.bool_], needed: Grid) -> Grid:
    """Solve for the field, (SIDE, SIDE): a weighted mean of each cell's neighbours and the pins."""
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import spsolve

    cells = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    before = np.concatenate([cells[:, :-1].ravel(), cells[:-1].ravel()])
    behind = np.concatenate([cells[:, 1:].ravel(), cells[1:].ravel()])
    weights = np.concatenate([_likeness(prior, colours, axis).ravel() for axis in (1, 0)])
    one_way = coo_array((weights, (before, behind)), shape=(cells.size, cells.size))
    links = (one_way + one_way.T).tocsc()
    diagonal = links.sum(0) + _PRIOR + _PINNED * pinned
    field = spsolve(diags_array(diagonal, format="csc") - links, _PINNED * needed)
    return np.asarray(field, np.float64).reshape(SIDE, SIDE)


def _likeness(prior: Grid, colours: Grid, axis: int) -> Grid:
    """Weigh each pair of neighbours along an axis."""
    apart = np.linalg.norm(np.diff(colours, axis=axis), axis=-1) / _COLOUR
    apart += np.abs(np.diff(prior, axis=axis)) / _EDGE
    return np.exp(-apart) + _LEAST_WEIGHT


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

    Raises:
        ValueError: it is no such image.

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
        plain = (given.labels == POINT_PADDING).all(1)
        if info.close_ups and given.xyxy_px is not None and plain.sum() > KEPT_REGIONS:
            return self._many(given, given.xyxy_px[plain], plain)
        given = _grown(given)
        prompts, rows, reasons = point_prompts(given, self.size_hw, info.image_size)
        if info.close_ups and given.xyxy_px is None:
            reasons = tuple(reason or NO_BOX for reason in reasons)
            prompts, rows = _some(prompts, slice(0, 0)), rows[:0]
        around = self._surroundings(given, rows)
        decoded = [
            self._decode(_some(prompts, slice(row, row + 1)), around[row])
            for row in range(len(prompts))
        ]
        low_res = LowResMasks.joined(decoded)
        return finish(low_res, self.size_hw, rows, reasons, around if info.close_ups else None)

    def _many(self, given: PointPrompts, xyxy_px: FloatArray, plain: BoolArray) -> Masks:
        """Segment boxes without clicks as labeling does: they share calls, and are not kept."""
        boxes = Boxes(xyxy_px, np.ones(len(xyxy_px), np.float32), ("object",) * len(xyxy_px))
        segmenter, clicked = Segmenter(self.backend), np.flatnonzero(~plain)
        frame = segmenter.prepare(self._staged or self._image, boxes)
        masks = [segmenter.finish(frame, *segmenter.start([frame]))]
        if len(clicked):
            masks.append(self.segment(given.chosen(clicked)))
        order = np.argsort(np.concatenate([np.flatnonzero(plain), clicked]))
        return Masks.joined(masks).chosen(order.tolist())

    def look_at(self, box_xyxy_px: FloatArray) -> None:
        """Encode what a click on this box would look at, float32 (4,), ahead of the click."""
        box = PointPrompts.of([box_xyxy_px])
        _, rows, _ = point_prompts(box, self.size_hw, self.backend.info.image_size)
        for around in self._surroundings(box, rows):
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


def _some(prompts: Prompts, rows: slice) -> Prompts:
    """Return some prompts of one image, without padding beyond the one point that is part of it."""
    real = (prompts.labels[rows] != POINT_PADDING).sum(1)
    some = prompts.chosen(rows).first_points(int(real.max(initial=0)) + 1)
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


BGRA = tuple[int, int, int, int]
MADE: BGRA = (248, 189, 56, 110)


def drawn(mask: npt.NDArray[np.bool_], left: int, top: int, colour: BGRA = MADE) -> dict[str, Any]:
    """Return a mask as a page draws it: its place in pixels, and a PNG with an opaque rim.

    Args:
        mask: bool (height, width), cut out of the image.
        left: of the cut.
        top: of the cut.
        colour: blue, green, red, and the opacity inside the rim; 0 to 255.

    """
    height, width = mask.shape
    place = {"x": left, "y": top, "width": width, "height": height}
    if not mask.any():
        return {**place, "width": 0}
    inside = cv2.erode(np.pad(mask, 1).astype(np.uint8), np.ones((3, 3), np.uint8))[1:-1, 1:-1]
    *bgr, alpha = colour
    pixels = np.zeros((height, width, 4), np.uint8)
    pixels[mask] = (*bgr, 255)
    pixels[inside > 0, 3] = alpha
    png = base64.b64encode(cv2.imencode(".png", pixels)[1].tobytes()).decode()
    return {**place, "href": f"data:image/png;base64,{png}"}
