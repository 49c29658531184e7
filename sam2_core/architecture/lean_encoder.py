"""The image encoder restructured: the same numbers from fewer passes over memory.

What differs from `Sam2.encode`, all exact up to rounding:

- pixels are scaled by the patch convolution's weights, and only the whole part of their mean is
  subtracted from them, exact in half precision; what is left of it is a part of the position map;
- tokens are cut into windows once, before queries, keys and values are computed; where windows need
  padding it is done after that, so padding costs no arithmetic (a GPU rather spares the copies);
  keys and values need no bias, so padding is zeros;
- attention of the whole grid goes part by part, so that its scores stay in the cache (not on GPUs,
  whose kernels write no scores);
- windows are padded by concatenation, pooled by maxima, cropped before the projection;
- the neck's 1x1 convolutions are folded into conv_s0 and conv_s1, biases into one another;
- outputs are token-major, in the order in which `lean_decoder` reads them.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.hiera import (
    Hiera,
    MultiScaleBlock,
    attend,
    attend_on_cpu,
    cut,
    joined,
    pooled,
)
from sam2_core.architecture.model import Sam2


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with given weight (out, in) and bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer


class LeanBlock(nn.Module):
    """A `MultiScaleBlock`, restructured."""

    def __init__(self, block: MultiScaleBlock, *, fused: bool, early: bool = False) -> None:
        super().__init__()
        attention, self.early = block.attn, early
        self.window, self.pooled, self.fused = block.window, block.pooled, fused
        self.heads, self.widens = attention.heads, block.widens
        self.on_gpu = fused or early
        # One head lies by head already; graphs for GPUs turn it all the same, as measured.
        self.turned = self.heads > 1 or self.on_gpu
        self.dim = attention.proj.weight.shape[0]
        scale = (self.dim // self.heads) ** -0.5
        q, k, v = attention.qkv.weight.detach().split(self.dim)
        q_bias, _, v_bias = attention.qkv.bias.detach().split(self.dim)
        # A key bias shifts all scores of a query alike and drops out; weights sum to one, so the
        # value bias may be added after attention, that is in the projection's bias.
        weights, biases = [q * scale, k, v], [q_bias * scale, *[torch.zeros(self.dim)] * 2]
        if self.widens:
            weights, biases = [*weights, block.proj.weight], [*biases, block.proj.bias]
        if fused:
            self.products = nn.ModuleList([linear(torch.cat(weights), torch.cat(biases))])
        else:
            # One product each: slices of a joint one would be copied.
            self.products = nn.ModuleList(
                linear(weight, bias if i in (0, 3) else None)
                for i, (weight, bias) in enumerate(zip(weights, biases, strict=True))
            )
        projection = attention.proj
        self.projection = linear(projection.weight, projection.bias + projection.weight @ v_bias)
        self.norm1, self.norm2, self.mlp = block.norm1, block.norm2, block.mlp

    def by_head(self, x: Tensor) -> Tensor:
        """(N, w, w, dim) -> (N, heads, w * w, d)."""
        if not self.turned:
            return x.reshape(-1, 1, x.shape[1] * x.shape[2], self.dim)
        x = x.reshape(-1, x.shape[1] * x.shape[2], self.heads, self.dim // self.heads)
        return x.transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H', W', C')."""
        side = x.shape[1]
        window = self.window or side
        own, own_side = (window // 2, side // 2) if self.pooled else (window, side)
        # Where windows need no padding tokens are cut into them once, before the products.
        early = self.early or side % window == 0
        normal = self.norm1(x)
        products = [product(cut(normal, window) if early else normal) for product in self.products]
        if self.fused:
            products = list(products[0].split(self.dim, -1))
        q, k, v = products[:3]
        shortcut = products[3] if self.widens else None
        if self.pooled:
            q = pooled(q, elementwise=self.on_gpu)
            shortcut = None if shortcut is None else pooled(shortcut, elementwise=self.on_gpu)
        if not early:
            q, k, v = cut(q, own), cut(k, window), cut(v, window)
        by_head = self.by_head(q), self.by_head(k), self.by_head(v)
        out = attend(*by_head, fused=self.fused) if self.on_gpu else attend_on_cpu(*by_head)
        out = out.transpose(1, 2) if self.turned else out
        out = out.reshape(-1, own, own, self.dim)
        if early:
            out = self.projection(out)
            out = out if shortcut is None else shortcut + out
            out = joined(out, own_side)
            x = out if self.widens else x + out
        else:
            out = self.projection(joined(out, own_side))
            x = (x if shortcut is None else shortcut) + out
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    """The patch convolution on pixels of which the whole part of their mean is subtracted.

    Args:
        model: whose convolution.
        keeps_float32: also in a half-precision model: in ONNX Runtime half convolutions add up in
            halves. PyTorch's do not.

    """

    def __init__(self, model: Sam2, *, keeps_float32: bool) -> None:
        super().__init__()
        self.keeps_float32 = keeps_float32
        weight = model.image_encoder.trunk.patch_embed.proj.weight / model.pixel_std
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("mean", model.pixel_mean.round())
        self.register_buffer("rest", self.mean - model.pixel_mean, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, G, G, C)."""
        return F.conv2d(pixels, self.weight, stride=4, padding=3).permute(0, 2, 3, 1)

    def corner(self) -> Tensor:
        """First 2x2 cells, (2, 2, C), of an image of what is left of the mean; see `shifted`."""
        return self(self.rest.expand(1, 3, 8, 8))[0, :2, :2].contiguous()


class PositionMap(nn.Module):
    """The trunk's position embedding, the patch convolution's bias and `shifted`, (1, G, G, C).

    A constant of G * G * C values when `baked`. Otherwise a product of small matrices (bicubic
    resizing is linear and separable), which a graph file holds in a hundredth of the space.
    ONNX Runtime computes it once, when it loads the graph; TensorRT-RTX with each call.
    """

    def __init__(self, trunk: Hiera, grid: int, corner: Tensor, *, baked: bool) -> None:
        """`corner` is of `shifted`."""
        super().__init__()
        self.grid, self.baked = grid, baked
        self.keeps_float32 = not baked  # cheap, and several products: cast when it is used
        bias = trunk.patch_embed.proj.bias
        edge = torch.zeros(grid, 2)
        edge[0, 0] = edge[1:, 1] = 1
        self.register_buffer("edge", edge)
        self.register_buffer("corner", corner)
        if baked:
            position = trunk.position_embedding(grid, grid) + bias + self.shifted()
            self.register_buffer("constant", position.contiguous())
            return
        for axis, size in zip("yx", trunk.pos_embed.shape[2:], strict=True):
            unit = torch.eye(size)[None, :, :, None]
            resized = F.interpolate(unit, (grid, 1), mode="bicubic")[0, :, :, 0]
            self.register_buffer(axis, resized.t().contiguous())
        self.register_buffer("background", trunk.pos_embed.detach()[0].permute(1, 2, 0).clone())
        tile = trunk.pos_embed_window.detach()[0].permute(1, 2, 0) + bias
        self.register_buffer("tile", tile.clone())

    def shifted(self) -> Tensor:
        """Patch convolution of a constant image from its corner (2, 2, C), (G, G, C).

        Zeros are around the image: its first row and column see less of it than all others.
        """
        rows = (self.edge @ self.corner.reshape(2, -1)).reshape(self.grid, 2, -1)
        return self.edge @ rows

    def forward(self) -> Tensor:
        """Return the map."""
        if self.baked:
            return self.constant
        rows, columns, channels = self.background.shape
        x = self.y @ self.background.reshape(rows, -1)
        x = self.x @ x.reshape(self.grid, columns, channels)
        side = self.tile.shape[0]
        count = self.grid // side
        x = x.reshape(count, side, count, side, channels) + self.tile.reshape(1, side, 1, side, -1)
        return (x.reshape(self.grid, self.grid, channels) + self.shifted())[None]


class LeanEncoder(nn.Module):
    """`Sam2.encode`, restructured; see the module's text.

    Args:
        model: with its weights in float32; unchanged.
        fused: attention by PyTorch's own kernels (for PyTorch), not by plain products (for ONNX).
        early: for ONNX on a GPU: pad before the products (fewer copies, more arithmetic), attend
            to the grid in one piece, pool by elementwise maxima.

    """

    def __init__(self, model: Sam2, *, fused: bool = False, early: bool = False) -> None:
        super().__init__()
        preset = model.preset
        self.grid, self.cells = preset.grid, preset.embedding_grid
        trunk, decoder = model.image_encoder.trunk, model.sam_mask_decoder
        neck = [lateral.conv for lateral in reversed(model.image_encoder.neck.convs)]
        with torch.no_grad():
            self.patches = Patches(model, keeps_float32=not fused)
            corner = self.patches.corner()
            self.position = PositionMap(trunk, self.grid, corner, baked=fused)
            self.blocks = nn.ModuleList(
                LeanBlock(block, fused=fused, early=early) for block in trunk.blocks
            )
            self.stage_ends = trunk.stage_ends
            # The bias of each transposed convolution of the decoder joins what is added after it.
            up1, up2 = decoder.output_upscaling[0], decoder.output_upscaling[3]
            self.s0 = self._folded(neck[0], decoder.conv_s0, up2.bias)
            self.s1 = self._folded(neck[1], decoder.conv_s1, up1.bias)
            # A normalisation follows the sum that they enter, so their mean may be taken off here.
            self.s1.weight -= self.s1.weight.mean(0)
            self.s1.bias -= self.s1.bias.mean()
            width = preset.width
            bias = neck[2].bias + neck[3].bias + model.no_mem_embed.reshape(-1)
            self.middle = linear(neck[2].weight.reshape(width, -1), bias)
            self.coarse = linear(neck[3].weight.reshape(width, -1), torch.zeros_like(bias))

    @staticmethod
    def _folded(lateral: nn.Conv2d, conv: nn.Conv2d, bias: Tensor) -> nn.Linear:
        first = lateral.weight.reshape(lateral.weight.shape[0], -1)
        second = conv.weight.reshape(conv.weight.shape[0], -1)
        return linear(second @ first, second @ lateral.bias + conv.bias + bias)

    def _by_cell(self, x: Tensor, depth: int) -> Tensor:
        """(B, H, W, c) -> (B, E*E, 4**depth, c): each cell's pixels in the order of upscaling."""
        channels = x.shape[-1]
        x = x.reshape(-1, self.cells, *[2] * depth, self.cells, *[2] * depth, channels)
        order = [0, 1, 2 + depth]
        for level in range(depth):
            order += [2 + level, 3 + depth + level]
        return x.permute(*order, 3 + 2 * depth).reshape(-1, self.cells**2, 4**depth, channels)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode.

        Args:
            image: float32 (B, 3, S, S) RGB 0..255, planes of squares.

        Returns:
            embedding (B, E*E, width); high_res_s0 (B, E*E, 16, width/8) and high_res_s1
            (B, E*E, 4, width/4): the pixels of each of the E*E cells, upscaling biases added.

        """
        dtype = self.s0.weight.dtype
        # In float32: a half has steps of an eighth at 255, of a sixteenth and less around the mean.
        pixels = image.float() - self.patches.mean.float()
        x = self.patches(pixels.to(self.patches.weight.dtype)).to(dtype) + self.position().to(dtype)
        stages = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self.stage_ends:
                stages.append(x)
        s0, s1 = self.s0(stages[0]), self.s1(stages[1])
        half = self.cells // 2
        coarse = self.coarse(stages[3])[:, :, None, :, None]
        middle = self.middle(stages[2])
        shape = middle.shape
        embedding = middle.reshape(-1, half, 2, half, 2, shape[-1]) + coarse
        embedding = embedding.reshape(-1, self.cells**2, shape[-1])
        return embedding, self._by_cell(s0, 2), self._by_cell(s1, 1)
