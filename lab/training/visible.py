"""What of each instance is visible inside a frame: boxes and areas, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.training.data import MAX_INSTANCES


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
    flat = torch.where(inside, ids, 0).long()
    # Presence by line and by column: two small tables instead of atomics on every pixel's x and y.
    present_y = torch.zeros((batch, height, rows), dtype=torch.bool, device=device)
    present_x = torch.zeros((batch, width, rows), dtype=torch.bool, device=device)
    present_y.scatter_(2, flat, True)
    present_x.scatter_(2, flat.transpose(1, 2), True)
    # Counted line by line: one counter for the whole background would be added to in single file,
    # and a bincount makes the host wait for the device.
    counts = torch.zeros((batch, height, rows), device=device)
    area = counts.scatter_add_(2, flat, torch.ones_like(flat, dtype=torch.float32)).sum(1)
    area[:, 0] = 0

    def extent(present: Tensor) -> tuple[Tensor, Tensor]:
        table = present.transpose(1, 2).to(torch.uint8)
        first = table.argmax(-1)
        last = table.shape[-1] - table.flip(-1).argmax(-1)
        return first.float(), last.float()

    (x1, x2), (y1, y2) = extent(present_x), extent(present_y)
    return torch.stack([x1, y1, x2, y2], -1), area


def owner_at(ids: Tensor, xy_px: Tensor, picture: Tensor | None = None) -> Tensor:
    """Which instance owns each point.

    Args:
        ids: uint8 (B, H, W).
        xy_px: (V, N, 2), pixels of the picture.
        picture: int64 (V,), the picture of each row of points; V = B in order when None.

    Returns:
        uint8 (V, N).

    """
    height, width = ids.shape[1:]
    x = xy_px[..., 0].long().clamp(0, width - 1)
    y = xy_px[..., 1].long().clamp(0, height - 1)
    if picture is None:
        return ids.flatten(1).gather(1, y * width + x)
    return ids[picture[:, None], y, x]
