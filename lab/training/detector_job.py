"""Training the compact detector: one step from pictures to a loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.training.config import DetectorConfig, OptimizerName
from lab.training.data import CELL_PX, UNUSED
from lab.training.detector_loss import TrueBoxes, detector_loss
from lab.training.detector_model import cells, detector_of
from lab.training.photometric import Appearance
from lab.training.pool import PictureBatch, PicturePool, to_device
from lab.training.visible import visible_boxes
from sam2_core.types import AutolabelError

LETTERBOX_GREY = 114.0
MAX_TRUE_BOXES = 100
# Smaller parts are ignored rather than asked for: pixels of the network's input, and the share of
# the object's visible part that a crop leaves.
SMALLEST_AREA, SMALLEST_SHARE = 50.0, 0.3


@dataclass(frozen=True)
class Placement:
    """One picture on the network's canvas: a source rectangle, scaled to a place on it."""

    source: tuple[int, int, int, int]
    corner: tuple[int, int]
    size_hw: tuple[int, int]
    flipped: bool
    smooth: bool

    @property
    def scale_xy(self) -> tuple[float, float]:
        """Pixels of the canvas a pixel of the picture."""
        x1, y1, x2, y2 = self.source
        return self.size_hw[1] / (x2 - x1), self.size_hw[0] / (y2 - y1)


def place(
    size_hw: tuple[int, int], canvas_hw: tuple[int, int], generator: torch.Generator,
    *, plain: bool = False,
) -> Placement:  # fmt: skip
    """Draw a placement: the letterbox of inference (always, if `plain`), or another one."""
    height, width = size_hw
    rand = [float(value) for value in torch.rand(8, generator=generator)]
    if plain:
        rand[0] = 0.0
    scale = min(canvas_hw[0] / height, canvas_hw[1] / width)
    if rand[0] > 0.4:
        scale *= math.exp(-0.5 + 1.1 * rand[1])
    stretch = math.exp(0.2 * (rand[2] - 0.5)) if rand[0] > 0.4 else 1.0
    sx, sy = scale * stretch, scale / stretch
    source_w, source_h = min(width, int(canvas_hw[1] / sx)), min(height, int(canvas_hw[0] / sy))
    left, top = int((width - source_w) * rand[3]), int((height - source_h) * rand[4])
    out_w = min(canvas_hw[1], max(1, round(source_w * sx)))
    out_h = min(canvas_hw[0], max(1, round(source_h * sy)))
    corner = (0, 0)
    if rand[0] > 0.7:
        corner = int((canvas_hw[1] - out_w) * rand[5]), int((canvas_hw[0] - out_h) * rand[6])
    source = (left, top, left + source_w, top + source_h)
    return Placement(source, corner, (out_h, out_w), rand[7] < 0.5, rand[5] < 0.5)


def draw(image: Tensor, placement: Placement, canvas: Tensor) -> None:
    """Resize part of an image uint8 (H, W, 3) onto a canvas (3, h, w)."""
    x1, y1, x2, y2 = placement.source
    part = image[y1:y2, x1:x2].permute(2, 0, 1)[None].float()
    part = F.interpolate(
        part, placement.size_hw, mode="bilinear", antialias=placement.smooth, align_corners=False
    )
    x, y = placement.corner
    height, width = placement.size_hw
    canvas[:, y : y + height, x : x + width] = part[0].flip(-1) if placement.flipped else part[0]


@dataclass(frozen=True, eq=False)
class Placed:
    """Placements of B pictures on the device: float32 (B, 1, 4), (B, 1, 2) and bool (B, 1, 1)."""

    frame: Tensor
    scale: Tensor
    corner: Tensor
    flipped: Tensor

    @staticmethod
    def of(placements: list[Placement], device: torch.device) -> Placed:
        """Take placements to the device."""
        rows = [(*p.source, *p.scale_xy, *p.corner, float(p.flipped)) for p in placements]
        table = to_device(torch.tensor(rows, dtype=torch.float32), device)[:, None]
        return Placed(table[..., :4], table[..., 4:6], table[..., 6:8], table[..., 8:] > 0)

    def to_canvas(self, boxes_px: Tensor) -> Tensor:
        """Boxes (B, M, 4) of the pictures -> of the canvases."""
        frame = self.frame
        low, high = boxes_px[..., :2] - frame[..., :2], boxes_px[..., 2:] - frame[..., :2]
        width = frame[..., 2:3] - frame[..., :1]
        mirrored = torch.cat(
            [width - high[..., :1], low[..., 1:], width - low[..., :1], high[..., 1:]], -1
        )
        placed = torch.where(self.flipped, mirrored, torch.cat([low, high], -1))
        return placed * self.scale.repeat(1, 1, 2) + self.corner.repeat(1, 1, 2)

    def to_picture(self, points: Tensor) -> Tensor:
        """Points (A, 2) of the canvases -> of each picture, (B, A, 2)."""
        inside = (points - self.corner) / self.scale
        width = self.frame[..., 2:3] - self.frame[..., :1]
        x = torch.where(self.flipped, width - inside[..., :1], inside[..., :1])
        return torch.cat([x, inside[..., 1:]], -1) + self.frame[..., :2]


def true_boxes(batch: PictureBatch, placed: Placed) -> TrueBoxes:
    """Boxes of what is visible on the canvas, in its pixels."""
    classes, frame = batch.classes, placed.frame
    boxes, area = visible_boxes(batch.ids, frame[:, 0].long())
    low, high = frame[..., :2].repeat(1, 1, 2), frame[..., 2:].repeat(1, 1, 2)
    left = batch.boxes_px.maximum(low).minimum(high)
    boxes = torch.where(batch.boxed[..., None], left, boxes)
    left_area = (left[..., 2:] - left[..., :2]).clamp(min=0).prod(-1)
    area = torch.where(batch.boxed, left_area, area)
    small = area * placed.scale.prod(-1) < SMALLEST_AREA
    small |= area < SMALLEST_SHARE * batch.area_px
    kinds = torch.where(small, -1, classes.clamp(min=-1))
    valid = (area > 0) & (classes != UNUSED)
    order = (valid.float() * area).topk(MAX_TRUE_BOXES, dim=1).indices
    return TrueBoxes(
        placed.to_canvas(boxes).gather(1, order[..., None].expand(-1, -1, 4)),
        kinds.gather(1, order),
        valid.gather(1, order),
    )


def unlabeled_classes(batch: PictureBatch, placed: Placed, centres: Tensor, count: int) -> Tensor:
    """Say for points (A, 2) of the canvases which classes have no labels there: bool (B, A, C)."""
    rows, columns = batch.unlabeled.shape[1:]
    cell = (placed.to_picture(centres) / CELL_PX).long()
    place = cell[..., 1].clamp(0, rows - 1) * columns + cell[..., 0].clamp(0, columns - 1)
    bits = batch.unlabeled.flatten(1).long().gather(1, place)
    return (bits[..., None] >> torch.arange(count, device=bits.device)) % 2 > 0


class DetectorJob:
    """The detector, what it learns from and how it is judged."""

    name = "detector"

    def __init__(
        self, config: DetectorConfig, names: tuple[str, ...], pool: PicturePool, seed: int
    ) -> None:
        self.config, self.names, self.pool = config, names, pool
        self.device = pool.device
        self.learning_rate, self.weight_decay = config.learning_rate, config.weight_decay
        self.optimizer: OptimizerName = "adamw"
        torch.manual_seed(seed)
        network = detector_of(config, len(names))
        self.model = network.to(self.device, memory_format=torch.channels_last).train()
        draw = seed + 1
        self.host = torch.Generator().manual_seed(draw)
        self.appearance = Appearance(torch.Generator(self.device).manual_seed(draw))
        self.grid, self.strides = cells(config.input_hw, self.device)

    def step(self, progress: float) -> dict[str, Tensor]:
        """Draw a batch, leave its gradients in the model; return what to plot."""
        pixels, truth, unlabeled = self.draw(plain=progress > 1 - self.config.closing)
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            boxes, logits = self.model(pixels)
        loss, numbers = detector_loss(
            boxes, logits, truth, unlabeled, grid=self.grid, strides=self.strides
        )
        loss.backward()
        return dict(numbers)

    @torch.no_grad()
    def draw(self, *, plain: bool) -> tuple[Tensor, TrueBoxes, Tensor]:
        """Place pictures on canvases: pixels (B, 3, H, W) BGR, boxes, and what has no labels."""
        count = self.config.batch
        batch = self.pool.sample(count, self.host)
        size_hw, canvas_hw = (batch.ids.shape[1], batch.ids.shape[2]), self.config.input_hw
        placements = [place(size_hw, canvas_hw, self.host, plain=plain) for _ in range(count)]
        canvas = torch.full((count, 3, *canvas_hw), LETTERBOX_GREY, device=self.device)
        drawn = torch.zeros_like(canvas[:, :1], dtype=torch.bool)
        for image, placement, target, mark in zip(
            batch.images, placements, canvas, drawn, strict=True
        ):
            draw(image, placement, target)
            (x, y), (height, width) = placement.corner, placement.size_hw
            mark[:, y : y + height, x : x + width] = True
        if not plain:
            canvas = torch.where(drawn, self.appearance(canvas), canvas)
        pixels = canvas.flip(1).contiguous(memory_format=torch.channels_last)
        placed = Placed.of(placements, self.device)
        centres = (self.grid + 0.5) * self.strides
        unlabeled = unlabeled_classes(batch, placed, centres, len(self.names))
        return pixels, true_boxes(batch, placed), unlabeled

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take weights over."""
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise AutolabelError(f"weights do not fit the detector: {error}") from error
