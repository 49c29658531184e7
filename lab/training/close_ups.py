"""Training views of one object each, as the close-up mode of `sam2_core` looks at boxes.

Everything happens on the device, for thousands of views a second: many are cut from each picture,
and no picture is copied for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.training.config import MaskPhase
from lab.training.pool import PictureBatch
from lab.training.prompts import PromptSampler, Targets
from lab.training.views import Crops
from sam2_core.preprocess import LEAST_MARGIN_PX, OTHER_MARGIN, OWN_MARGIN

# An instance is asked for when this much of it is visible, in pixels of the picture.
SMALLEST_AREA_PX = 40.0
# Regions stray so far, as a logarithm of the margin: a detector's boxes are of every tightness.
STRAY = 0.25
SAMPLES = 3  # along a side of a view's pixel


@dataclass(frozen=True, eq=False)
class CloseUps:
    """V views of one prompt each.

    Attributes:
        picture: int64 (V,), each one's row of the picture batch.
        crops: where they lie.
        targets: (V, 1).
        boxes_px: float32 (V, 1, 4), the prompts, as a detector would give them.

    """

    picture: Tensor
    crops: Crops
    targets: Targets
    boxes_px: Tensor


def regions_px(boxes_px: Tensor, size_hw: tuple[int, int], stretch: Tensor | float = 1) -> Tensor:
    """Where a close-up of each box lies: `sam2_core.preprocess.regions_xyxy_px`.

    Args:
        boxes_px: float32 (V, 4), inside the picture.
        size_hw: of the picture.
        stretch: of the margins left, top, right and bottom, (V, 4).

    Returns:
        int64 (V, 4): left, top, right, bottom.

    """
    size = boxes_px[:, 2:] - boxes_px[:, :2]
    margin = torch.maximum(size * OWN_MARGIN, size.flip(1) * OTHER_MARGIN)
    margin = margin.clamp(min=LEAST_MARGIN_PX)
    margin = margin.repeat(1, 2) * stretch
    left, top = (boxes_px[:, :2] - margin[:, :2]).floor().clamp(min=0).unbind(1)
    right, bottom = (boxes_px[:, 2:] + margin[:, 2:]).ceil().unbind(1)
    right, bottom = right.clamp(max=size_hw[1]), bottom.clamp(max=size_hw[0])
    return torch.stack([left, top, right, bottom], 1).long()


def draw_close_ups(batch: PictureBatch, prompts: PromptSampler, phase: MaskPhase) -> CloseUps:
    """Choose `phase.close_ups` objects of every picture, and how they are seen."""
    count, height, width = batch.ids.shape
    device, generator = batch.ids.device, prompts.generator
    frames = torch.zeros((count, 4), dtype=torch.int64, device=device)
    frames[:, 2], frames[:, 3] = width, height
    smallest = torch.full((count,), SMALLEST_AREA_PX, device=device)
    visible = (batch.boxes_px, batch.area_px)
    targets = prompts.targets(batch, visible, frames, smallest, phase.close_ups)
    boxes = prompts.boxes(targets, frames, phase.exact_boxes).flatten(0, 1)
    picture = torch.arange(count, device=device).repeat_interleave(phase.close_ups)
    stretch = torch.rand(boxes.shape, generator=generator, device=device) * 2 - 1
    regions = regions_px(boxes, (height, width), torch.exp(stretch * STRAY))
    flipped = torch.rand(len(boxes), generator=generator, device=device) < 0.5
    return CloseUps(picture, Crops(regions, flipped), targets.one_a_view(), boxes[:, None])


def cut_close_ups(images: Tensor, picture: Tensor, crops: Crops, size: int) -> Tensor:
    """Resize crops to squares: means of bilinear samples, `SAMPLES` x `SAMPLES` a pixel.

    Args:
        images: uint8 (B, H, W, 3).
        picture: int64 (V,), the row of each crop's picture.
        crops: V, on the same device.
        size: S.

    Returns:
        float32 (V, 3, S, S) in 0..255.

    """
    steps = (torch.arange(size * SAMPLES, device=images.device) + 0.5) / (size * SAMPLES)
    first, last = crops.boxes_px[:, None, :2], crops.boxes_px[:, None, 2:]
    along = torch.where(crops.flipped[:, None], 1 - steps, steps)
    x = first[..., 0] + along * (last - first)[..., 0] - 0.5
    y = first[..., 1] + steps * (last - first)[..., 1] - 0.5
    (x0, x1, wx), (y0, y1, wy) = _taps(x, images.shape[2]), _taps(y, images.shape[1])
    row = picture[:, None, None]

    def at(rows: Tensor, columns: Tensor) -> Tensor:
        return images[row, rows[:, :, None], columns[:, None, :]].float()

    across, down = wx[:, None, :, None], wy[:, :, None, None]
    upper = torch.lerp(at(y0, x0), at(y0, x1), across)
    lower = torch.lerp(at(y1, x0), at(y1, x1), across)
    fine = torch.lerp(upper, lower, down)
    return fine.reshape(-1, size, SAMPLES, size, SAMPLES, 3).mean((2, 4)).permute(0, 3, 1, 2)


def _taps(place: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return both neighbours of each place along an axis, and the second one's weight."""
    low = place.floor()
    before, after = low.long().clamp(0, length - 1), (low.long() + 1).clamp(0, length - 1)
    return before, after, place - low
