"""What may be done to masks after the model: holes and speckles, and pixels that several claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sam2_core.postprocess import EMPTY
from sam2_core.rle import cancel_pairs, encode_toggles
from sam2_core.source_digest import source_digest
from sam2_core.types import Boxes, IntArray, Masks
from tasks.masks.crops import BoolArray, Segments, paint, segments_of
from tasks.masks.parts import without_small_parts

Overlap = Literal["keep", "score", "depth"]
_CODE = ("tasks.masks.rules", "tasks.masks.parts")


@dataclass(frozen=True)
class MaskRules:
    """How masks are tidied.

    Attributes:
        clean: holes of at most this share of a mask are filled, and pieces smaller than this share
            of its largest one removed; 0: none.
        overlap: whose a pixel is that several masks claim: `keep` leaves it to all, `score` gives
            it to the box with the higher score, `depth` to the one that reaches further down in the
            picture, which is nearer on a road. Of equal ones the first has it.

    """

    clean: float = 0.0
    overlap: Overlap = "keep"

    def as_parameters(self) -> dict[str, Any]:
        """Return what differs from the model's own masks, for the stamp."""
        clean = {"clean_masks": self.clean} if self.clean else {}
        chosen = clean | ({"overlap": self.overlap} if self.overlap != "keep" else {})
        return chosen | ({"mask_rules": source_digest(_CODE)} if chosen else {})

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
    return _owned(masks, segments, order)


def _cleaned(masks: Masks, segments: Segments, share: float) -> Masks:
    bounds = segments.bounds_xyxy_px()
    # A mask with one segment in each column that it spans has neither holes nor pieces.
    pieces = np.bincount(segments.mask, minlength=segments.count)
    rows = np.flatnonzero(pieces != bounds[:, 2] - bounds[:, 0])
    painted = paint(_chosen(segments, rows), bounds[rows])
    made = [_without_specks(one, share) for one in painted]
    changed = [i for i, (old, new) in enumerate(zip(painted, made, strict=True)) if old is not new]
    return _replaced(masks, rows[changed], bounds[rows[changed]], [made[i] for i in changed])


def _without_specks(mask: BoolArray, share: float) -> BoolArray:
    """Remove small pieces and fill small holes; the same object when there are none."""
    kept = without_small_parts(mask, share=share)
    least = int(share * np.count_nonzero(kept)) + 1
    around = np.pad(~kept, 1, constant_values=True)
    outside = np.zeros(around.shape, np.bool_)
    outside[0, 0] = True
    filled = ~without_small_parts(around, outside, least)[1:-1, 1:-1]
    return mask if np.array_equal(filled, mask) else np.ascontiguousarray(filled)


def _owned(masks: Masks, segments: Segments, order: IntArray) -> Masks:
    """Take from each mask the pixels that one before it in `order` claims as well."""
    bounds = segments.bounds_xyxy_px()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    low = np.maximum(bounds[:, None, :2], bounds[None, :, :2])
    high = np.minimum(bounds[:, None, 2:], bounds[None, :, 2:])
    near = (low < high).all(axis=2) & (place[:, None] > place[None])
    rivals: dict[int, list[int]] = {}
    for loser, winner in np.argwhere(near).tolist():
        rivals.setdefault(loser, []).append(winner)
    needed = sorted({*rivals, *(one for several in rivals.values() for one in several)})
    painted = dict(
        zip(needed, paint(_chosen(segments, np.array(needed, int)), bounds[needed]), strict=True)
    )
    rows, made = [], []
    for loser, winners in sorted(rivals.items()):
        left = painted[loser].copy()
        for winner in winners:
            _take(left, bounds[loser], painted[winner], bounds[winner])
        if not np.array_equal(left, painted[loser]):
            rows.append(loser)
            made.append(left)
    return _replaced(masks, np.array(rows, np.int64), bounds[rows], made)


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
    masks: Masks, rows: IntArray, windows_xyxy_px: IntArray, made: Sequence[BoolArray]
) -> Masks:
    """Put painted masks into the place of some of an image's."""
    if not len(rows):
        return masks
    strings, areas = _encoded(made, windows_xyxy_px, masks.size_hw)
    rle, area, reasons = list(masks.rle), masks.area_px.copy(), list(masks.reasons)
    for row, text, pixels in zip(rows.tolist(), strings, areas.tolist(), strict=True):
        rle[row], area[row] = text, pixels
        reasons[row] = reasons[row] if pixels else EMPTY
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
