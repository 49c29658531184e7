"""The compact detector: a small anchor-free network with YOLOX's input and output.

Strides 8, 16 and 32, one prediction a cell, a decoupled head (YOLOX, Ge et al. 2021). What leaves
the network is what YOLOX's ONNX files give: rows of (x, y, w, h, objectness, classes), x and y as
offsets in cells, w and h as logarithms of cells, to be decoded with the grid; scores after the
sigmoid. This one learns one quality score a class, so its objectness is 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.training.config import DetectorConfig

STRIDES = (8, 16, 32)
# Centre and scale of grey levels inside the network; its input is BGR 0..255.
PIXEL_CENTRE, PIXEL_SCALE = 114.0, 64.0
PRIOR_PROBABILITY = 0.01


class Conv(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(self, before: int, after: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(after, eps=1e-3, momentum=0.03)

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) -> (B, after, H / stride, W / stride)."""
        return F.silu(self.norm(self.conv(x)))


class Residual(nn.Module):
    """Two convolutions around an optional shortcut."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second = Conv(channels, channels), Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        y = self.second(self.first(x))
        return x + y if self.shortcut else y


class Csp(nn.Module):
    """Cross-stage partial block: half of the channels go through the residual blocks."""

    def __init__(self, before: int, after: int, blocks: int, *, shortcut: bool = True) -> None:
        super().__init__()
        half = after // 2
        self.main, self.aside = Conv(before, half), Conv(before, half)
        self.blocks = nn.Sequential(*(Residual(half, shortcut=shortcut) for _ in range(blocks)))
        self.merge = Conv(2 * half, after)

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) -> (B, after, H, W)."""
        return self.merge(torch.cat([self.blocks(self.main(x)), self.aside(x)], 1))


class PyramidPooling(nn.Module):
    """Three chained 5x5 max poolings: wide context at the coarsest level."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = Conv(channels, channels // 2)
        self.merge = Conv(channels * 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        maps = [self.reduce(x)]
        for _ in range(3):
            maps.append(F.max_pool2d(maps[-1], 5, 1, 2))
        return self.merge(torch.cat(maps, 1))


class Head(nn.Module):
    """Classes and boxes of one level, each with two convolutions of its own."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = Conv(channels, width)
        self.class_path = nn.Sequential(Conv(width, width, 3), Conv(width, width, 3))
        self.box_path = nn.Sequential(Conv(width, width, 3), Conv(width, width, 3))
        self.classes, self.box = nn.Conv2d(width, classes, 1), nn.Conv2d(width, 4, 1)
        bias = torch.logit(torch.tensor(PRIOR_PROBABILITY)).item()
        nn.init.constant_(self.classes.bias, bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, channels, H, W) -> boxes (B, H * W, 4) and class logits (B, H * W, C)."""
        x = self.stem(x)
        boxes, classes = self.box(self.box_path(x)), self.classes(self.class_path(x))
        return boxes.flatten(2).transpose(1, 2), classes.flatten(2).transpose(1, 2)


class CompactDetector(nn.Module):
    """Backbone, path aggregation, three heads."""

    def __init__(
        self, classes: int, width: int = 20, depth: int = 2, head: int = 56,
        deep: tuple[int, int] = (160, 160),
    ) -> None:  # fmt: skip
        """Build it.

        Args:
            classes: how many.
            width: channels of the first layer; the others up to stride 8 have multiples of it.
            depth: blocks a stage.
            head: channels of the heads.
            deep: channels at strides 16 and 32.

        """
        super().__init__()
        w, (w16, w32) = width, deep
        self.stem = nn.Sequential(Conv(3, w, 3, 2), Conv(w, 2 * w, 3, 2), Csp(2 * w, 2 * w, 1))
        self.stage8 = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), Csp(4 * w, 4 * w, depth))
        self.stage16 = nn.Sequential(Conv(4 * w, w16, 3, 2), Csp(w16, w16, depth))
        self.stage32 = nn.Sequential(
            Conv(w16, w32, 3, 2), PyramidPooling(w32), Csp(w32, w32, 1, shortcut=False)
        )
        neck = 4 * w
        self.lateral = nn.ModuleList(Conv(c, neck) for c in (4 * w, w16, w32))
        self.down_path = nn.ModuleList(Csp(2 * neck, neck, 1, shortcut=False) for _ in range(2))
        self.shrink = nn.ModuleList(Conv(neck, neck, 3, 2) for _ in range(2))
        self.up_path = nn.ModuleList(Csp(2 * neck, neck, 1, shortcut=False) for _ in range(2))
        self.heads = nn.ModuleList(Head(neck, head, classes) for _ in STRIDES)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Predict.

        Args:
            images: (B, 3, H, W) BGR 0..255, sides divisible by 32.

        Returns:
            Boxes (B, A, 4), not decoded, and class logits (B, A, C); A cells, fine levels first.

        """
        c4 = self.stem((images - PIXEL_CENTRE) / PIXEL_SCALE)
        c8 = self.stage8(c4)
        c16 = self.stage16(c8)
        p8, p16, p32 = (
            layer(x) for layer, x in zip(self.lateral, (c8, c16, self.stage32(c16)), strict=True)
        )
        p16 = self.down_path[0](torch.cat([_double(p32), p16], 1))
        p8 = self.down_path[1](torch.cat([_double(p16), p8], 1))
        n16 = self.up_path[0](torch.cat([self.shrink[0](p8), p16], 1))
        n32 = self.up_path[1](torch.cat([self.shrink[1](n16), p32], 1))
        parts = [head(x) for head, x in zip(self.heads, (p8, n16, n32), strict=True)]
        return torch.cat([boxes for boxes, _ in parts], 1), torch.cat([c for _, c in parts], 1)


def detector_of(config: DetectorConfig, classes: int) -> CompactDetector:
    """Build the network of a configuration."""
    return CompactDetector(classes, config.width, config.depth, config.head, config.deep)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class YoloxOutput(nn.Module):
    """The network with YOLOX's output: one tensor `output` (B, A, 5 + C)."""

    def __init__(self, network: CompactDetector) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) BGR 0..255 -> (B, A, 5 + C)."""
        boxes, classes = self.network(images)
        return torch.cat([boxes, torch.ones_like(boxes[..., :1]), classes.sigmoid()], -1)


def cells(input_hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Grid coordinates (A, 2) x, y in cells and strides (A, 1), in the network's order."""
    grids, strides = [], []
    for stride in STRIDES:
        height, width = input_hw[0] // stride, input_hw[1] // stride
        rows = torch.arange(height, device=device, dtype=torch.float32)
        columns = torch.arange(width, device=device, dtype=torch.float32)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        grids.append(torch.stack([x, y], -1).reshape(-1, 2))
        strides.append(torch.full((height * width, 1), float(stride), device=device))
    return torch.cat(grids), torch.cat(strides)


def decode_boxes(boxes: Tensor, grid: Tensor, strides: Tensor) -> Tensor:
    """Decode as YOLOX does: (B, A, 4) -> left, top, right, bottom in pixels of the input."""
    boxes = boxes.float()
    centre = (boxes[..., :2] + grid) * strides
    half = boxes[..., 2:].clamp(max=8).exp() * strides / 2
    return torch.cat([centre - half, centre + half], -1)
