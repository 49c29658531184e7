"""The detector's loss: task-aligned assignment (TOOD, Feng et al. 2021), BCE and CIoU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.training.detector_model import decode_boxes

TOP_CANDIDATES = 10
SCORE_POWER, IOU_POWER = 0.5, 5.0
# A cell may stand for a box when its centre is inside it or within this many cells of its centre:
# boxes smaller than a cell need some.
CENTRE_RADIUS = 1.0
BOX_WEIGHT, CLASS_WEIGHT = 5.0, 1.0


@dataclass(frozen=True, eq=False)
class TrueBoxes:
    """M rows per picture, padded.

    Attributes:
        xyxy: float32 (B, M, 4) in pixels of the input.
        classes: int64 (B, M); -1 for boxes to ignore.
        valid: bool (B, M), False for padding.

    """

    xyxy: Tensor
    classes: Tensor
    valid: Tensor


def pair_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU of boxes that broadcast, (..., 4) -> (...)."""
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(0)
    inter = sides.prod(-1)
    area = [(x[..., 2:] - x[..., :2]).clamp(0).prod(-1) for x in (a, b)]
    return inter / (area[0] + area[1] - inter).clamp(min=1e-6)


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """CIoU (Zheng et al. 2020) of paired boxes (..., 4) -> (...)."""
    iou = pair_iou(a, b)
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    apart = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]).square().sum(-1) / 4
    distance = apart / hull.square().sum(-1).clamp(min=1e-6)
    size_a, size_b = ((x[..., 2:] - x[..., :2]).clamp(min=1e-3) for x in (a, b))
    angle = torch.atan(size_b[..., 0] / size_b[..., 1])
    angle = angle - torch.atan(size_a[..., 0] / size_a[..., 1])
    shape = 4 / math.pi**2 * angle.square()
    with torch.no_grad():
        weight = shape / (1 - iou + shape).clamp(min=1e-6)
    return iou - distance - weight * shape


@dataclass(frozen=True, eq=False)
class Assignment:
    """Which true box each cell stands for.

    Attributes:
        positive: bool (B, A).
        row: int64 (B, A), row of the true boxes where positive.
        quality: float32 (B, A), the class score to reach, 0 where not positive.
        ignored: bool (B, A), cells on boxes to ignore.

    """

    positive: Tensor
    row: Tensor
    quality: Tensor
    ignored: Tensor


@torch.no_grad()
def assign(
    boxes: Tensor, scores: Tensor, truth: TrueBoxes, grid: Tensor, strides: Tensor
) -> Assignment:
    """Choose for each true box the cells that predict it best.

    Args:
        boxes: decoded (B, A, 4).
        scores: class probabilities (B, A, C).
        truth: M true boxes per picture.
        grid: (A, 2) in cells.
        strides: (A, 1).

    """
    centres = (grid + 0.5) * strides
    low, high = truth.xyxy[..., None, :2], truth.xyxy[..., None, 2:]
    inside = ((centres > low) & (centres < high)).all(-1)
    near = ((centres - (low + high) / 2).abs() < CENTRE_RADIUS * strides).all(-1)
    wanted = truth.valid & (truth.classes >= 0)
    ignored = (inside & (truth.valid & (truth.classes < 0))[..., None]).any(1)
    candidate = (inside | near) & wanted[..., None]
    overlap = pair_iou(boxes[:, None], truth.xyxy[:, :, None]) * candidate
    index = truth.classes.clamp(min=0)[..., None].expand(-1, -1, scores.shape[1])
    score = scores.transpose(1, 2).gather(1, index)
    metric = score.clamp(min=1e-6) ** SCORE_POWER * overlap**IOU_POWER * candidate
    # Before anything overlaps, every candidate is as good as another: prefer central ones.
    distance = (centres - (low + high) / 2).square().sum(-1)
    metric = metric + candidate * 1e-9 / (1 + distance / strides[:, 0] ** 2)
    top = metric.topk(min(TOP_CANDIDATES, metric.shape[-1]), dim=-1)
    chosen = torch.zeros_like(metric, dtype=torch.bool).scatter_(-1, top.indices, True)
    chosen &= candidate
    best = (overlap + 1e-9).where(chosen, -1.0)
    value, row = best.max(1)
    positive = value > 0
    own = torch.zeros_like(chosen).scatter_(1, row[:, None], True) & chosen & positive[:, None]
    metric, overlap = metric * own, overlap * own
    scale = overlap.amax(-1, keepdim=True) / metric.amax(-1, keepdim=True).clamp(min=1e-9)
    quality = (metric * scale).amax(1)
    return Assignment(positive, row, quality, ignored & ~positive)


def detector_loss(
    raw_boxes: Tensor, logits: Tensor, truth: TrueBoxes, unlabeled: Tensor,
    *, grid: Tensor, strides: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Loss of a batch, and its parts to plot; `raw_boxes` (B, A, 4) are not decoded yet.

    Where objects of a class may be without a label (`unlabeled`, bool (B, A, C)), a cell that
    stands for nothing is not told that there are none.
    """
    logits, decoded = logits.float(), decode_boxes(raw_boxes, grid, strides)
    assigned = assign(decoded.detach(), logits.detach().sigmoid(), truth, grid, strides)
    total = assigned.quality.sum().clamp(min=1)
    kind = truth.classes.gather(1, assigned.row).clamp(min=0)
    # Every cell takes part, those that stand for nothing with weight 0: picking cells out by a
    # condition would make the host wait for the device to count them.
    weight = assigned.quality * assigned.positive
    target = F.one_hot(kind, logits.shape[-1]) * weight[..., None]
    bce = F.binary_cross_entropy_with_logits(logits, target.float(), reduction="none")
    known = assigned.positive[..., None] | ~(unlabeled | assigned.ignored[..., None])
    class_part = (bce * known).sum() / total
    wanted = truth.xyxy.gather(1, assigned.row[..., None].expand(-1, -1, 4))
    decoded = torch.where(assigned.positive[..., None], decoded, wanted.detach())
    box_part = ((1 - complete_iou(decoded, wanted)) * weight).sum() / total
    # While boxes and truth are far apart CIoU says little about sizes: compare them directly too.
    sides = torch.log((wanted[..., 2:] - wanted[..., :2]).clamp(min=1) / strides)
    size_part = ((raw_boxes[..., 2:].float() - sides).abs().mean(-1) * weight).sum() / total
    loss = CLASS_WEIGHT * class_part + BOX_WEIGHT * box_part + size_part
    return loss, {"loss": loss.detach(), "class": class_part.detach(), "box": box_part.detach()}
