"""What SAM 2's memory needs and PyTorch has no fast kernel for, in Triton, for halves.

Attention's two products, and those of the memory encoder's convolutions that have few channels or
take each channel by itself. Objects remember unequal numbers of frames: their keys lie one behind
the other, unpadded. Values are narrower than keys (64 to 256 in the published sizes), which
PyTorch's kernels do not take.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.tools.tensor_descriptor import TensorDescriptor

from sam2_core.architecture.hiera import LayerNorm2d


@triton.jit
def _turned(  # type: ignore[no-untyped-def]
    x, weight, bias, cosine, sine, cells, out, rows, cell_count,
    wide: tl.constexpr, pairs: tl.constexpr, chunk: tl.constexpr, rows_each: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * rows_each + tl.arange(0, rows_each)
    there = row[:, None] < rows
    channel, pair = tl.arange(0, chunk), tl.arange(0, pairs)
    first = tl.zeros((rows_each, pairs), tl.float32)
    second = tl.zeros((rows_each, pairs), tl.float32)
    for start in range(0, wide, chunk):
        part = tl.load(x + row[:, None] * wide + start + channel[None, :], there, 0.0)
        weights = weight + pair[None, :] * wide + start + channel[:, None]
        first = tl.dot(part, tl.load(weights), first)
        second = tl.dot(part, tl.load(weights + pairs * wide), second)
    first += tl.load(bias + pair)[None, :]
    second += tl.load(bias + pairs + pair)[None, :]
    cell = tl.load(cells + row % cell_count, row < rows, 0)
    angle = cell[:, None] * pairs + pair[None, :]
    c, s = tl.load(cosine + angle), tl.load(sine + angle)
    to = out + row[:, None] * (2 * pairs) + pair[None, :]
    tl.store(to, (first * c - second * s).to(out.dtype.element_ty), there)
    tl.store(to + pairs, (first * s + second * c).to(out.dtype.element_ty), there)


def turned_by_kernel(
    projection: nn.Linear, x: Tensor, cosine: Tensor, sine: Tensor, cells: Tensor | None
) -> Tensor:
    """Project rows (..., N, w) and turn each by its cell's angles: (..., N, d).

    Args:
        projection: w to d channels, in halves; the first halves of all pairs come first.
        x: halves.
        cosine: float32 (C, d / 2).
        sine: the same.
        cells: int64 (N,), rows of them; None for all of them in order.

    """
    x = x.contiguous()
    if cells is None:
        cells = torch.arange(len(cosine), device=x.device)
    wide, rows_each = x.shape[-1], 64
    rows = x.numel() // wide
    out = x.new_empty(*x.shape[:-1], projection.out_features)
    _turned[(triton.cdiv(rows, rows_each),)](
        x, projection.weight, projection.bias, cosine, sine, cells, out, rows, len(cells),
        wide=wide, pairs=projection.out_features // 2, chunk=min(wide, 64), rows_each=rows_each,
    )  # fmt: skip
    return out


@triton.jit
def _attended(  # type: ignore[no-untyped-def]
    q, k, v, ends, out, scale, queries, q_stride,
    wide: tl.constexpr, narrow: tl.constexpr, rows_each: tl.constexpr, keys_each: tl.constexpr,
    described: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(1)
    first, last = tl.load(ends + item), tl.load(ends + item + 1)
    row = tl.program_id(0) * rows_each + tl.arange(0, rows_each)
    there = row[:, None] < queries
    channel, value = tl.arange(0, wide), tl.arange(0, narrow)
    mine = tl.load(q + item * q_stride + row[:, None] * wide + channel[None, :], there, 0.0)
    most = tl.full((rows_each,), float("-inf"), tl.float32)
    total = tl.zeros((rows_each,), tl.float32)
    sums = tl.zeros((rows_each, narrow), tl.float32)
    whole = first + (last - first) // keys_each * keys_each
    for start in range(first, whole, keys_each):  # without masks: nearly twice as fast
        if described:
            keys, values = k.load([start, 0]).T, v.load([start, 0])
        else:
            key = start + tl.arange(0, keys_each)
            keys = tl.load(k + key[None, :] * wide + channel[:, None])
            values = tl.load(v + key[:, None] * narrow + value[None, :])
        most, total, sums = _summed(tl.dot(mine, keys), values, scale, most, total, sums)
    if whole < last:
        key = whole + tl.arange(0, keys_each)
        inside = key < last
        if described:  # those behind the last are the next object's, or zeros
            keys, values = k.load([whole, 0]).T, v.load([whole, 0])
        else:
            keys = tl.load(k + key[None, :] * wide + channel[:, None], inside[None, :], 0.0)
            values = tl.load(v + key[:, None] * narrow + value[None, :], inside[:, None], 0.0)
        scores = tl.where(inside[None, :], tl.dot(mine, keys), float("-inf"))
        most, total, sums = _summed(scores, values, scale, most, total, sums)
    to = out + (item * queries + row[:, None]) * narrow + value[None, :]
    tl.store(to, (sums / total[:, None]).to(out.dtype.element_ty), there)


@triton.jit
def _summed(scores, values, scale, most, total, sums):  # type: ignore[no-untyped-def]
    higher = tl.maximum(most, tl.max(scores, 1) * scale)
    weights, kept = tl.exp2(scores * scale - higher[:, None]), tl.exp2(most - higher)
    total = total * kept + tl.sum(weights, 1)
    return higher, total, tl.dot(weights.to(values.dtype), values, sums * kept[:, None])


def attended(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
    """Let each of O objects' queries attend to its own keys.

    Args:
        q: (1 or O, N, d), halves.
        k: (K, d), of all objects, one behind the other.
        v: (K, e).
        ends: int32 (O + 1,), row of each object's first key, and K.

    Returns:
        (O, N, e).

    """
    q, count, (cells, wide) = q.contiguous(), len(ends) - 1, q.shape[1:]
    out = q.new_empty(count, cells, v.shape[1])
    scale = wide**-0.5 * 1.4426950408889634  # of powers of two
    # Measured on an H200. Each block of rows reads all of its object's keys: 64 rows wait for them.
    rows_each, keys_each, warps, stages = 128, 64, 4, 3
    described = False
    if wide > 128:
        # Hoppers have the memory for 128 of these, and fetch blocks that are described to them;
        # narrower ones came out wrong (Triton 3.6).
        described = q.is_cuda and torch.cuda.get_device_capability(q.device) == (9, 0)
        rows_each, keys_each, warps, stages = (128, 64, 8, 3) if described else (64, 32, 4, 2)
    if described:
        k, v = (TensorDescriptor.from_tensor(x, [keys_each, x.shape[1]]) for x in (k, v))
    _attended[(triton.cdiv(cells, rows_each), count)](
        q, k, v, ends, out, scale, cells, q.stride(0) if len(q) > 1 else 0,
        wide=wide, narrow=v.shape[1], rows_each=rows_each, keys_each=keys_each,
        described=described, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit
def _weighted(  # type: ignore[no-untyped-def]
    x, weight, bias, out, cells, size, channels,
    side: tl.constexpr, cells_each: tl.constexpr, channels_each: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0) * cells_each + tl.arange(0, cells_each)
    channel = tl.program_id(1) * channels_each + tl.arange(0, channels_each)
    row, column, wanted = cell // size % size, cell % size, channel < channels
    total = tl.zeros((cells_each, channels_each), tl.float32)
    total += tl.load(bias + channel, wanted, 0.0).to(tl.float32)[None, :]
    for place in tl.static_range(side * side):
        down, right = place // side - side // 2, place % side - side // 2
        inside = (row + down >= 0) & (row + down < size) & (cell < cells)
        inside = inside & (column + right >= 0) & (column + right < size)
        at = (cell + down * size + right)[:, None] * channels + channel[None, :]
        value = tl.load(x + at, inside[:, None] & wanted[None, :], 0.0).to(tl.float32)
        factor = tl.load(weight + place * channels + channel, wanted, 0.0).to(tl.float32)
        total += value * factor[None, :]
    to = out + cell[:, None] * channels + channel[None, :]
    tl.store(to, total.to(out.dtype.element_ty), (cell < cells)[:, None] & wanted[None, :])


def depthwise(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Convolve each channel of (O, E, E, w), halves, with its own weights (w, 1, k, k)."""
    x = x.contiguous()
    size, channels = x.shape[2:]
    cells, out = x.numel() // channels, torch.empty_like(x)
    weight = conv.weight.flatten(1).t().contiguous()
    _weighted[(triton.cdiv(cells, 64), triton.cdiv(channels, 64))](
        x, weight, conv.bias, out, cells, size, channels,
        side=conv.weight.shape[-1], cells_each=64, channels_each=64,
    )  # fmt: skip
    return out


@triton.jit
def _downsampled(  # type: ignore[no-untyped-def]
    x, weight, bias, scale, shift, out, size, eps,
    narrow: tl.constexpr, wide: tl.constexpr, places: tl.constexpr, cells_each: tl.constexpr,
):  # fmt: skip
    item, half = tl.program_id(1), size // 2
    cell = tl.program_id(0) * cells_each + tl.arange(0, cells_each)
    there, channel = cell < half * half, tl.arange(0, wide)
    total = tl.zeros((cells_each, wide), tl.float32)
    total += tl.load(bias + channel).to(tl.float32)[None, :]
    first = item * size * size
    if wide >= 16:  # a product of matrices: rows of cells, columns of the 3x3 places' channels
        place = tl.arange(0, places)
        row = (cell // half * 2 - 1)[:, None] + (place // narrow // 3)[None, :]
        column = (cell % half * 2 - 1)[:, None] + (place // narrow % 3)[None, :]
        used = place < 9 * narrow
        inside = there[:, None] & used[None, :] & (row >= 0) & (column >= 0)
        at = (first + row * size + column) * narrow + (place % narrow)[None, :]
        value = tl.load(x + at, inside, 0.0)
        factor = tl.load(weight + place[:, None] * wide + channel[None, :], used[:, None], 0.0)
        total = tl.dot(value, factor, total)
    else:
        for place in tl.static_range(9 * narrow):
            row = cell // half * 2 + place // narrow // 3 - 1
            column = cell % half * 2 + place // narrow % 3 - 1
            at = (first + row * size + column) * narrow + place % narrow
            value = tl.load(x + at, there & (row >= 0) & (column >= 0), 0.0).to(tl.float32)
            factor = tl.load(weight + place * wide + channel).to(tl.float32)
            total += value[:, None] * factor[None, :]
    centred = total - (tl.sum(total, 1) / wide)[:, None]
    variance = tl.sum(centred * centred, 1) / wide
    normal = centred / tl.sqrt(variance + eps)[:, None]
    y = normal * tl.load(scale + channel).to(tl.float32)[None, :]
    y += tl.load(shift + channel).to(tl.float32)[None, :]
    y = 0.5 * y * (1 + tl.erf(y * 0.7071067811865476))
    to = out + (item * half * half + cell)[:, None] * wide + channel[None, :]
    tl.store(to, y.to(out.dtype.element_ty), there[:, None])


def downsampled(x: Tensor, conv: nn.Conv2d, norm: LayerNorm2d) -> Tensor:
    """Convolve (O, c, S, S), halves, with 3x3 and stride 2, normalise, GELU: (O, w, S/2, S/2).

    Channels lie side by side in memory, as kernels for many channels want them.
    """
    x = x.permute(0, 2, 3, 1).contiguous()
    objects, size, _, narrow = x.shape
    half, wide, cells_each = size // 2, conv.out_channels, 128
    out = x.new_empty(objects, half, half, wide)
    weight = conv.weight.permute(2, 3, 1, 0).contiguous()
    _downsampled[(triton.cdiv(half * half, cells_each), objects)](
        x, weight, conv.bias, norm.weight, norm.bias, out, size, norm.eps,
        narrow=narrow, wide=wide, places=triton.next_power_of_2(max(9 * narrow, 16)),
        cells_each=cells_each,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)
