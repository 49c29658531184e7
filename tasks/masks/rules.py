"""What may be done to masks after the model: holes and speckles, and pixels that several claim."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sam2_core.postprocess import EMPTY, cancel_pairs, encode_toggles
from sam2_core.types import Boxes, IntArray, Masks
from tasks.masks.crops import BoolArray, Segments, paint, segments_of

Overlap = Literal["keep", "score", "depth"]
# Of a mask that keeps less than this share of itself only shreds are left, along its border.
_LEAST_KEPT = 0.1
TAKEN = "nearly all of the mask belongs to other labels"


@dataclass(frozen=True)
class MaskRules:
    """How masks are tidied.

    Attributes:
        clean: holes of at most this share of a mask are filled, and pieces smaller than this share
            of its largest one removed; 0: none.
        overlap: whose a pixel is that several masks claim: `keep` leaves it to all, `score` gives
            it to the box with the higher score, `depth` to the one that reaches further down in the
            picture, which is nearer on a road. Of equal ones the first has it. A mask that would
            keep less than a tenth of itself is none, with the reason; it takes no pixel.

    """

    clean: float = 0.0
    overlap: Overlap = "keep"

    def as_parameters(self) -> dict[str, Any]:
        """Return what differs from the model's own masks, for the stamp."""
        clean = {"clean_masks": self.clean} if self.clean else {}
        return clean | ({"overlap": self.overlap} if self.overlap != "keep" else {})

    def __bool__(self) -> bool:
        """Whether masks are changed at all."""
        return self != MaskRules()


def tidied(masks: Masks, boxes: Boxes, rules: MaskRules) -> Masks:
    """Apply rules to the N masks of an image; only masks that change are looked at as pixels."""
    if not len(masks) or not rules:
        return masks
    segments = segments_of(masks.rle, masks.size_hw)
    if rules.clean:
        masks = _cleaned(masks, segments, rules.clean)
    if rules.overlap == "keep":
        return masks
    segments = segments_of(masks.rle, masks.size_hw) if rules.clean else segments
    rank = boxes.scores if rules.overlap == "score" else np.nan_to_num(boxes.xyxy_px[:, 3])
    order = np.lexsort((np.arange(len(masks)), -rank.astype(np.float64)))
    masks = _owned(masks, segments, order)
    if rules.clean:  # the small pieces that another mask has cut off; its pixels stay its own
        segments, rows = segments_of(masks.rle, masks.size_hw), np.flatnonzero(masks.area_px)
        return _changed(masks, segments, rows, partial(without_small_parts, share=rules.clean))
    return masks


def _cleaned(masks: Masks, segments: Segments, share: float) -> Masks:
    bounds = segments.bounds_xyxy_px()
    # A mask with one segment in each column that it spans has neither holes nor pieces.
    pieces = np.bincount(segments.mask, minlength=segments.count)
    rows = np.flatnonzero(pieces != bounds[:, 2] - bounds[:, 0])
    return _changed(masks, segments, rows, partial(_without_specks, share=share))


def _changed(
    masks: Masks, segments: Segments, rows: IntArray, change: Callable[[BoolArray], BoolArray]
) -> Masks:
    """Change some masks as pixels; those that stay as they are keep their runs."""
    bounds = segments.bounds_xyxy_px()[rows]
    painted = paint(_chosen(segments, rows), bounds)
    made = [change(one) for one in painted]
    changed = [
        i for i, (old, new) in enumerate(zip(painted, made, strict=True))
        if not np.array_equal(old, new)
    ]  # fmt: skip
    return _replaced(masks, rows[changed], bounds[changed], [made[i] for i in changed])


def _without_specks(mask: BoolArray, share: float) -> BoolArray:
    """Remove small pieces and fill small holes."""
    kept = without_small_parts(mask, share=share)
    least = int(share * np.count_nonzero(kept)) + 1
    around = np.pad(~kept, 1, constant_values=True)
    outside = np.zeros(around.shape, np.bool_)
    outside[0, 0] = True
    filled = ~without_small_parts(around, outside, least)[1:-1, 1:-1]
    return np.ascontiguousarray(filled)


def _owned(masks: Masks, segments: Segments, order: IntArray) -> Masks:
    """Take from each mask the pixels that one before it in `order` claims as well."""
    bounds = segments.bounds_xyxy_px()
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    low = np.maximum(bounds[:, None, :2], bounds[None, :, :2])
    high = np.minimum(bounds[:, None, 2:], bounds[None, :, 2:])
    near = (low < high).all(axis=2) & (position[:, None] > position[None])
    rivals: dict[int, list[int]] = {}
    for loser, winner in np.argwhere(near).tolist():
        rivals.setdefault(loser, []).append(winner)
    needed = sorted({*rivals, *(one for several in rivals.values() for one in several)})
    painted = dict(
        zip(needed, paint(_chosen(segments, np.array(needed, int)), bounds[needed]), strict=True)
    )
    made: dict[int, BoolArray] = {}
    taken: set[int] = set()
    for loser in sorted(rivals, key=lambda one: int(position[one])):
        left, whole = painted[loser].copy(), np.count_nonzero(painted[loser])
        for winner in rivals[loser]:
            if winner not in taken:
                _take(left, bounds[loser], painted[winner], bounds[winner])
        if np.count_nonzero(left) < _LEAST_KEPT * whole:
            left[:] = False
            taken.add(loser)
        if not np.array_equal(left, painted[loser]):
            made[loser] = left
    rows = np.array(sorted(made), np.int64)
    return _replaced(masks, rows, bounds[rows], [made[row] for row in rows.tolist()], TAKEN)


def _take(
    mask: BoolArray, at: IntArray, other: BoolArray, other_at: IntArray
) -> None:  # fmt: skip
    """Remove from a painted mask the pixels of another one."""
    left, top = np.maximum(at[:2], other_at[:2])
    right, bottom = np.minimum(at[2:], other_at[2:])
    part = other[top - other_at[1] : bottom - other_at[1], left - other_at[0] : right - other_at[0]]
    mask[top - at[1] : bottom - at[1], left - at[0] : right - at[0]] &= ~part


def _chosen(segments: Segments, rows: IntArray) -> Segments:
    """Return the segments of some masks, numbered anew in ascending order of rows."""
    number = np.full(segments.count, -1)
    number[rows] = np.arange(len(rows))
    kept = np.flatnonzero(number[segments.mask] >= 0)
    return Segments(
        number[segments.mask[kept]], segments.column[kept], segments.top[kept],
        segments.bottom[kept], len(rows), segments.size_hw,
    )  # fmt: skip


def _replaced(
    masks: Masks,
    rows: IntArray,
    windows_xyxy_px: IntArray,
    made: Sequence[BoolArray],
    why_empty: str = EMPTY,
) -> Masks:
    """Put painted masks in place of some of an image's; an empty one has its reason."""
    if not len(rows):
        return masks
    strings, areas = _encoded(made, windows_xyxy_px, masks.size_hw)
    rle, area, reasons = list(masks.rle), masks.area_px.copy(), list(masks.reasons)
    for row, text, pixels in zip(rows.tolist(), strings, areas.tolist(), strict=True):
        rle[row], area[row] = text, pixels
        reasons[row] = reasons[row] if pixels else reasons[row] or why_empty
    return replace(masks, rle=tuple(rle), area_px=area, reasons=tuple(reasons))


def _encoded(
    made: Sequence[BoolArray], windows_xyxy_px: IntArray, size_hw: tuple[int, int]
) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Encode painted masks as runs of the whole image."""
    parts, counts = [], []
    for mask, (left, top, _, _) in zip(made, windows_xyxy_px.tolist(), strict=True):
        edges = np.diff(np.pad(mask.view(np.int8), ((1, 1), (0, 0))), axis=0).T
        column, row = np.nonzero(edges)
        toggles = cancel_pairs((column + left) * size_hw[0] + row + top)
        toggles = toggles[toggles < size_hw[0] * size_hw[1]]
        parts.append(toggles)
        counts.append(len(toggles))
    return encode_toggles(np.concatenate(parts), np.array(counts, np.int64), size_hw)


def without_small_parts(
    mask: BoolArray, wanted: BoolArray | None = None, least: int | None = None, share: float = 0.0
) -> BoolArray:
    """Drop the small ones of a mask's connected parts; diagonal neighbours are of one part.

    Args:
        mask: bool (height, width).
        wanted: bool (height, width); a part with one of these pixels stays.
        least: pixels of a part that stays; by default a share of the largest one.
        share: of the largest part.

    """
    import cv2

    _, parts, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    areas: npt.NDArray[np.int32] = stats[:, cv2.CC_STAT_AREA]
    if least is None:
        least = int(share * areas[1:].max(initial=0))
    stays = areas >= least
    if wanted is not None:
        stays[parts[wanted & mask]] = True
    stays[0] = False
    return stays[parts]
