"""Images and boxes of the original frame into the model's square input.

The published preprocessing is a square resize (the aspect ratio is not kept), bilinear with
antialias, in float: not rounded to grey levels afterwards. The rounding would cost masks: mean IoU
0.989 instead of 0.998 and more against Meta's predictor. Pillow's `BILINEAR` on planes of floats is
that filter: it agrees with PyTorch's `interpolate(antialias=True)` to 1e-4 of a grey level, and
takes as long. ONNX Runtime's `Resize` with antialias is off by up to 15 levels, OpenCV's INTER_AREA
by 29 and INTER_LINEAR by 79.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import Arrays
from sam2_core.prompts import box_prompts, clip_boxes
from sam2_core.types import EncoderImage, FloatArray, ImageArray, IntArray, Prompts, SquareArray


def checked_image(image: Any) -> ImageArray:
    """Return an image as it is, uint8 (H, W, 3) with at least one pixel.

    Raises:
        ValueError: it is no such image.

    """
    array: npt.NDArray[Any] = image if isinstance(image, np.ndarray) else np.zeros(0)
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size:
        return array
    given = f"{array.dtype} {array.shape}" if array is image else type(image).__name__
    raise ValueError(
        f"expected an image, a uint8 array (height, width, 3) in RGB as open_image reads it, got "
        f"{given}"
    )


@dataclass(eq=False)
class StagedFrame(Arrays):
    """A decoded frame; in page-locked memory where `gpu` is set.

    Attributes:
        pixels: uint8 (H, W, 3) RGB; keeps its memory alive.
        gpu: whose page-locked memory that is; None: ordinary memory.
        on_device: the device's copy, made by the device's thread when it is first needed.

    """

    forms: ClassVar = {"pixels": "uint8 (H, W, 3)"}
    pixels: ImageArray
    gpu: Any = field(default=None, repr=False)
    on_device: Any = field(default=None, repr=False)

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def whole(self) -> View:
        """Return a view of all of it."""
        height, width = self.size_hw
        return View(self, (0, 0, width, height))


@dataclass(frozen=True, eq=False)
class View:
    """A part of a staged frame that is to become a square.

    Attributes:
        frame: the frame.
        region_xyxy_px: left, top, right, bottom, inside the frame.

    """

    frame: StagedFrame
    region_xyxy_px: tuple[int, int, int, int]

    def cut(self) -> ImageArray:
        """Return its pixels."""
        left, top, right, bottom = self.region_xyxy_px
        return self.frame.pixels[top:bottom, left:right]


@dataclass(frozen=True, eq=False)
class PreparedFrame(Arrays):
    """A frame ready for the device.

    Attributes:
        images_model: the whole frame, or V close-ups: float32 (S, S, 3) each, or views of a staged
            frame, which the device makes squares of.
        size_hw: of the original image.
        prompts: V valid prompts; their image index is ascending.
        rows: int64 (V,), the caller's row of each.
        reasons: N reasons, "" for a valid row.
        regions_xyxy_px: int64 (V, 4), what each close-up shows; None for the whole frame.
        boxes_xyxy_px: float32 (N, 4), as the caller gave them.

    """

    forms: ClassVar = {
        "rows": "int64 (V)",
        "reasons": "tuple (N)",
        "regions_xyxy_px": "int64 (V, 4)",
    }
    images_model: Sequence[EncoderImage]
    size_hw: tuple[int, int]
    prompts: Prompts
    rows: npt.NDArray[np.int64]
    reasons: tuple[str, ...]
    regions_xyxy_px: IntArray | None = None
    boxes_xyxy_px: FloatArray = field(default_factory=lambda: np.zeros((0, 4), np.float32))


def resize_square(image: ImageArray | SquareArray, image_size: int) -> SquareArray:
    """Resize an image to the model's square input, antialiased bilinear, without rounding.

    Args:
        image: uint8 (H, W, 3) RGB; or a square that this function made, which is returned.
        image_size: S, the model's input size.

    Returns:
        float32 (S, S, 3), 0..255; a view of planes, which lie one behind another.

    Raises:
        ValueError: the array is not an RGB image with at least one pixel.

    """
    if image.dtype == np.float32 and image.shape == (image_size, image_size, 3):
        return image.view(np.float32)
    checked_image(image)
    planes = np.empty((3, image_size, image_size), np.float32)
    if image.shape[:2] == (image_size, image_size):
        planes[:] = image.transpose(2, 0, 1)
    else:
        from PIL import Image

        size_wh = (image_size, image_size)
        for channel in range(3):
            plane = Image.fromarray(image[:, :, channel].astype(np.float32))
            planes[channel] = np.asarray(plane.resize(size_wh, Image.Resampling.BILINEAR))
    return planes.transpose(1, 2, 0)


def planes_of(images: Sequence[SquareArray]) -> SquareArray:
    """Return squares (S, S, 3) as a batch of planes, float32 (B, 3, S, S): the model's input."""
    return np.stack([np.asarray(image, np.float32).transpose(2, 0, 1) for image in images])


# Of the box's size along an axis, of its size along the other one, and pixels: at least so much of
# its surroundings on each side. The weights are trained with the same numbers.
OWN_MARGIN, OTHER_MARGIN, LEAST_MARGIN_PX = 0.5, 0.25, 8.0


def regions_xyxy_px(boxes_xyxy_px: FloatArray, size_hw: tuple[int, int]) -> IntArray:
    """Return the part of the image that the close-up of each box shows.

    Args:
        boxes_xyxy_px: (N, 4) finite boxes that share some area with the image.
        size_hw: (height, width) of the image.

    Returns:
        int64 (N, 4) left, top, right, bottom, inside the image.

    """
    size = np.array([size_hw[1], size_hw[0]], np.float64)
    corners = np.asarray(boxes_xyxy_px, np.float64).reshape(-1, 2, 2).clip(0, size)
    sides = corners[:, 1] - corners[:, 0]
    margin = np.maximum(OWN_MARGIN * sides, OTHER_MARGIN * sides[:, ::-1])
    margin = np.maximum(margin, LEAST_MARGIN_PX)
    low = np.floor(corners[:, 0] - margin).clip(0, size)
    high = np.ceil(corners[:, 1] + margin).clip(0, size)
    return np.concatenate([low, high], 1).astype(np.int64)


def prompted_frame(
    size_hw: tuple[int, int], xyxy_px: FloatArray, image_size: int, *, close_ups: bool
) -> PreparedFrame:
    """Prepare a frame's boxes; its images are still to be made.

    Args:
        size_hw: (H, W) of the frame.
        xyxy_px: float32 (N, 4) in the frame's pixels; may be anything.
        image_size: S, side of the whole frame, or of a close-up, as the model sees it.
        close_ups: show the surroundings of each valid box, not the whole frame.

    """
    prompts, rows, reasons = box_prompts(xyxy_px, size_hw, image_size)
    if not close_ups:
        return PreparedFrame((), size_hw, prompts, rows, reasons)
    boxes, _ = clip_boxes(xyxy_px[rows], size_hw)
    regions = regions_xyxy_px(boxes, size_hw)
    low, sides = regions[:, None, :2], regions[:, None, 2:] - regions[:, None, :2]
    points = prompts.points_model.copy()
    points[:, :2] = (boxes.reshape(-1, 2, 2) - low) * (image_size / sides)
    prompts = Prompts(points, prompts.labels, np.arange(len(rows)))
    return PreparedFrame((), size_hw, prompts, rows, reasons, regions)
