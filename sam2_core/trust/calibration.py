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
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.images import open_image
from sam2_core.types import Boxes, FloatArray, ImageArray

# Both masks; only the first; only the second.
_BOTH, _FIRST, _SECOND = (70, 200, 90), (235, 70, 60), (70, 120, 240)
_STRENGTH = 0.55
_TILE_PX = 320


def draw_difference(
    pixels: ImageArray, first: bytes, second: bytes, box_xyxy_px: npt.NDArray[np.floating]
) -> ImageArray:
    """Return a crop around a box, as it is and with both masks: green, red only in the first one.

    Args:
        pixels: uint8 (H, W, 3) RGB.
        first: compressed run-length counts of the whole picture, such as an engine's.
        second: the same of the reference's mask; blue where only that is.
        box_xyxy_px: (4,).

    Returns:
        uint8 (T, 2 T, 3).

    """
    from PIL import Image
    from pycocotools import mask as coco_mask

    size = [pixels.shape[0], pixels.shape[1]]
    masks = [coco_mask.decode({"size": size, "counts": one}) > 0 for one in (first, second)]
    picture = pixels.astype(np.float32)
    for where, colour in (
        (masks[0] & masks[1], _BOTH),
        (masks[0] & ~masks[1], _FIRST),
        (masks[1] & ~masks[0], _SECOND),
    ):
        picture[where] = picture[where] * (1 - _STRENGTH) + np.array(colour) * _STRENGTH
    left, top, right, bottom = box_xyxy_px
    side = 1.3 * max(float(right - left), float(bottom - top), 24.0)
    x, y = float(left + right) / 2 - side / 2, float(top + bottom) / 2 - side / 2
    crop = (round(x), round(y), round(x + side), round(y + side))
    tiles = [
        np.asarray(
            Image.fromarray(one).crop(crop).resize((_TILE_PX, _TILE_PX), Image.Resampling.BICUBIC)
        )
        for one in (pixels, picture.astype(np.uint8))
    ]
    return np.hstack(tiles)


def write_difference(
    path: Path,
    pixels: ImageArray,
    first: bytes,
    second: bytes,
    box_xyxy_px: npt.NDArray[np.floating],
) -> None:
    """Write what `draw_difference` draws as a PNG."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw_difference(pixels, first, second, box_xyxy_px)).save(path)


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
