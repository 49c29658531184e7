"""The image encoder: Hiera trunk (Ryali et al. 2023, as SAM 2 uses it) and feature pyramid neck.

The layers that come first are also those of the prompt encoder and the decoder.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.presets import Preset

ROWS = 256  # queries at a time where every token of the grid sees every other


def attend(q: Tensor, k: Tensor, v: Tensor, *, fused: bool) -> Tensor:
    """Attention over (..., N, d) with scaled queries; `fused` uses PyTorch's own kernels."""
    if fused:
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def attend_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over (N, heads, T, d) as `attend`, in the form that ONNX Runtime's CPU runs best.

    Windows and heads are one axis: the keys' transposition would else be joined with that by head,
    which copies value by value instead of being a part of the product. Many queries are taken head
    by head, `ROWS` at a time: the scores of 4096 tokens to each other are 64 MB a head; written,
    normalised and read again they go through memory three times, those of a part stay in the cache.
    """
    if q.shape[2] <= ROWS:
        queries, keys, values = (x.flatten(0, 1) for x in (q, k, v))
        out = (queries @ keys.transpose(1, 2)).softmax(-1) @ values
        return out.unflatten(0, (-1, q.shape[1]))
    heads = []
    for queries, keys, values in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True):
        turned = keys.transpose(1, 2)
        parts = [(part @ turned).softmax(-1) @ values for part in queries.split(ROWS, 1)]
        heads.append(torch.cat(parts, 1))
    return torch.stack(heads, 1)


def pooled(x: Tensor, *, elementwise: bool) -> Tensor:
    """Max over 2x2 cells of (B, H, W, C): rows, then columns.

    A maximum of two slices suits GPUs; ONNX Runtime copies slices on a CPU, and reduces in place.
    """
    batch, height, width, channels = x.shape
    if elementwise:
        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
        rows = torch.maximum(x[:, :, 0], x[:, :, 1])
        return torch.maximum(rows[:, :, :, 0], rows[:, :, :, 1])
    rows = x.reshape(batch, height // 2, 2, width * channels).amax(2)
    return rows.reshape(batch, height // 2, width // 2, 2, channels).amax(3)


def cut(x: Tensor, window: int) -> Tensor:
    """Cut (B, H, H, C) into windows (B * windows, w, w, C), zero-padded to whole ones.

    A zero is what a padding token's key and value are without their biases.
    """
    batch, side, _, channels = x.shape
    missing = -side % window
    if missing:
        x = torch.cat([x, x.new_zeros(batch, side, missing, channels)], 2)
        x = torch.cat([x, x.new_zeros(batch, missing, side + missing, channels)], 1)
    count = (side + missing) // window
    if count == 1:
        return x
    x = x.reshape(-1, count, window, count, window, channels).transpose(2, 3)
    return x.reshape(-1, window, window, channels)


def joined(x: Tensor, side: int) -> Tensor:
    """Put windows (B * windows, w, w, C) together again, (B, H, H, C), without their padding."""
    window, channels = x.shape[1], x.shape[3]
    count = -(-side // window)
    if count > 1:
        x = x.reshape(-1, count, count, window, window, channels).transpose(2, 3)
        x = x.reshape(-1, count * window, count * window, channels)
    return x if count * window == side else x[:, :side, :side]


class LayerNorm2d(nn.Module):
    """Layer normalisation over the channels of (N, C, H, W)."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each pixel's channels."""
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        variance = (centred * centred).mean(1, keepdim=True)
        normal = centred / torch.sqrt(variance + self.eps)
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


class MLP(nn.Module):
    """Linear layers `layers.0..n-1` with an activation between them.

    `activation` is "relu" (decoder) or "gelu" (trunk).
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, out_dim: int, layers: int, activation: str = "relu"
    ) -> None:
        super().__init__()
        dims = [in_dim, *[hidden_dim] * (layers - 1), out_dim]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(dims))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < last:
                x = F.relu(x) if self.activation == "relu" else F.gelu(x)
        return x


def pool2(x: Tensor) -> Tensor:
    """Max over 2x2 cells of a channels-last map (B, H, W, C)."""
    return F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


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
            attended = joined(self.attn(cut(normal, self.window)), shortcut.shape[1])
        else:
            attended = self.attn(normal)
        x = shortcut + attended
        return x + self.mlp(self.norm2(x))


class Hiera(nn.Module):
    """Four stages of blocks; returns the channels-last output of each."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        # 7x7 convolution with stride 4 to tokens.
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, preset.embed_dim, 7, 4, 3)})
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
        x = self.patch_embed.proj(pixels).permute(0, 2, 3, 1)
        x = x + self.position_embedding(x.shape[1], x.shape[2]).to(x.dtype)
        outputs = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self.stage_ends:
                outputs.append(x)
        return outputs


class Neck(nn.Module):
    """Feature pyramid: all levels to one width; the coarsest two are summed top-down."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.ModuleDict({"conv": nn.Conv2d(channels, preset.width, 1)})
            for channels in reversed(preset.channels)
        )

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """Four channels-last maps -> (B, width, ...) at strides 4, 8, 16.

        The stride-32 level only feeds the one above it, and the two finest get no top-down sum
        (`fpn_top_down_levels` 2, 3 in the published configuration).
        """
        maps = [self.convs[3 - i].conv(stage.permute(0, 3, 1, 2)) for i, stage in enumerate(stages)]
        coarse = F.interpolate(maps[3], scale_factor=2.0, mode="nearest")
        return [maps[0], maps[1], maps[2] + coarse]
