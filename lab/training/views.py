"""Cutting training views out of pictures on the device: crops, flips, boxes of what is visible."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.training.pool import PictureBatch


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
    batch: PictureBatch, generator: torch.Generator,
    *, whole_share: float = 0.4, smallest: float = 0.25, aspect: float = 0.3,
) -> Crops:  # fmt: skip
    """Draw crops: the whole picture, or a part with another aspect ratio around some object.

    Args:
        batch: pictures.
        generator: on the CPU.
        whole_share: share of whole pictures.
        smallest: smallest side of a part, relative to the picture's.
        aspect: how far the aspect ratio strays, as a logarithm.

    Returns:
        Crops on the CPU.

    """
    count, height, width = batch.ids.shape

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    present = (batch.host_area_px > 0).float()
    chosen = torch.multinomial(present + 1e-9, 1, generator=generator)
    anchor = batch.host_boxes_px.gather(1, chosen[..., None].expand(-1, -1, 4))[:, 0]
    scale, stretch = uniform(smallest, 1.0), torch.exp(uniform(-aspect, aspect) / 2)
    crop_w = (width * scale * stretch).clamp(32, width)
    crop_h = (height * scale / stretch).clamp(32, height)
    whole = uniform(0, 1) < whole_share
    crop_w, crop_h = crop_w.where(~whole, width).long(), crop_h.where(~whole, height).long()
    middle_x, middle_y = (anchor[:, 0] + anchor[:, 2]) / 2, (anchor[:, 1] + anchor[:, 3]) / 2
    left = (middle_x - uniform(0, 1) * crop_w).long().clamp(min=0)
    top = (middle_y - uniform(0, 1) * crop_h).long().clamp(min=0)
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
        (B, 3, S, S) in 0..255, half precision on a GPU: a twentieth of a grey level.

    """
    views = []
    flips = crops.flipped.tolist()
    for i, (x1, y1, x2, y2) in enumerate(crops.boxes_px.tolist()):
        part = images[i, y1:y2, x1:x2].permute(2, 0, 1)[None].float()
        view = F.interpolate(part, (size, size), mode="bilinear", antialias=True)
        views.append(view.flip(-1) if flips[i] else view)
    whole = torch.cat(views)
    return whole.half() if whole.is_cuda else whole
