"""Measure a model on images with ground truth."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sam2_core.types import AutolabelError, Boxes, ImageArray, Masks
from tasks.dataset.coco_truth import Truth, TruthImage
from tasks.evaluate.metrics import FailedImage, Scores
from tasks.evaluate.prompting import true_boxes

Segment = Callable[[ImageArray, Boxes], Masks]
Detect = Callable[[ImageArray], Boxes]


def find_image(folder: Path, file_name: str) -> Path:
    """Where an image of the truth lies: by its path below the folder, else by its bare name."""
    root = folder.absolute()
    for candidate in (root / file_name, root / Path(file_name).name):
        below = Path(os.path.normpath(candidate)).is_relative_to(os.path.normpath(root))
        if below and candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{file_name} is not in {folder}")


def read_rgb(path: Path, size_hw: tuple[int, int]) -> ImageArray:
    """Decode an image, which must have the size that the truth says."""
    import cv2

    data = np.frombuffer(path.read_bytes(), np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB) if data.size else None
    if image is None:
        raise ValueError("not an image that can be decoded")
    if image.shape[:2] != size_hw:
        found = image.shape[:2]
        turned = " (its EXIF tag turns it)" if _is_turned(path) else ""
        sizes = [f"{height}x{width}" for height, width in (found, size_hw)]
        raise ValueError(f"the image is {sizes[0]}{turned}, the truth says {sizes[1]} (h x w)")
    return np.asarray(image, np.uint8)


def _is_turned(path: Path) -> bool:
    """Whether an image's EXIF tag turns it by a quarter, so that height and width change places."""
    from PIL import Image
    from PIL.ExifTags import Base

    with contextlib.suppress(OSError, ValueError, SyntaxError), Image.open(path) as image:
        return image.getexif().get(Base.Orientation) in {5, 6, 7, 8}
    return False


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
