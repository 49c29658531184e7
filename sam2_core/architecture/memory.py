"""SAM 2's memory of video, with Meta's state-dict keys: attention to it, its encoder, pointers.

`memory_graphs` has the modules that run and are exported; these hold the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.hiera import MLP, ROWS, LayerNorm2d
from sam2_core.architecture.mask_decoder import MaskDecoder
from sam2_core.architecture.model import fill_randomly
from sam2_core.presets import Preset

FUSER_LAYERS = 2
# Places in the table of times: the previous frame is 0, the sixth before is 5, conditioning is 6.
RECENT_MEMORIES = 6
CONDITIONING_PLACE = RECENT_MEMORIES
TEMPERATURE = 10_000.0
NARROWEST = 16  # channels that a kernel of `memory_kernels` takes

Turns = tuple[Tensor, Tensor]  # cosine and sine of each cell's angles, (N, inner / 2)


def waves(values: Tensor, pairs: int) -> Tensor:
    """Return angles at geometrically falling frequencies, two alike at a time: (..., 2 * pairs)."""
    exponents = torch.arange(2 * pairs, device=values.device) // 2 / pairs
    return values[..., None] / TEMPERATURE**exponents


def grid_position(side: int, width: int) -> Tensor:
    """Sine encoding of a square grid, (side * side, width): first half y, second half x."""
    steps = torch.arange(1, side + 1, dtype=torch.float32) / (side + 1e-6) * (2 * math.pi)
    angles = waves(steps, width // 4).unflatten(-1, (-1, 2))
    axis = torch.stack([angles[..., 0].sin(), angles[..., 1].cos()], -1).flatten(-2)
    rows, columns = axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)
    return torch.cat([rows, columns], -1).flatten(0, 1)


def age_encoding(ages: Tensor, width: int) -> Tensor:
    """Sine encoding of ages in frames divided by 15, (...) -> (..., width)."""
    angles = waves(ages, width // 4)
    return torch.cat([angles.sin(), angles.cos()], -1)


def sent(values: Sequence[float], device: torch.device) -> Tensor:
    """Copy numbers to a device without waiting for what it does."""
    return torch.tensor(values).to(device, non_blocking=True)


class Rotations(nn.Module):
    """Cosine and sine of each cell's angles, (side * side, width / 2): first half x, second y."""

    keeps_float32 = True

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        frequencies = TEMPERATURE ** -(torch.arange(0, width, 4) / width)
        angles = torch.arange(side, dtype=torch.float32)[:, None] * frequencies
        columns, rows = angles[None].expand(side, -1, -1), angles[:, None].expand(-1, side, -1)
        both = torch.cat([columns, rows], -1).flatten(0, 1)
        self.register_buffer("cosine", both.cos())
        self.register_buffer("sine", both.sin())

    def forward(self, frames: int, tokens: int) -> Turns:
        """Repeat them for frames, one behind the other, and for tokens that are not turned."""
        still = self.cosine.new_zeros(tokens, self.cosine.shape[1])
        cosine = torch.cat([self.cosine.repeat(frames, 1), still + 1])
        return cosine, torch.cat([self.sine.repeat(frames, 1), still])


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn pairs of channels, i and w / 2 + i, (O, N, w) by (N, w / 2), in float32."""
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
    return turned.to(x.dtype)


def in_halves_on_gpu(x: Tensor) -> bool:
    """Whether `memory_kernels` are for it."""
    return x.is_cuda and x.dtype in {torch.float16, torch.bfloat16}


def has_kernels(weight: Tensor) -> bool:
    """Whether kernels of `memory_kernels` take what has such weights."""
    return in_halves_on_gpu(weight) and min(weight.shape) >= NARROWEST


def turned(projection: nn.Linear, x: Tensor, turns: Turns, cells: Tensor | None = None) -> Tensor:
    """Project (..., N, w) and turn by the angles of N cells, of all in order if None."""
    if has_kernels(projection.weight):
        from sam2_core.architecture.memory_kernels import turned_by_kernel

        return turned_by_kernel(projection, x, *turns, cells)
    return rotated(projection(x), *(turns if cells is None else (turn[cells] for turn in turns)))


class RotaryAttention(nn.Module):
    """One head whose queries and keys are turned by their position, their channels in halves.

    Checkpoints have the pairs that are turned beside each other; see `memory_graphs.Recall`.
    """

    def __init__(self, width: int, key_width: int, inner: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, inner)
        self.k_proj = nn.Linear(key_width, inner)
        self.v_proj = nn.Linear(key_width, inner)
        self.out_proj = nn.Linear(inner, width)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        query_turns: Turns,
        key_turns: Turns,
        *,
        fused: bool,
    ) -> Tensor:
        """Attend.

        Args:
            queries: (1 or O, N, w).
            keys: (O, K, key_width).
            values: (O, K, key_width).
            query_turns: cosine and sine, (N, inner / 2).
            key_turns: the same of the keys, (K, inner / 2).
            fused: by PyTorch's kernel; otherwise by plain products of `ROWS` queries at a time, so
                that scores of all cells to all memories are never held.

        Returns:
            (O, N, w).

        """
        q = turned(self.q_proj, queries, query_turns)
        k = turned(self.k_proj, keys, key_turns)
        if fused:
            v = self.v_proj(values)
            q = q.expand(k.shape[0], -1, -1)
            out = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
            return self.out_proj(out)
        # A query's weights sum to 1, so narrow values may be projected after they are summed.
        narrow = values.shape[-1] < k.shape[-1]
        v = values if narrow else self.v_proj(values)
        transposed, scaled = k.transpose(1, 2), q * q.shape[-1] ** -0.5
        out = torch.cat([(part @ transposed).softmax(-1) @ v for part in scaled.split(ROWS, 1)], 1)
        return self.out_proj(self.v_proj(out) if narrow else out)

    def packed(self, queries: Tensor, remembered: Packed, turns: Turns) -> Tensor:
        """Attend as `forward`, fused, without padding; values are projected after they are summed.

        Args:
            queries: (1 or O, N, w).
            remembered: of O objects.
            turns: of all cells, and one more that is not turned.

        Returns:
            (O, N, w).

        """
        cosine, sine = turns
        q = turned(self.q_proj, queries, (cosine[:-1], sine[:-1]))
        k = turned(self.k_proj, remembered.keys, turns, remembered.cells)
        return self.out_proj(self.v_proj(attend_packed(q, k, remembered)))


class Packed(NamedTuple):
    """What is remembered of O objects, one behind the other.

    Attributes:
        values: (K, w / 4) cells of memories and tokens of pointers.
        keys: the same with their places in space and time.
        cells: int64 (K,), where each is in the grid, E*E for tokens.
        ends: int32 (O + 1,), row of each object's first key, and K.

    """

    values: Tensor
    keys: Tensor
    cells: Tensor
    ends: Tensor


def attend_packed(q: Tensor, k: Tensor, remembered: Packed) -> Tensor:
    """Let queries (1 or O, N, d) of O objects attend to keys (K, d): values (O, N, w / 4)."""
    values, ends = remembered.values, remembered.ends
    if has_kernels(values):
        from sam2_core.architecture.memory_kernels import attended

        return attended(q, k, values, ends)
    lengths = ends.diff().tolist()
    parts = q.expand(len(lengths), -1, -1), k.split(lengths), values.split(lengths)
    return torch.stack(
        [
            F.scaled_dot_product_attention(*(x[None] for x in part))[0]
            for part in zip(*parts, strict=True)
        ]
    )


class MemoryAttentionLayer(nn.Module):
    """The frame attends to itself, then to what is remembered."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        width, hidden = preset.width, preset.decoder_mlp_dim
        inner = preset.memory_attention_width
        self.self_attn = RotaryAttention(width, width, inner)
        self.cross_attn_image = RotaryAttention(width, preset.memory_width, inner)
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))


class MemoryAttention(nn.Module):
    """Layers and a last normalisation."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        layers = (MemoryAttentionLayer(preset) for _ in range(preset.memory_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(preset.width)


class FuserLayer(nn.Module):
    """ConvNeXt block (Liu et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = LayerNorm2d(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(O, w, E, E) -> the same."""
        inner = self.norm(self.dwconv(x)).permute(0, 2, 3, 1)
        inner = self.gamma * self.pwconv2(F.gelu(self.pwconv1(inner)))
        return x + inner.permute(0, 3, 1, 2)


class MemoryEncoder(nn.Module):
    """An image's embedding and an object's mask in it, (1 or O, w, E, E) and (O, 1, S, S)."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        width = preset.width
        # A mask of the model's square to features of the embedding's grid.
        layers: list[nn.Module] = []
        for before, after in ((1, 4), (4, 16), (16, 64), (64, 256)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), LayerNorm2d(after), nn.GELU()]
        downsample = nn.Sequential(*layers, nn.Conv2d(256, width, 1))
        self.mask_downsampler = nn.ModuleDict({"encoder": downsample})
        self.pix_feat_proj = nn.Conv2d(width, width, 1)
        self.fuser = nn.ModuleDict(
            {"layers": nn.Sequential(*(FuserLayer(width) for _ in range(FUSER_LAYERS)))}
        )
        self.out_proj = nn.Conv2d(width, preset.memory_width, 1)

    def forward(self, image: Tensor, masks: Tensor) -> Tensor:
        """Return (O, memory_width, E, E)."""
        x = self.pix_feat_proj(image) + self.mask_downsampler["encoder"](masks)
        return self.out_proj(self.fuser["layers"](x))


class Memory(nn.Module):
    """What a checkpoint has beside the image path."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset = preset
        width, memory_width = preset.width, preset.memory_width
        self.memory_attention = MemoryAttention(preset)
        self.memory_encoder = MemoryEncoder(preset)
        self.maskmem_tpos_enc = nn.Parameter(torch.zeros(RECENT_MEMORIES + 1, 1, 1, memory_width))
        self.no_obj_ptr = nn.Parameter(torch.zeros(1, width))
        self.no_obj_embed_spatial = nn.Parameter(torch.zeros(1, memory_width))
        self.obj_ptr_proj = MLP(width, width, width, 3)
        self.obj_ptr_tpos_proj = nn.Linear(width, memory_width)
        self.mask_downsample = nn.Conv2d(1, 1, 4, 4)
        if preset.tracking_decoder:
            self.tracking_decoder = MaskDecoder(preset)


def build_memory(preset: Preset) -> Memory:
    """Return the memory's modules of a preset, uninitialised weights, in evaluation mode."""
    return Memory(preset).eval()


def random_memory(preset: Preset, seed: int = 0) -> Memory:
    """Return a memory with seeded random weights, as `random_weights` does for the image path.

    Scaled so that masks depend on it and rounding does not grow from frame to frame.
    """
    return fill_randomly(build_memory(preset), seed)
