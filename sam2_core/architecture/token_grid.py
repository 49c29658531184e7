"""Tokens of an image as a grid: attention among them, windows cut out of it, pooling."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

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
