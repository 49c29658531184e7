"""Measure a model on images with ground truth: by boxes, jittered boxes or clicks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from sam2_core.batching import collect, slice_prompts
from sam2_core.images import open_image
from sam2_core.prompts import PointPrompts, point_prompts
from sam2_core.segmenter import Segmenter
from sam2_core.types import (
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    AutolabelError,
    Boxes,
    ImageArray,
    Masks,
)
from tasks.dataset.coco_truth import Truth, TruthImage
from tasks.evaluate.metrics import FailedImage, Scores

BoolArray = npt.NDArray[np.bool_]
# Segment Anything's noise on boxes: of a side, and at most so many pixels.
JITTER, MOST_JITTER_PX = 0.1, 20.0
_CHUNK = 8
Segment = Callable[[ImageArray, Boxes], Masks]
Detect = Callable[[ImageArray], Boxes]


def true_boxes(image: TruthImage) -> Boxes:
    """Make prompts of the annotated boxes."""
    scores = np.ones(len(image), np.float32)
    return Boxes(image.boxes_xyxy_px, scores, image.labels, source="truth")


def jittered_boxes(image: TruthImage, seed: int = 0) -> Boxes:
    """Make prompts of the annotated boxes, each corner off by up to 10% of the side (one sigma).

    The same picture and seed give the same boxes.
    """
    random = np.random.default_rng([seed, image.image_id])
    boxes = image.boxes_xyxy_px
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 1)
    sigma = np.tile(np.minimum(JITTER * sides, MOST_JITTER_PX), 2)
    moved = boxes + np.clip(random.normal(size=boxes.shape) * sigma, -2 * sigma, 2 * sigma)
    height, width = image.size_hw
    moved = np.clip(moved, 0, [width, height, width, height])
    kept = ((moved[:, 2:] - moved[:, :2]) > 1).all(1)
    moved = np.where(kept[:, None], moved, boxes).astype(np.float32)
    scores = np.ones(len(image), np.float32)
    return Boxes(moved, scores, image.labels, source="truth, jittered")


def next_click(truth: BoolArray, mask: BoolArray) -> tuple[float, float, int]:
    """Return the standard next click: x, y and label, in the middle of the largest error.

    Where most pixels in one piece are wrong, it is put where it is farthest from the piece's rim:
    positive on what is missing, negative on what is too much.
    """
    best = (0.0, 0.0, 0.0, POINT_POSITIVE)
    for error, label in ((truth & ~mask, POINT_POSITIVE), (mask & ~truth, POINT_NEGATIVE)):
        inside = np.pad(error.astype(np.uint8), 1)
        count, pieces, stats, _ = cv2.connectedComponentsWithStats(inside, connectivity=8)
        if count < 2:
            continue
        piece = 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))
        area = float(stats[piece, cv2.CC_STAT_AREA])
        if area > best[0]:
            depth = cv2.distanceTransform((pieces == piece).astype(np.uint8), cv2.DIST_L2, 5)
            y, x = np.unravel_index(int(depth.argmax()), depth.shape)
            best = (area, float(x) - 0.5, float(y) - 0.5, label)
    return best[1], best[2], best[3]


def clicked_masks(
    segmenter: Segmenter, pixels: ImageArray, truth: TruthImage, clicks: int
) -> Masks:
    """Segment every object of a picture by clicks, each put where the mask before was most wrong.

    Args:
        segmenter: for whole frames.
        pixels: uint8 (H, W, 3) RGB.
        truth: what the clicks are put on.
        clicks: how many for each object.

    """
    count = len(truth)
    nothing = np.zeros(truth.size_hw, bool)
    true = [_array(rle, truth.size_hw) for rle in truth.rle]
    masks: list[BoolArray] = [nothing] * count
    points = np.zeros((count, clicks, 2), np.float32)
    labels = np.full((count, clicks), POINT_PADDING, np.int32)
    prepared = segmenter.prepare(pixels, true_boxes(truth))
    features = segmenter.backend.encode(prepared.images_model)
    found: Masks | None = None
    logits = None
    for click in range(clicks):
        for row in range(count):
            x, y, label = next_click(true[row], masks[row])
            points[row, click], labels[row, click] = (x, y), label
        given = PointPrompts(points[:, : click + 1], labels[:, : click + 1], None, logits)
        prompts, rows, reasons = point_prompts(given, truth.size_hw, segmenter.image_size)
        parts = []
        for start in range(0, len(rows), _CHUNK):
            chosen = slice(start, start + _CHUNK)
            some = segmenter.backend.decode_later(features, slice_prompts(prompts, chosen))
            parts.append((np.arange(len(rows))[chosen], some))
        low_res = collect(parts, segmenter.image_size // 4)
        frame = type(prepared)((), truth.size_hw, prompts, rows, reasons)
        found = segmenter.finish(frame, low_res)
        logits = _kept(low_res.logits, rows, count, logits)
        masks = [_array(rle, truth.size_hw) for rle in found.rle]
    assert found is not None  # noqa: S101 - there is at least one click
    return found


def _kept(
    logits: Sequence[npt.NDArray[np.float32]] | npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    count: int,
    before: npt.NDArray[np.float32] | None,
) -> npt.NDArray[np.float32] | None:
    """Return the logits that the next click refines, (N, G, G); as SAM 2 clips them."""
    if not len(rows):
        return before
    grids = np.stack([np.asarray(one, np.float32) for one in logits])
    kept = np.zeros((count, *grids.shape[1:]), np.float32) if before is None else before.copy()
    kept[rows] = grids.clip(-32, 32)
    return kept


def _array(rle: bytes, size_hw: tuple[int, int]) -> BoolArray:
    return np.asarray(coco_mask.decode({"counts": rle, "size": list(size_hw)}), np.bool_)


def find_image(folder: Path, file_name: str) -> Path:
    """Where an image of the truth lies: by its path below the folder, else by its bare name."""
    root = folder.absolute()
    for candidate in (root / file_name, root / Path(file_name).name):
        below = Path(os.path.normpath(candidate)).is_relative_to(os.path.normpath(root))
        if below and candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{file_name} is not in {folder}")


def read_rgb(path: Path, size_hw: tuple[int, int]) -> ImageArray:
    """Read a picture, which must have the size that the truth says once EXIF has turned it."""
    image = open_image(path)
    if image.shape[:2] != size_hw:
        sizes = [f"{height}x{width}" for height, width in (image.shape[:2], size_hw)]
        raise ValueError(f"the image is {sizes[0]} as displayed, the truth says {sizes[1]} (h x w)")
    return image


def _shared(truth: Truth, folder: Path) -> dict[str, list[int]]:
    """Return the images of the truth that are of one file: its objects are spread over them.

    Returns:
        {file name: ids of all images of the same file}, where there are several.

    """
    ids: dict[Path, list[int]] = {}
    names: dict[Path, set[str]] = {}
    for image in truth.images:
        with contextlib.suppress(OSError, ValueError):
            path = find_image(folder, image.file_name).resolve()
            ids.setdefault(path, []).append(image.image_id)
            names.setdefault(path, set()).add(image.file_name)
    return {name: ids[path] for path in ids if len(ids[path]) > 1 for name in names[path]}


@dataclass(frozen=True)
class Asked:
    """How a model is asked for the masks of a picture.

    Attributes:
        segment: makes masks of boxes.
        boxes: makes prompts of what is annotated.
        detect: finds boxes instead, where given.
        clicked: makes a mask of every annotated object by clicks instead, where given.

    """

    segment: Segment
    boxes: Callable[[TruthImage], Boxes] = true_boxes
    detect: Detect | None = None
    clicked: Callable[[ImageArray, TruthImage], Masks] | None = None

    def masks(self, pixels: ImageArray, image: TruthImage) -> tuple[Boxes, Masks]:
        """Return the boxes that were prompted with, and their masks."""
        if self.clicked:
            return true_boxes(image), self.clicked(pixels, image)
        boxes = self.detect(pixels) if self.detect else self.boxes(image)
        return boxes, self.segment(pixels, boxes)


def evaluate(truth: Truth, folder: str | Path, asked: Asked) -> Iterator[Scores]:
    """Run a model over every image of the truth.

    Args:
        truth: what there is.
        folder: where the images lie.
        asked: the model, and what it is prompted with.

    Yields:
        The same growing `Scores` after each image, so that a caller can show progress.

    Raises:
        AutolabelError: when the folder does not exist or the truth holds no instance.

    """
    folder = Path(folder)
    if not folder.is_dir():
        raise AutolabelError(f"{folder}: no such folder; give the folder of the truth's images")
    if not truth.images:
        raise AutolabelError("the ground truth holds no image")
    if not any(len(image) or image.unreadable for image in truth.images):
        raise AutolabelError(
            "the ground truth holds no instance, so there is nothing to measure: its pictures are "
            "empty, or all that is annotated counts neither way (COCO's crowds, 255 in PNGs)"
        )
    scores = Scores(truth.categories)
    shared = _shared(truth, folder)
    for image in truth.images:
        try:
            if image.unreadable:
                raise ValueError(image.unreadable)
            if others := shared.get(image.file_name):
                which = " and ".join(map(str, others))
                raise ValueError(f"images {which} of the truth are of this one file")
            pixels = read_rgb(find_image(folder, image.file_name), image.size_hw)
            boxes, masks = asked.masks(pixels, image)
            scores.add(image, boxes, masks, by_row=asked.detect is None)
        except (OSError, ValueError, AutolabelError) as error:
            scores.failed.append(FailedImage(image.image_id, image.file_name, str(error)))
        yield scores
