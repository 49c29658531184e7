"""Prompts as people and detectors give them, drawn for every view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.training.data import HIDDEN, IGNORED, RIDER, UNUSED
from lab.training.pool import PictureBatch
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    AutolabelError,
)

# Detector noise: share of the prompts that are not exact, standard deviation in shares of the box's
# side, in pixels.
BOX_NOISE = ((0.57, 0.03, 0.8), (0.43, 0.09, 1.5))
EXACT_SHARE = 0.3
NO_OBJECT_SHARE = 0.06


@dataclass(frozen=True, eq=False)
class Targets:
    """P = B * N prompts' objects, N of each view.

    Attributes:
        instance: int64 (B, N), row of the picture's table; 0 for a prompt on no object.
        boxes_px: float32 (B, N, 4), tight, in pixels of the picture.
        counts: bool (B, N), False where the prompt may hold an unknown object: no loss.

    """

    instance: Tensor
    boxes_px: Tensor
    counts: Tensor

    def columns(self, some: slice) -> Targets:
        """Keep some of each view's prompts."""
        return Targets(self.instance[:, some], self.boxes_px[:, some], self.counts[:, some])

    def one_a_view(self) -> Targets:
        """Give every prompt a view of its own: (B * N, 1)."""
        parts = (self.instance, self.boxes_px, self.counts)
        return Targets(*(part.flatten(0, 1)[:, None] for part in parts))

    @property
    def has_object(self) -> Tensor:
        """Bool (B, N)."""
        return self.instance > 0


FIRST_KIND = RIDER  # the lowest value of `Picture.classes`


def choice_weights(names: tuple[str, ...], emphasis: Mapping[str, float]) -> Tensor:
    """Say how often each kind of instance is chosen, relative to the others.

    Args:
        names: of the classes.
        emphasis: by class, "rider" (one object with what he rides) or "hidden" (mostly); 1 where
            none is given.

    Returns:
        float32 (n,): for kind k of `Picture.classes`, entry k - FIRST_KIND.

    Raises:
        AutolabelError: when a name means nothing here.

    """
    kinds = {name: place for place, name in enumerate(names)} | {"rider": RIDER, "hidden": HIDDEN}
    if strange := sorted(emphasis.keys() - kinds.keys()):
        raise AutolabelError(f"emphasis: {strange[0]!r} is none of {', '.join(kinds)}")
    weights = torch.ones(len(names) - FIRST_KIND)
    for name, weight in emphasis.items():
        weights[kinds[name] - FIRST_KIND] = weight
    return weights


class PromptSampler:
    """Draws from a generator on the device.

    Attributes:
        weights: float32 (n,) on the device, how often each kind of instance is chosen, see
            `choice_weights`.

    """

    def __init__(self, generator: torch.Generator, weights: Tensor | None = None) -> None:
        self.generator = generator
        self.weights = torch.ones(1) if weights is None else weights
        self.weights = self.weights.to(generator.device)

    def choose(self, weight: Tensor) -> Tensor:
        """Draw a column of each row of (P, K) by weight: int64 (P, 1); any where all are 0.

        The exponential race: `torch.multinomial` may make the host wait for the device.
        """
        weight = weight + (weight.sum(1, keepdim=True) == 0) + 1e-6
        race = torch.empty_like(weight).exponential_(generator=self.generator)
        return (weight / race).argmax(1, keepdim=True)

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def targets(
        self, batch: PictureBatch, visible: tuple[Tensor, Tensor], frames_px: Tensor,
        smallest_px: Tensor, prompts: int,
    ) -> Targets:  # fmt: skip
        """Choose N instances of each view, with repetition where there are fewer.

        Args:
            batch: the pictures.
            visible: boxes and areas inside the views, see `visible_boxes`.
            frames_px: (B, 4), the view's frame in the picture.
            smallest_px: (B,), the least area of an instance that is asked for.
            prompts: N.

        """
        classes, (boxes_px, area_px) = batch.classes, visible
        wanted = (classes != UNUSED) & (classes != IGNORED) & (area_px >= smallest_px[:, None])
        none = ~wanted.any(1)
        # The smallest keys of a random order, wanted ones first, give a draw without repetition;
        # it wraps round where a view has fewer than N. Ages at which kinds of these rates die:
        kind = (classes - FIRST_KIND).clamp(0, len(self.weights) - 1)
        ages = torch.empty(wanted.shape, device=wanted.device)
        ages = ages.exponential_(generator=self.generator) / self.weights[kind]
        order = ages.where(wanted, torch.inf).argsort(1)
        available = wanted.sum(1, keepdim=True)
        position = torch.arange(prompts, device=order.device)[None] % available.clamp(min=1)
        instance = order.gather(1, position)
        found = boxes_px.gather(1, instance[..., None].expand(-1, -1, 4))
        frame = frames_px.float()[:, None]
        size = frame[..., 2:] - frame[..., :2]
        side = size * (0.02 + 0.25 * self._rand(*instance.shape, 2) ** 2)
        corner = frame[..., :2] + (size - side) * self._rand(*instance.shape, 2)
        empty = torch.cat([corner, corner + side], -1)
        # A box laid at random may hold an object; it is only asked for where it cannot.
        free = ~_any_overlap(empty, boxes_px, area_px)
        absent = free & (self._rand(*instance.shape) < NO_OBJECT_SHARE)
        absent |= none[:, None]
        return Targets(
            instance.where(~absent, 0),
            torch.where(absent[..., None], empty, found),
            free | ~absent,
        )

    def boxes(
        self, targets: Targets, frames_px: Tensor, exact_share: float = EXACT_SHARE
    ) -> Tensor:
        """Jitter boxes as a detector would: (B, N, 4) px, at least 2 px wide, inside the frame."""
        boxes = targets.boxes_px
        kind = self._rand(*boxes.shape[:2], 1)
        size = (boxes[..., 2:] - boxes[..., :2]).repeat(1, 1, 2)
        noise = torch.zeros_like(boxes)
        low = exact_share
        for part, relative, pixels in BOX_NOISE:
            share = part * (1 - exact_share)
            scale = (size * relative + pixels).minimum(size * 0.25)
            drawn = self._randn(*boxes.shape).clamp(-2, 2) * scale
            noise = torch.where((kind >= low) & (kind < low + share), drawn, noise)
            low += share
        frame = frames_px.float()[:, None]
        moved = torch.cat([
            (boxes + noise)[..., :2].maximum(frame[..., :2]),
            (boxes + noise)[..., 2:].minimum(frame[..., 2:]),
        ], -1)  # fmt: skip
        thin = (moved[..., 2:] - moved[..., :2] < 2).any(-1, keepdim=True)
        return torch.where(thin, boxes, moved)


def _any_overlap(boxes: Tensor, others: Tensor, area: Tensor) -> Tensor:
    """Whether each of (B, N, 4) touches any of (B, M, 4) that has an area: bool (B, N)."""
    a, b = boxes[:, :, None], others[:, None]
    apart = (a[..., 2:] <= b[..., :2]) | (a[..., :2] >= b[..., 2:])
    return (~apart.any(-1) & (area > 0)[:, None]).any(-1)


def box_points(boxes_model: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes (B, N, 4) in model pixels -> points (B, N, 3, 2), labels (B, N, 3).

    The corners and a padding.
    """
    corners = boxes_model.unflatten(-1, (2, 2))
    points = torch.cat([corners, torch.zeros_like(corners[..., :1, :])], -2)
    return points, _labels(points, BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING)


def click_points(points_model: Tensor) -> tuple[Tensor, Tensor]:
    """Points (B, N, 2) in model pixels -> points (B, N, 3, 2), labels (B, N, 3).

    The point and two paddings, so that boxes and clicks can be decoded together.
    """
    point = points_model[..., None, :]
    points = torch.cat([point, torch.zeros_like(point), torch.zeros_like(point)], -2)
    return points, _labels(points, POINT_POSITIVE, POINT_PADDING, POINT_PADDING)


def _labels(points: Tensor, *kinds: int) -> Tensor:
    """Fill labels on the device: a copy from the host would wait for it."""
    shape, device = (*points.shape[:-2], 1), points.device
    columns = [torch.full(shape, kind, dtype=torch.int64, device=device) for kind in kinds]
    return torch.cat(columns, -1)


def with_correction(
    points: Tensor, labels: Tensor, extra_model: Tensor, positive: Tensor
) -> tuple[Tensor, Tensor]:
    """Put a correcting point (P, 2) before the padding point."""
    points = torch.cat([points[:, :-1], extra_model[:, None], points[:, -1:]], 1)
    kind = torch.where(positive, POINT_POSITIVE, POINT_NEGATIVE)
    labels = torch.cat([labels[:, :-1], kind[:, None], labels[:, -1:]], 1)
    return points, labels
