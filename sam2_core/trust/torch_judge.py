"""PyTorch's answers in float32 to a calibration set. Importing this needs torch.

It shares no code with what labels but the weights' names and the definition of a close-up: pictures
are resized and logits enlarged by PyTorch, whole and without batches or folded weights.
"""

from typing import Any

import numpy as np
import torch
from pycocotools import mask as coco_mask
from torch.nn import functional

from sam2_core.architecture import Sam2, select_mask
from sam2_core.architecture.model import at_size
from sam2_core.preprocess import regions_xyxy_px
from sam2_core.trust.calibration import (
    Answers,
    Calibration,
    CalibrationImage,
    ImageAnswers,
    sampled,
)
from sam2_core.types import BOX_BOTTOM_RIGHT, BOX_TOP_LEFT, POINT_PADDING, FloatArray, ImageArray

_PROMPTS_AT_ONCE = 8


def torch_answers(
    model: Sam2,
    calibration: Calibration,
    *,
    close_ups: bool,
    checkpoint_sha256: str,
) -> Answers:
    """Segment a calibration set with the plain modules.

    Args:
        model: float32, on the CPU; left as it is.
        calibration: what to segment.
        close_ups: give each box a crop of its own.
        checkpoint_sha256: of the weights.

    """
    size = model.preset.close_up_size if close_ups else model.preset.image_size
    judge = at_size(model, size).float().eval() if close_ups else model.eval()
    with torch.inference_mode():
        images = [_judged(judge, image, size, close_ups=close_ups) for image in calibration.images]
    return Answers(
        checkpoint_sha256, close_ups, calibration.digest,
        f"PyTorch {torch.__version__}, float32, plain modules", tuple(images),
    )  # fmt: skip


def _judged(model: Sam2, image: CalibrationImage, size: int, *, close_ups: bool) -> ImageAnswers:
    height, width = image.size_hw
    limits = np.array([width, height, width, height], np.float32)
    boxes = np.clip(image.boxes_xyxy_px, 0, limits)
    whole = np.array([[0, 0, width, height]])
    if close_ups:
        regions = regions_xyxy_px(boxes, image.size_hw)
        groups = [(region, boxes[row : row + 1]) for row, region in enumerate(regions)]
    else:
        groups = [(whole[0], boxes)]
    rle: list[bytes] = []
    scores: list[FloatArray] = []
    logits: list[FloatArray] = []
    for (left, top, right, bottom), inside in groups:
        features = model.encode(_square(image.pixels[top:bottom, left:right], size))
        for start in range(0, len(inside), _PROMPTS_AT_ONCE):
            some = inside[start : start + _PROMPTS_AT_ONCE]
            points = (some.reshape(-1, 2, 2) - [left, top]) * [size / (right - left),
                                                               size / (bottom - top)]  # fmt: skip
            chosen, score = _decoded(model, features, points.astype(np.float32))
            scores.append(score)
            logits.append(sampled(chosen))
            rle += _placed(chosen, (int(left), int(top), int(right), int(bottom)), image.size_hw)
    return ImageAnswers(tuple(rle), np.concatenate(scores), np.concatenate(logits))


def _square(pixels: ImageArray, size: int) -> Any:
    """Resize to (1, S, S, 3) as published: bilinear with antialias, in floats."""
    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float()
    resized = functional.interpolate(planes, (size, size), mode="bilinear", antialias=True)
    return resized.permute(0, 2, 3, 1)


def _decoded(model: Sam2, features: Any, corners_model: FloatArray) -> tuple[Any, FloatArray]:
    """Decode boxes: float32 (N, G, G) logits of the chosen masks, (N,) predicted IoU."""
    count = len(corners_model)
    points = torch.zeros(count, 3, 2)
    points[:, :2] = torch.from_numpy(corners_model)
    labels = torch.tensor([[BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING]] * count)
    index = torch.zeros(count, dtype=torch.int64)
    chosen, iou = select_mask(*model.decode(features, points, labels, index)[:2])
    return chosen[:, 0].numpy(), iou.numpy()


def _placed(
    logits: FloatArray, region: tuple[int, int, int, int], size_hw: tuple[int, int]
) -> list[bytes]:
    """Enlarge logits to their region, threshold, and encode the masks of the whole picture."""
    left, top, right, bottom = region
    large = functional.interpolate(
        torch.from_numpy(logits)[:, None], (bottom - top, right - left), mode="bilinear",
        align_corners=False,
    )  # fmt: skip
    found = []
    for drawn in (large[:, 0] > 0).numpy():
        mask = np.zeros(size_hw, np.uint8, order="F")
        mask[top:bottom, left:right] = drawn
        found.append(bytes(coco_mask.encode(mask)["counts"]))
    return found
