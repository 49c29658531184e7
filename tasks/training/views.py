"""Cutting training views out of pictures on the device: crops, flips, boxes of what is visible."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tasks.training.pool import PictureBatch
from tasks.training.rendering import MAX_INSTANCES


@dataclass(frozen=True, eq=False)
class Crops:
    """Where each of B views lies in its picture, in the picture's pixels.

    Attributes:
        boxes_px: int64 (B, 4), left, top, right, bottom; whole pixels.
        flipped: bool (B,), mirrored left to right.

    """

    boxes_px: Tensor
    flipped: Tensor

    def to_picture(self, xy_rel: Tensor) -> Tensor:
        """Points (B, N, 2) in [0, 1] of the view -> pixels of the picture."""
        box = self.boxes_px[:, None].to(xy_rel.dtype)
        x = torch.where(self.flipped[:, None], 1 - xy_rel[..., 0], xy_rel[..., 0])
        rel = torch.stack([x, xy_rel[..., 1]], -1)
        return box[..., :2] + rel * (box[..., 2:] - box[..., :2])

    def to_view(self, boxes_px: Tensor) -> Tensor:
        """Boxes (B, N, 4) in pixels of the picture -> [0, 1] of the view."""
        frame = self.boxes_px[:, None].to(boxes_px.dtype)
        size = (frame[..., 2:] - frame[..., :2]).repeat(1, 1, 2)
        rel = (boxes_px - frame[..., :2].repeat(1, 1, 2)) / size
        mirrored = torch.stack([1 - rel[..., 2], rel[..., 1], 1 - rel[..., 0], rel[..., 3]], -1)
        return torch.where(self.flipped[:, None, None], mirrored, rel)


def random_crops(
    count: int, size_hw: tuple[int, int], generator: torch.Generator,
    *, whole_share: float = 0.4, smallest: float = 0.35, aspect: float = 0.3,
) -> Crops:  # fmt: skip
    """Draw crops on the CPU: the whole picture, or a part of it with another aspect ratio."""
    height, width = size_hw

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    scale = uniform(smallest, 1.0)
    stretch = torch.exp(uniform(-aspect, aspect) / 2)
    crop_w = (width * scale * stretch).clamp(32, width).long()
    crop_h = (height * scale / stretch).clamp(32, height).long()
    whole = uniform(0, 1) < whole_share
    crop_w, crop_h = crop_w.where(~whole, width), crop_h.where(~whole, height)
    left = (uniform(0, 1) * (width - crop_w + 1)).long().clamp(max=width - 1)
    top = (uniform(0, 1) * (height - crop_h + 1)).long().clamp(max=height - 1)
    left, top = torch.minimum(left, width - crop_w), torch.minimum(top, height - crop_h)
    boxes = torch.stack([left, top, left + crop_w, top + crop_h], -1)
    return Crops(boxes, uniform(0, 1) < 0.5)


def cut(images: Tensor, crops: Crops, size: int) -> Tensor:
    """Resize crops to a square as the model's preprocessing does: antialiased bilinear.

    Args:
        images: uint8 (B, H, W, 3).
        crops: on the CPU.
        size: S.

    Returns:
        float32 (B, 3, S, S) in 0..255.

    """
    views = []
    flips = crops.flipped.tolist()
    for i, (x1, y1, x2, y2) in enumerate(crops.boxes_px.tolist()):
        part = images[i, y1:y2, x1:x2].permute(2, 0, 1)[None].float()
        view = F.interpolate(part, (size, size), mode="bilinear", antialias=True)
        views.append(view.flip(-1) if flips[i] else view)
    return torch.cat(views)


def visible_boxes(ids: Tensor, frames_px: Tensor) -> tuple[Tensor, Tensor]:
    """Tight boxes and areas of every instance inside a frame of its picture.

    Args:
        ids: uint8 (B, H, W).
        frames_px: int64 (B, 4), left, top, right, bottom.

    Returns:
        float32 (B, 256, 4) in the picture's pixels and float32 (B, 256) pixels; row 0 and absent
        instances have area 0.

    """
    batch, height, width = ids.shape
    device = ids.device
    rows = MAX_INSTANCES + 1
    x = torch.arange(width, device=device)
    y = torch.arange(height, device=device)
    left, top, right, bottom = (frames_px[:, i, None] for i in range(4))
    inside = ((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None, :]
    offset = torch.arange(batch, device=device)[:, None, None] * rows
    index = torch.where(inside, ids, 0).long() + offset
    # Presence by line and by column: two small tables instead of atomics on every pixel's x and y.
    present_y = torch.zeros((batch, height, rows), dtype=torch.bool, device=device)
    present_x = torch.zeros((batch, width, rows), dtype=torch.bool, device=device)
    flat = (index - offset).reshape(batch, height, width)
    present_y.scatter_(2, flat, True)
    present_x.scatter_(2, flat.transpose(1, 2), True)
    area = torch.bincount(index.reshape(-1), minlength=batch * rows).reshape(batch, rows).float()
    area[:, 0] = 0

    def extent(present: Tensor) -> tuple[Tensor, Tensor]:
        table = present.transpose(1, 2).to(torch.uint8)
        first = table.argmax(-1)
        last = table.shape[-1] - table.flip(-1).argmax(-1)
        return first.float(), last.float()

    (x1, x2), (y1, y2) = extent(present_x), extent(present_y)
    return torch.stack([x1, y1, x2, y2], -1), area


def owner_at(ids: Tensor, xy_px: Tensor) -> Tensor:
    """Which instance owns each point: ids uint8 (B, H, W), xy (B, N, 2) px -> uint8 (B, N)."""
    height, width = ids.shape[1:]
    x = xy_px[..., 0].long().clamp(0, width - 1)
    y = xy_px[..., 1].long().clamp(0, height - 1)
    return ids.flatten(1).gather(1, y * width + x)
