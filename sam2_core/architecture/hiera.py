"""The image encoder: Hiera trunk (Ryali et al. 2023, as SAM 2 uses it) and feature pyramid neck."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.layers import MLP
from sam2_core.presets import Preset


def pool2(x: Tensor) -> Tensor:
    """Max over 2x2 cells of a channels-last map (B, H, W, C)."""
    return F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


def to_windows(x: Tensor, side: int) -> Tensor:
    """Cut (B, H, W, C) into (B * windows, side, side, C), zero-padded at the right and bottom."""
    batch, height, width, channels = x.shape
    pad_h, pad_w = -height % side, -width % side
    if pad_h or pad_w:
        x = F.pad(x, (0, 0, 0, pad_w, 0, pad_h))
    rows, columns = (height + pad_h) // side, (width + pad_w) // side
    x = x.reshape(batch, rows, side, columns, side, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, side, side, channels)


def from_windows(windows: Tensor, side: int, height: int, width: int) -> Tensor:
    """Put windows back together and drop the padding: (B, height, width, C)."""
    rows, columns = -(-height // side), -(-width // side)
    x = windows.reshape(-1, rows, columns, side, side, windows.shape[-1])
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows * side, columns * side, windows.shape[-1])
    return x[:, :height, :width]


class PatchEmbed(nn.Module):
    """7x7 convolution with stride 4 to channels-last tokens."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, channels, 7, 4, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, S/4, S/4, C)."""
        return self.proj(pixels).permute(0, 2, 3, 1)


class MultiScaleAttention(nn.Module):
    """Self-attention inside each window, its queries pooled 2x2 where a stage begins."""

    def __init__(self, dim: int, dim_out: int, heads: int, *, pooled: bool) -> None:
        super().__init__()
        self.heads, self.pooled = heads, pooled
        self.qkv = nn.Linear(dim, dim_out * 3)
        self.proj = nn.Linear(dim_out, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, dim) -> (N, H', W', dim_out), H' = H / 2 when pooled."""
        count, height, width, _ = x.shape
        qkv = self.qkv(x).reshape(count, height * width, 3, -1)
        q, k, v = qkv.unbind(2)
        if self.pooled:
            q = pool2(q.reshape(count, height, width, -1))
            height, width = q.shape[1:3]
            q = q.reshape(count, height * width, -1)
        q, k, v = (
            part.reshape(count, part.shape[1], self.heads, -1).transpose(1, 2) for part in (q, k, v)
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(count, height, width, -1))


class MultiScaleBlock(nn.Module):
    """Transformer block; `window` 0 attends to the whole grid."""

    def __init__(self, dim: int, dim_out: int, heads: int, window: int, *, pooled: bool) -> None:
        super().__init__()
        self.window, self.pooled = window, pooled
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = MultiScaleAttention(dim, dim_out, heads, pooled=pooled)
        self.norm2 = nn.LayerNorm(dim_out, eps=1e-6)
        self.mlp = MLP(dim_out, 4 * dim_out, dim_out, 2, "gelu")
        if dim != dim_out:
            self.proj = nn.Linear(dim, dim_out)
        self.widens = dim != dim_out

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, dim) -> (B, H', W', dim_out)."""
        normal = self.norm1(x)
        shortcut = x
        if self.widens:
            shortcut = pool2(self.proj(normal)) if self.pooled else self.proj(normal)
        if self.window:
            attended = self.attn(to_windows(normal, self.window))
            side = self.window // 2 if self.pooled else self.window
            attended = from_windows(attended, side, shortcut.shape[1], shortcut.shape[2])
        else:
            attended = self.attn(normal)
        x = shortcut + attended
        return x + self.mlp(self.norm2(x))


class Hiera(nn.Module):
    """Four stages of blocks; returns the channels-last output of each."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(preset.embed_dim)
        height, width = preset.position_grid_hw
        side = preset.window_sizes[0]
        self.pos_embed = nn.Parameter(torch.zeros(1, preset.embed_dim, height, width))
        self.pos_embed_window = nn.Parameter(torch.zeros(1, preset.embed_dim, side, side))
        self.blocks = nn.ModuleList()
        self.stage_ends = [sum(preset.stages[: i + 1]) - 1 for i in range(4)]
        for stage, count in enumerate(preset.stages):
            for i in range(count):
                first = stage > 0 and i == 0
                # The window size lags a block behind: a stage's first block pools its queries
                # inside the windows of the stage before.
                window = preset.window_sizes[stage - 1 if first else stage]
                self.blocks.append(
                    MultiScaleBlock(
                        preset.channels[stage - 1 if first else stage],
                        preset.channels[stage],
                        preset.num_heads * 2**stage,
                        0 if len(self.blocks) in preset.global_blocks else window,
                        pooled=first,
                    )
                )

    def position_embedding(self, height: int, width: int) -> Tensor:
        """Return the resized background plus the tiled window embedding, (1, H, W, C)."""
        background = F.interpolate(self.pos_embed, (height, width), mode="bicubic")
        side = self.pos_embed_window.shape[-1]
        tiled = self.pos_embed_window.tile(1, 1, height // side, width // side)
        return (background + tiled).permute(0, 2, 3, 1)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """(B, 3, S, S) normalised -> four maps (B, S/4 / 2**i, S/4 / 2**i, C * 2**i)."""
        x = self.patch_embed(pixels)
        x = x + self.position_embedding(x.shape[1], x.shape[2]).to(x.dtype)
        outputs = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self.stage_ends:
                outputs.append(x)
        return outputs


class Lateral(nn.Module):
    """A 1x1 convolution under Meta's key `conv`."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 1)


class Neck(nn.Module):
    """Feature pyramid: all levels to one width; the coarsest two are summed top-down."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            Lateral(channels, preset.width) for channels in reversed(preset.channels)
        )

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """Four channels-last maps -> (B, width, ...) at strides 4, 8, 16.

        The stride-32 level only feeds the one above it, and the two finest get no top-down sum
        (`fpn_top_down_levels` 2, 3 in the published configuration).
        """
        maps = [self.convs[3 - i].conv(stage.permute(0, 3, 1, 2)) for i, stage in enumerate(stages)]
        coarse = F.interpolate(maps[3], scale_factor=2.0, mode="nearest")
        return [maps[0], maps[1], maps[2] + coarse]


class ImageEncoder(nn.Module):
    """Trunk and neck."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.trunk = Hiera(preset)
        self.neck = Neck(preset)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """(B, 3, S, S) normalised -> maps at strides 4, 8 and 16."""
        return self.neck(self.trunk(pixels))
