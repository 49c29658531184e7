"""What a rendered picture consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays

ImageArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

# COCO names where COCO has one; the order is the category order of written json files.
LABELS: tuple[str, ...] = (
    "person", "bicycle", "car", "motorcycle", "bus", "truck", "traffic light", "fire hydrant",
    "stop sign", "traffic sign",
)  # fmt: skip
# What the shapes of the "random" domain are called.
RANDOM_LABEL = "object"
# A rider and what he rides as one object; see `lab.scenes.riders`.
RIDER_LABEL = "rider"


@dataclass(frozen=True, eq=False)
class Instance:
    """One object: the pixels it owns after occlusion.

    Attributes:
        mask: bool (h, w), a crop of the image; no two instances of a scene share a pixel.
        origin_xy_px: left, top of the crop in the image.
        box_xyxy_px: float32 (4,), tight around the visible part: right and bottom are exclusive.
        label: one of `LABELS`, or `RANDOM_LABEL`.
        track_id: the same object has the same id in every frame and camera of a sequence.
        depth_m: distance along the camera's axis; in the "random" domain the paint order.
        visible_fraction: visible pixels over the pixels the whole object would have.
        area_px: visible pixels.
        rides_track_id: of a rider, what he sits on; else -1.

    """

    mask: BoolArray
    origin_xy_px: tuple[int, int]
    box_xyxy_px: FloatArray
    label: str
    track_id: int
    depth_m: float
    visible_fraction: float
    area_px: int
    rides_track_id: int = -1

    def __post_init__(self) -> None:
        freeze_arrays(self, mask="bool (h, w)", box_xyxy_px="float32 (4)")

    def full_mask(self, size_hw: tuple[int, int]) -> BoolArray:
        """Return the mask in the whole image: bool (H, W)."""
        full = np.zeros(size_hw, bool)
        x, y = self.origin_xy_px
        full[y : y + self.mask.shape[0], x : x + self.mask.shape[1]] = self.mask
        return full

    def rle(self, size_hw: tuple[int, int]) -> dict[str, Any]:
        """Return the mask as a COCO compressed run-length object with text counts."""
        from pycocotools import mask as coco_mask

        encoded = coco_mask.encode(np.asfortranarray(self.full_mask(size_hw), np.uint8))
        return {"size": list(size_hw), "counts": encoded["counts"].decode("ascii")}


@dataclass(frozen=True, eq=False)
class Scene:
    """One rendered image with its truth.

    Attributes:
        image: uint8 (H, W, 3) RGB.
        instances: objects with at least the minimum visible area, nearest last.
        dropped: objects that are in the picture but too small or too hidden to be asked for;
            a detector's loss should ignore them rather than call them background.

    """

    image: ImageArray
    instances: tuple[Instance, ...]
    dropped: tuple[Instance, ...] = ()

    def __post_init__(self) -> None:
        freeze_arrays(self, image="uint8 (H, W, 3)")

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width of the image."""
        return self.image.shape[0], self.image.shape[1]


@dataclass(frozen=True, eq=False)
class Frame:
    """One camera's picture at one moment of a rendered sequence."""

    camera: str
    index: int
    timestamp_ns: int
    scene: Scene
