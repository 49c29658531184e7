"""The mask model's loss, taken at points around each object instead of on whole grids.

A mask is judged at jittered points of a regular grid over the object's surroundings and of a coarse
one over the whole view, where the logits are interpolated as they will be at full resolution
(point sampling as in PointRend, Kirillov et al. 2020). A small object gets as many points as a
large one, and the truth is read at the picture's own resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.training.prompts import Targets
from lab.training.views import Crops
from lab.training.visible import owner_at

# Around the tight box: this share of its size and so many pixels at each side.
MARGIN_RELATIVE, MARGIN_PX = 0.2, 6.0
OUTSIDE_SIDE = 36
EDGE_WEIGHT = 3.0


@dataclass(frozen=True, eq=False)
class LossPoints:
    """Where each of P prompts' masks is judged.

    Attributes:
        near_rel: float32 (P, R*R, 2) around the object, in [0, 1] of the view.
        near_truth: float32 (P, R*R), 1 on the object.
        far_rel: float32 (P, F, 2) over the whole view.
        far_truth: float32 (P, F).
        far_weight: float32 (P, F), 1 where a point is not inside the object's surroundings.
        area_rel: float32 (P,), share of the view that the surroundings cover.

    """

    near_rel: Tensor
    near_truth: Tensor
    far_rel: Tensor
    far_truth: Tensor
    far_weight: Tensor
    area_rel: Tensor

    def columns(self, some: slice, views: int) -> LossPoints:
        """Keep some of the prompts of each of so many views."""
        parts = (getattr(self, f.name) for f in fields(self))
        return LossPoints(*(p.unflatten(0, (views, -1))[:, some].flatten(0, 1) for p in parts))


def jittered_grid(count: int, side: int, generator: torch.Generator) -> Tensor:
    """One random point in every cell of a side x side grid: (count, side * side, 2) in [0, 1]."""
    device = generator.device
    cells = torch.arange(side, device=device, dtype=torch.float32)
    y, x = torch.meshgrid(cells, cells, indexing="ij")
    corner = torch.stack([x, y], -1).reshape(1, -1, 2)
    return (corner + torch.rand((count, side * side, 2), generator=generator, device=device)) / side


def draw_points(
    ids: Tensor, crops: Crops, targets: Targets, side: int, generator: torch.Generator,
    *, picture: Tensor | None = None,
) -> LossPoints:  # fmt: skip
    """Choose points for every prompt and read the truth there.

    Args:
        ids: uint8 (B, H, W) of the pictures.
        crops: on the same device.
        targets: N a picture.
        side: R, points a side around the object.
        generator: on the same device.
        picture: int64 (V,), the row of `ids` of each crop; in order when None.

    """
    batch, per = targets.instance.shape
    size = (targets.boxes_px[..., 2:] - targets.boxes_px[..., :2]).repeat(1, 1, 2)
    margin = size * MARGIN_RELATIVE + MARGIN_PX
    around = targets.boxes_px + torch.cat([-margin[..., :2], margin[..., 2:]], -1)
    around_rel = crops.to_view(around).clamp(0, 1).reshape(-1, 1, 4)
    extent = around_rel[..., 2:] - around_rel[..., :2]
    near = jittered_grid(batch * per, side, generator) * extent + around_rel[..., :2]
    far = jittered_grid(batch, OUTSIDE_SIDE, generator)[:, None].expand(-1, per, -1, -1)
    far = far.reshape(batch * per, -1, 2)
    inside = ((far >= around_rel[..., :2]) & (far <= around_rel[..., 2:])).all(-1)
    wanted = targets.instance.reshape(-1, 1)

    def truth(points: Tensor) -> Tensor:
        flat = points.reshape(batch, -1, 2)
        owner = owner_at(ids, crops.to_picture(flat), picture).reshape(batch * per, -1)
        return ((owner == wanted) & (wanted > 0)).float()

    return LossPoints(
        near, truth(near), far, truth(far), (~inside).float(), extent.prod(-1).reshape(-1)
    )


def at_points(logits: Tensor, points_rel: Tensor) -> Tensor:
    """Interpolate logits (P, M, G, G) at (P, K, 2) in [0, 1]: float32 (P, M, K)."""
    grid = points_rel[:, None] * 2 - 1
    sampled = F.grid_sample(
        logits.float(), grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    return sampled[:, :, 0]


def on_edge(truth: Tensor) -> Tensor:
    """Weigh points (P, R*R) of a grid: `EDGE_WEIGHT` beside the outline, 1 elsewhere."""
    side = math.isqrt(truth.shape[-1])
    grid = truth.reshape(-1, 1, side, side)
    grown, shrunk = F.max_pool2d(grid, 3, 1, 1), -F.max_pool2d(-grid, 3, 1, 1)
    return (1 + (EDGE_WEIGHT - 1) * (grown - shrunk)).flatten(1)


@dataclass(frozen=True, eq=False)
class MaskLosses:
    """Per prompt and mask, float32 (P, M): the loss, and the IoU reached."""

    loss: Tensor
    iou: Tensor


def mask_losses(logits: Tensor, points: LossPoints) -> MaskLosses:
    """Binary cross-entropy near and far, and dice near, for every mask of every prompt."""
    near, far = at_points(logits, points.near_rel), at_points(logits, points.far_rel)
    near_truth = points.near_truth[:, None].expand_as(near)
    far_truth = points.far_truth[:, None].expand_as(far)
    weight = points.far_weight[:, None]
    bce_near = F.binary_cross_entropy_with_logits(near, near_truth, reduction="none")
    edge = on_edge(points.near_truth)[:, None]
    bce_near = (bce_near * edge).sum(-1) / edge.sum(-1)
    bce_far = F.binary_cross_entropy_with_logits(far, far_truth, reduction="none")
    bce_far = (bce_far * weight).mean(-1)
    probability = near.sigmoid()
    overlap = (probability * near_truth).sum(-1)
    dice = 1 - (2 * overlap + 1) / (probability.sum(-1) + near_truth.sum(-1) + 1)
    with torch.no_grad():
        iou = _iou(near, far, points)
    return MaskLosses(2 * bce_near + dice + 2 * bce_far, iou)


def _iou(near: Tensor, far: Tensor, points: LossPoints) -> Tensor:
    """Estimate IoU over the view: the near points stand for their area, the far ones for theirs."""
    near_truth, far_truth = points.near_truth[:, None], points.far_truth[:, None]
    weight, area = points.far_weight[:, None], points.area_rel

    def total(of_near: Tensor, of_far: Tensor) -> Tensor:
        return of_near.float().mean(-1) * area[:, None] + (of_far.float() * weight).mean(-1)

    found, far_found = near > 0, far > 0
    both = total(found & (near_truth > 0), far_found & (far_truth > 0))
    either = total(found | (near_truth > 0), far_found | (far_truth > 0))
    return both / either.clamp(min=1e-9)


def total_loss(
    masks: MaskLosses, predicted_iou: Tensor, object_score: Tensor, targets: Targets
) -> Tensor:
    """Add up: token 0, the best of tokens 1 to 3, their predicted IoU, the object score.

    Args:
        masks: of the four masks, (P, 4).
        predicted_iou: (P, 4).
        object_score: logits (P,).
        targets: P = B * N prompts.

    """
    has = targets.has_object.reshape(-1).float()
    counts = targets.counts.reshape(-1).float()
    single, multi = masks.loss[:, 0], masks.loss[:, 1:].min(1).values
    quality = (predicted_iou.float() - masks.iou).abs().mean(1)
    scale = has.sum().clamp(min=1)
    mask_part = ((single + 0.5 * multi + quality) * has).sum() / scale
    presence = F.binary_cross_entropy_with_logits(object_score.float(), has, reduction="none")
    presence = (presence * counts).sum() / counts.sum().clamp(min=1)
    return mask_part + 0.2 * presence
