"""Requests to the server's model of images, and its answers, as both clients make and read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sam2_core.arrays import freeze_arrays
from sam2_core.preprocess import checked_image
from sam2_core.prompts import PointPrompts
from sam2_core.serving.contract import image_id, text_in, text_tensor
from sam2_core.serving.transport import Call, Tensors
from sam2_core.types import AutolabelError, FloatArray, ImageArray, Masks

_MASKS = (
    "image_id", "size_hw", "rle", "rle_bytes", "reasons", "predicted_iou", "stability",
    "object_score", "area_px",
)  # fmt: skip
_OPENED = ("image_id", "size_hw")
# Logits of a mask that is given: those of a cell inside and, negative, of one outside.
_SURE = 10.0


@dataclass(frozen=True, eq=False)
class SentImage:
    """An image that a server knows by its id, and what to send if it has forgotten it.

    Attributes:
        name: its id.
        size_hw: height and width in pixels.
        content: uint8 (H, W, 3) RGB, or a JPEG.

    """

    name: str
    size_hw: tuple[int, int]
    content: ImageArray | bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes):
            freeze_arrays(self, content="uint8 (H, W, 3)")


def known_name(content: ImageArray | bytes) -> str | None:
    """Return the id of an image; None of a JPEG, which the server has to decode first."""
    return None if isinstance(content, bytes) else image_id(checked_image(content))


def content_inputs(content: ImageArray | bytes) -> Tensors:
    """Return the tensor that brings an image."""
    if isinstance(content, bytes):
        return {"jpeg": text_tensor(content)[None]}
    return {"image": checked_image(content)[None]}


def name_inputs(name: str) -> Tensors:
    """Return the tensor that names an image."""
    return {"image_id": text_tensor(name)[None]}


def open_call(model: str, inputs: Tensors, deadline_s: float) -> Call:
    """Return a request that makes an image known, or asks whether it is."""
    return Call(model, inputs, _OPENED, deadline_s)


def opened(found: Tensors, content: ImageArray | bytes) -> SentImage:
    """Read the answer to `open_call`."""
    height, width = (int(size) for size in found["size_hw"].reshape(-1))
    return SentImage(text_in(found["image_id"]), (height, width), content)


def predict_call(model: str, about: Tensors, prompts: PointPrompts, deadline_s: float) -> Call:
    """Return a request for the masks of prompts."""
    inputs = dict(about)
    if prompts.xyxy_px is not None:
        inputs["boxes_xyxy_px"] = prompts.xyxy_px[None]
    if prompts.labels.shape[1] or prompts.xyxy_px is None:
        inputs |= {"points": prompts.points_px[None], "labels": prompts.labels[None]}
    if prompts.mask_logits is not None:
        inputs["mask_logits"] = prompts.mask_logits[None]
    return Call(model, inputs, _MASKS, deadline_s)


def masks_in(found: Tensors) -> Masks:
    """Read the answer to `predict_call`."""
    height, width = (int(size) for size in found["size_hw"].reshape(-1))
    names = ("predicted_iou", "stability", "object_score", "area_px")
    iou, stability, score, area = (found[name][0] for name in names)
    text, ends = found["rle"].tobytes(), np.cumsum(found["rle_bytes"][0])
    starts = [0, *ends[:-1].tolist()]
    return Masks(
        tuple(text[start:end] for start, end in zip(starts, ends.tolist(), strict=True)),
        (height, width), iou, stability, score, area, tuple(json.loads(text_in(found["reasons"]))),
    )  # fmt: skip


def no_masks(size_hw: tuple[int, int]) -> Masks:
    """Return the masks of no prompts."""
    nothing = np.zeros(0, np.float32)
    return Masks((), size_hw, nothing, nothing, nothing, np.zeros(0, np.int64), ())


def as_prompts(
    boxes_xyxy_px: npt.ArrayLike | None = None,
    points_px: npt.ArrayLike | None = None,
    labels: npt.ArrayLike | None = None,
    masks: npt.NDArray[np.bool_] | None = None,
    *,
    grid: int,
) -> PointPrompts:
    """Return N prompts of what a caller has.

    Args:
        boxes_xyxy_px: (N, 4) in pixels of the image.
        points_px: (N, K, 2).
        labels: (N, K): 1 positive, 0 negative, -1 no point.
        masks: bool (N, H, W), earlier masks in pixels of the image, to refine.
        grid: G, side of the model's mask grid.

    Raises:
        ValueError: they do not fit each other.

    """
    if (points_px is None) != (labels is None):
        raise ValueError("points_px and labels go together")
    given = [one for one in (boxes_xyxy_px, labels, masks) if one is not None]
    if not given:
        raise ValueError("no prompt: give boxes_xyxy_px, points_px and labels, or masks")
    count = len(np.asarray(given[0]))
    if points_px is None:
        points_px, labels = np.zeros((count, 0, 2), np.float32), np.zeros((count, 0), np.int32)
    boxes = None if boxes_xyxy_px is None else np.asarray(boxes_xyxy_px, np.float32).reshape(-1, 4)
    logits = None if masks is None else mask_logits(masks, grid)
    return PointPrompts(
        np.asarray(points_px, np.float32), np.asarray(labels, np.int32), boxes, logits
    )


def mask_logits(masks: npt.NDArray[np.bool_], grid: int) -> FloatArray:
    """Return masks of an image as the model takes earlier masks.

    Args:
        masks: bool (N, H, W).
        grid: G.

    Returns:
        float32 (N, G, G) logits.

    """
    from PIL import Image

    if masks.ndim != 3 or masks.dtype != np.bool_:
        raise ValueError(f"masks must be bool (N, H, W), got {masks.dtype} {masks.shape}")
    shares: Sequence[npt.NDArray[np.float32]] = [
        np.asarray(
            Image.fromarray(mask.astype(np.float32)).resize((grid, grid), Image.Resampling.BILINEAR)
        )
        for mask in masks
    ]
    logits = (2 * np.array(shares, np.float32).reshape(-1, grid, grid) - 1) * np.float32(_SURE)
    return logits.astype(np.float32)


def predictable(image: SentImage, prompts: PointPrompts) -> Masks | None:
    """Return what needs no server: the masks of no prompts."""
    return None if len(prompts) else no_masks(image.size_hw)


def refuse_other_size(image: SentImage, masks: npt.NDArray[np.bool_] | None) -> None:
    """Refuse earlier masks of another image."""
    if masks is not None and masks.shape[1:] != image.size_hw:
        raise AutolabelError(
            f"the masks are {masks.shape[1:]} and the image is {image.size_hw} (height, width)"
        )
