"""What engines are held against PyTorch with: pictures and the boxes in them.

Two rendered streets come with the package. They are larger than any model's input, so that a wrong
resize shows, and hold objects of every size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.images import open_image
from sam2_core.types import Boxes, FloatArray, ImageArray

_BUNDLED = Path(__file__).parent / "streets"


@dataclass(frozen=True, eq=False)
class CalibrationImage:
    """A picture and its boxes.

    Attributes:
        name: what to call it.
        pixels: uint8 (H, W, 3) RGB.
        boxes_xyxy_px: float32 (N, 4), all valid.
        digest: sha256 of the file, or of the pixels where there is none; and of the boxes.

    """

    name: str
    pixels: ImageArray
    boxes_xyxy_px: FloatArray
    digest: str

    def __post_init__(self) -> None:
        freeze_arrays(self, pixels="uint8 (H, W, 3)", boxes_xyxy_px="float32 (N, 4)")

    @staticmethod
    def of(
        name: str, pixels: ImageArray, boxes_xyxy_px: FloatArray, data: bytes | None = None
    ) -> CalibrationImage:
        """Make one; `data` is the file's content where there is a file."""
        boxes = np.ascontiguousarray(boxes_xyxy_px, np.float32).reshape(-1, 4)
        total = hashlib.sha256(pixels.tobytes() if data is None else data)
        total.update(boxes.tobytes())
        return CalibrationImage(name, pixels, boxes, total.hexdigest())

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def boxes(self) -> Boxes:
        """The boxes as a segmenter takes them."""
        count = len(self.boxes_xyxy_px)
        return Boxes(
            self.boxes_xyxy_px,
            np.ones(count, np.float32),
            ("object",) * count,
            source="calibration",
        )


@dataclass(frozen=True, eq=False)
class Calibration:
    """Pictures in order."""

    images: tuple[CalibrationImage, ...]

    @property
    def digest(self) -> str:
        """What tells this set from any other."""
        return hashlib.sha256("\n".join(one.digest for one in self.images).encode()).hexdigest()

    @property
    def boxes(self) -> int:
        """How many boxes there are."""
        return sum(len(one.boxes_xyxy_px) for one in self.images)

    def with_more(self, images: Iterable[CalibrationImage]) -> Calibration:
        """Return these pictures and more."""
        return Calibration((*self.images, *images))


def bundled_calibration() -> Calibration:
    """Return the pictures that come with the package."""
    boxes = json.loads((_BUNDLED / "boxes.json").read_text())
    images = []
    for name, rows in sorted(boxes.items()):
        path = _BUNDLED / name
        xyxy = np.array(rows, np.float32)
        images.append(CalibrationImage.of(name, open_image(path), xyxy, path.read_bytes()))
    return Calibration(tuple(images))
