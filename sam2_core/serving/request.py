"""Tensors of a Triton request, checked beyond their types and ranks.

Triton itself refuses unknown tensors and other types or ranks than the configuration's.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from sam2_core.arrays import read_only
from sam2_core.prompts import PointPrompts
from sam2_core.serving.contract import MOST_PIXELS, MOST_POINTS, MOST_PROMPTS, text_in
from sam2_core.types import AutolabelError, Boxes, ImageArray

# Returns a tensor of the request, None where it has none of that name.
Tensors = Callable[[str], np.ndarray[Any, Any] | None]


class RequestTensors:
    """The tensors of one request, without their first dimension.

    Args:
        tensors: returns a tensor by its name.

    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def _tensor(self, name: str) -> np.ndarray[Any, Any] | None:
        found = self._tensors(name)
        if found is None:
            return None
        if found.ndim < 2 or found.shape[0] != 1:
            raise AutolabelError(
                f"{name} is {found.shape}: the first dimension must be 1, a request is about one "
                "image (the server batches requests by itself)"
            )
        inner: np.ndarray[Any, Any] = found[0]
        return inner

    def text(self, name: str) -> str | None:
        """Return a text."""
        found = self._tensor(name)
        if found is None:
            return None
        return text_in(found)

    def image(self) -> ImageArray | None:
        """Return the image, uint8 (H, W, 3), of the tensor `image` or decoded from `jpeg`."""
        pixels, encoded = self._tensor("image"), self._tensor("jpeg")
        if pixels is not None and encoded is not None:
            raise AutolabelError("give either image or jpeg, not both")
        if encoded is not None:
            return decoded(encoded.tobytes())
        if pixels is None:
            return None
        if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise AutolabelError(
                f"image is {(1, *pixels.shape)}: expected uint8 (1, height, width, 3), RGB"
            )
        _refuse_large(pixels.shape[1], pixels.shape[0])
        return read_only(pixels)

    @staticmethod
    def _refuse_many(name: str, count: int, most: int) -> None:
        if not 1 <= count <= most:
            raise AutolabelError(f"{name} has {count} rows: from 1 to {most} are possible")

    def boxes_alone(self) -> Boxes | None:
        """Return the boxes of a request that has no other prompts; None: it has others, or none."""
        found = self._tensor("boxes_xyxy_px")
        others = ("points", "labels", "mask_logits")
        if found is None or any(self._tensors(name) is not None for name in others):
            return None
        self._refuse_many("boxes_xyxy_px", len(found), MOST_PROMPTS)
        return Boxes(found, np.ones(len(found), np.float32), ("object",) * len(found))

    def point_prompts(self, grid: int) -> PointPrompts:
        """Return prompts in the image's pixels, of boxes_xyxy_px, points, labels, mask_logits.

        Raises:
            AutolabelError, ValueError: they are none, too many, or do not fit each other.

        """
        boxes, points, labels, logits = map(
            self._tensor, ("boxes_xyxy_px", "points", "labels", "mask_logits")
        )
        if (points is None) != (labels is None):
            raise AutolabelError("points and labels go together")
        if points is None or labels is None:
            if boxes is None:
                raise AutolabelError(
                    "the request has no prompt: give boxes_xyxy_px, or points, labels"
                )
            count = len(boxes)
            points, labels = np.zeros((count, 0, 2), np.float32), np.zeros((count, 0), np.int32)
        self._refuse_many("the request", len(labels), MOST_PROMPTS)
        if labels.ndim == 2 and labels.shape[1] > MOST_POINTS:
            raise AutolabelError(f"{labels.shape[1]} points: at most {MOST_POINTS} a prompt")
        if logits is not None and (
            logits.shape[1:] != (grid, grid) or not np.isfinite(logits).all()
        ):
            raise AutolabelError(
                f"mask_logits is {(1, *logits.shape)}: expected finite numbers (1, P, {grid}, "
                f"{grid})"
            )
        return PointPrompts(points, labels, boxes, logits)


def _refuse_large(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise AutolabelError(
            f"the image of {width}x{height} px is larger than {MOST_PIXELS / 1e6:.0f} megapixels"
        )


def decoded(encoded: bytes) -> ImageArray:
    """Decode a JPEG as labeling decodes one: uint8 (H, W, 3) RGB.

    Raises:
        AutolabelError: it is none, it is damaged, or it would be too large; then it is not decoded.

    """
    import simplejpeg
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as header:
            width, height = header.size
        _refuse_large(width, height)
        pixels: ImageArray = simplejpeg.decode_jpeg(encoded, "RGB", strict=True)
    except UnidentifiedImageError as error:
        raise AutolabelError("jpeg cannot be decoded: it is no JPEG") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise AutolabelError(f"jpeg cannot be decoded: {error}") from error
    return pixels
