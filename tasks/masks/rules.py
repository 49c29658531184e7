"""What may be done to masks after the model: holes and speckles, and pixels that several claim."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from rlemasklib import RLEMask

from sam2_core.types import Boxes, Masks
from tasks.masks.crops import masks_of

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
    """Apply rules to the N masks of an image."""
    if not len(masks) or not rules:
        return masks
    found = masks_of(masks.rle, masks.size_hw)
    made = [_without_specks(mask, rules.clean) for mask in found] if rules.clean else found
    if rules.overlap != "keep":
        rank = boxes.scores if rules.overlap == "score" else np.nan_to_num(boxes.xyxy_px[:, 3])
        order = np.lexsort((np.arange(len(masks)), -rank.astype(np.float64)))
        made = _owned(made, order.tolist())
        if rules.clean:  # the small pieces that another mask has cut off; its pixels stay its own
            made = [large_parts(mask, least_of(mask, rules.clean)) for mask in made]
    area_px = np.array([mask.area() for mask in made], np.int64)
    reasons = [
        why or (TAKEN if lost else "")
        for why, lost in zip(masks.reasons, (area_px == 0) & (masks.area_px > 0), strict=True)
    ]
    rle = tuple(mask.to_dict()["counts"] for mask in made)
    return replace(masks, rle=rle, area_px=area_px, reasons=tuple(reasons))


def least_of(mask: RLEMask, share: float) -> int:
    """Return how many pixels this share of a mask's largest part has; 0 for none."""
    parts = mask.connected_component_stats(connectivity=8)
    return int(share * parts[0].max()) if parts else 0


def _without_specks(mask: RLEMask, share: float) -> RLEMask:
    """Remove small pieces and fill small holes."""
    kept = large_parts(mask, least_of(mask, share))
    return without_holes(kept, int(share * kept.area()) + 1)


def _owned(masks: Sequence[RLEMask], order: Iterable[int]) -> list[RLEMask]:
    """Take from each mask the pixels that one before it in `order` claims as well."""
    made = list(masks)
    claimed = RLEMask.zeros(masks[0].shape)
    for row in order:
        left = masks[row] - claimed
        if left.area() < _LEAST_KEPT * masks[row].area():
            left = RLEMask.zeros(left.shape)
        else:
            claimed = claimed | masks[row]
        made[row] = left
    return made


def large_parts(mask: RLEMask, least: int, wanted: RLEMask | None = None) -> RLEMask:
    """Remove parts of a mask, also joined by corners, that have fewer pixels.

    Args:
        mask: of any size.
        least: pixels of a part that stays.
        wanted: of the same size; a part with one of these pixels stays.

    """
    if wanted is None:
        return mask.remove_small_components(least, connectivity=8)
    parts = mask.connected_components(connectivity=8)
    kept = [part for part in parts if part.area() >= least or (part & wanted).any()]
    return RLEMask.union([RLEMask.zeros(mask.shape), *kept])


def without_holes(mask: RLEMask, least: int, wanted: RLEMask | None = None) -> RLEMask:
    """Fill holes of a mask that have fewer pixels, and none that is wanted; as `large_parts`."""
    height, width = mask.shape
    around = ~mask.pad(1, 1, 1, 1)  # what is outside of all is no hole
    outside = RLEMask.from_bbox([0, 0, 1, 1], imshape=around.shape)
    kept = outside if wanted is None else outside | wanted.pad(1, 1, 1, 1)
    filled = ~large_parts(around, least, kept)
    return filled.crop(np.array([1, 1, width, height]))
