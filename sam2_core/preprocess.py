"""Images and boxes of the original frame into the model's square input.

The published preprocessing is a square resize (the aspect ratio is not kept), bilinear with
antialias, in float: not rounded to grey levels afterwards. The rounding would cost masks: mean IoU
0.989 instead of 0.998 and more against Meta's predictor (see BENCHMARKS.md). Pillow's `BILINEAR` on
planes of floats is that filter: it agrees with PyTorch's `interpolate(antialias=True)` to 1e-4 of a
grey level and takes as long. ONNX Runtime's `Resize` with antialias is off by up to 15 levels,
OpenCV's INTER_AREA by 29 and INTER_LINEAR by 79.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_PADDING,
    EncoderImage,
    FloatArray,
    ImageArray,
    IntArray,
    Prompts,
    SquareArray,
)
from sam2_core.views import checked_image


@dataclass(frozen=True, eq=False)
class PreparedFrame:
    """A frame ready for the device.

    Attributes:
        images_model: the whole frame, or V close-ups: float32 (S, S, 3) each, or views of a staged
            frame, which the device makes squares of.
        size_hw: of the original image.
        prompts: V valid prompts; their image index is ascending.
        rows: int64 (V,), the caller's row of each.
        reasons: N reasons, "" for a valid row.
        regions_xyxy_px: int64 (V, 4), what each close-up shows; None for the whole frame.

    """

    images_model: Sequence[EncoderImage]
    size_hw: tuple[int, int]
    prompts: Prompts
    rows: npt.NDArray[np.int64]
    reasons: tuple[str, ...]
    regions_xyxy_px: IntArray | None = None

    def __post_init__(self) -> None:
        freeze_arrays(
            self, rows="int64 (V)", reasons="tuple (N)", regions_xyxy_px="int64 (V, 4)",
        )  # fmt: skip

    def without_images(self) -> PreparedFrame:
        """Return what `finish` needs: images that the device has seen are memory for nothing."""
        return replace(self, images_model=())


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
        square: SquareArray = image.view(np.float32)
        return square
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


@dataclass(frozen=True, eq=False)
class BoxPrompts:
    """The valid boxes of an image as prompts, and why the others are not.

    Attributes:
        rows: int64 (V,), the valid rows of the caller's boxes, ascending.
        clipped_xyxy_px: float32 (N, 4), boxes clipped to the image; rows of invalid ones are 0.
        points_model: float32 (V, 3, 2), corners and the padding point in model pixels.
        labels: int32 (V, 3): 2, 3, -1.
        reasons: N strings, "" for a valid box.

    """

    rows: npt.NDArray[np.int64]
    clipped_xyxy_px: FloatArray
    points_model: FloatArray
    labels: npt.NDArray[np.int32]
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        freeze_arrays(
            self, rows="int64 (V)", clipped_xyxy_px="float32 (N, 4)",
            points_model="float32 (V, 3, 2)", labels="int32 (V, 3)", reasons="tuple (N)",
        )  # fmt: skip


def box_prompts(xyxy_px: FloatArray, size_hw: tuple[int, int], image_size: int) -> BoxPrompts:
    """Turn boxes in original pixels into the published box prompt: two corners and a padding point.

    A box partly outside the image is clipped to it. Coordinates stay float32 all the way: half
    precision would lose half a pixel at 1024.

    Args:
        xyxy_px: float32 (N, 4) left, top, right, bottom in original pixels; may be anything.
        size_hw: (height, width) of the original image.
        image_size: S, the model's input size.

    """
    boxes = np.asarray(xyxy_px, np.float32).reshape(-1, 4)
    height, width = size_hw
    limits = np.array([width, height, width, height], np.float32)
    with np.errstate(invalid="ignore"):
        clipped = np.clip(boxes, 0, limits)
        finite = np.isfinite(boxes).all(1)
        inverted = ((boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1])) & finite
        no_area = ((boxes[:, 2] == boxes[:, 0]) | (boxes[:, 3] == boxes[:, 1])) & finite & ~inverted
        inside = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
    outside = finite & ~inverted & ~no_area & ~inside
    reasons = np.full(len(boxes), "", dtype=object)
    reasons[~finite] = "invalid box: a coordinate is not a finite number"
    reasons[inverted] = "invalid box: inverted (right < left or bottom < top)"
    reasons[no_area] = "invalid box: zero area"
    reasons[outside] = "invalid box: outside the image"
    valid = finite & inside & ~inverted & ~no_area
    clipped[~valid] = 0
    rows = np.flatnonzero(valid)
    points = np.zeros((len(rows), 3, 2), np.float32)
    scale = np.array([image_size / width, image_size / height], np.float32)
    points[:, :2] = clipped[rows].reshape(-1, 2, 2) * scale
    labels = np.tile(
        np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], np.int32), (len(rows), 1)
    )
    return BoxPrompts(rows, clipped, points, labels, tuple(reasons))
