"""The mask decoder restructured: about half the arithmetic for the same masks.

All exact up to rounding (x are the E*E image tokens of a prompt, T its tokens, h heads):

- share: in the first layer all prompts of an image see the same image tokens, so their projections
  are computed once an image;
- fold: later, where image tokens differ from prompt to prompt, keys and values are not projected:
  the few queries are (q W_k) x', and values are projected after the weighted sum, (p x) W_v. The
  same for image-to-token attention, with the output projection folded into the token values;
- trim: the last attention is read at the six output tokens only; the hypernetworks are one batch;
- upscaling is pointwise (a transposed convolution of size and stride 2 sends each cell to its own
  four), so it runs on token-major products, on all cells or on those of a window around each box.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.lean_encoder import linear
from sam2_core.architecture.mask_decoder import MASK_TOKENS, Attention, TwoWayLayer
from sam2_core.architecture.model import Sam2

OUTPUT_TOKENS = 2 + MASK_TOKENS


class Folded(nn.Module):
    """An `Attention` between tokens and image, its image-side projections moved to the tokens.

    The token side projects with `inner` (queries or keys, scaled); `away` takes the result on to
    the image's width, per head.
    """

    def __init__(self, attention: Attention, *, from_tokens: bool) -> None:
        super().__init__()
        self.heads = attention.heads
        inner, width = attention.q_proj.weight.shape
        depth = inner // self.heads
        scale = depth**-0.5
        ours, theirs = attention.q_proj, attention.k_proj
        if not from_tokens:
            ours, theirs = theirs, ours
        self.inner = linear(ours.weight * scale, ours.bias * scale)
        self.values = linear(attention.v_proj.weight, attention.v_proj.bias)
        self.out = linear(attention.out_proj.weight, attention.out_proj.bias)
        heads = (self.heads, depth, width)
        self.register_buffer("away", theirs.weight.detach().reshape(heads).clone())
        v = attention.v_proj.weight.detach().reshape(heads).transpose(1, 2)
        self.register_buffer("value_heads", v.contiguous())
        out = attention.out_proj.weight.detach().t().reshape(heads)
        self.register_buffer("out_heads", out.contiguous())
        # A head's weights sum to one, so the output bias may ride on the values of one head.
        bias = torch.zeros(self.heads, 1, width)
        bias[0, 0] = attention.out_proj.bias.detach()
        self.register_buffer("out_bias", bias)

    def by_head(self, x: Tensor) -> Tensor:
        """(P, T, h * d) -> (h, P * T, d)."""
        return x.reshape(-1, self.heads, x.shape[-1] // self.heads).transpose(0, 1)

    def rows(self, x: Tensor, tokens: int) -> Tensor:
        """(h, P * T, width) -> (P, T * h, width)."""
        return x.transpose(0, 1).reshape(-1, tokens * self.heads, x.shape[-1])


class TokenToImage(Folded):
    """Tokens look at image tokens that differ from prompt to prompt."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention, from_tokens=True)

    def forward(self, tokens: Tensor, placed: Tensor, image: Tensor) -> Tensor:
        """(P, T, w), image with and without position (P, N, w) -> (P, T, w).

        The key bias shifts all scores of a query alike: it drops out.
        """
        count = tokens.shape[1]
        queries = self.rows(self.by_head(self.inner(tokens)) @ self.away, count)
        weights = (queries @ placed.transpose(1, 2)).softmax(-1)
        sums = (weights @ image).reshape(-1, self.heads, image.shape[-1]).transpose(0, 1)
        values = (
            (sums @ self.value_heads).transpose(0, 1).reshape(-1, count, self.inner.out_features)
        )
        return self.out(values + self.values.bias)


class ImageToToken(Folded):
    """Image tokens look at the tokens; the output projection is folded into the token values."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention, from_tokens=False)

    def columns(self, x: Tensor, tokens: int) -> Tensor:
        """(h, P * T, w) -> (P, h * T, w)."""
        x = x.reshape(self.heads, -1, tokens, x.shape[-1]).transpose(0, 1)
        return x.reshape(-1, self.heads * tokens, x.shape[-1])

    def update(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Scores (P, N, h, T) and the tokens behind the values -> (P, N, w)."""
        count = tokens.shape[1]
        weights = scores.softmax(-1).reshape(-1, scores.shape[1], self.heads * count)
        values = self.by_head(self.values(tokens)) @ self.out_heads + self.out_bias
        return weights @ self.columns(values, count)

    def forward(self, tokens: Tensor, prompt: Tensor, placed: Tensor) -> Tensor:
        """(P, T, w), (P, T, w), image with `placing` (P, N, w) -> (P, N, w)."""
        count = tokens.shape[1]
        keys = self.columns(self.by_head(self.inner(tokens + prompt)) @ self.away, count)
        scores = placed @ keys.transpose(1, 2)
        return self.update(scores.reshape(-1, placed.shape[1], self.heads, count), tokens)


def placing(attention: Attention) -> Tensor:
    """Shift of the image tokens' positions, (w,), so that their queries' bias need not be added.

    With c such that W_q c = b_q, queries of x + position + c carry their bias. Where the same sum
    serves as keys, c shifts all scores of a query alike and drops out.
    """
    weight, bias = attention.q_proj.weight.double(), attention.q_proj.bias.double()
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]
    return shift.to(attention.q_proj.bias.dtype)


class LaterLayer(nn.Module):
    """A two-way layer whose image tokens differ from prompt to prompt."""

    def __init__(self, layer: TwoWayLayer) -> None:
        super().__init__()
        self.layer = layer
        self.look = TokenToImage(layer.cross_attn_token_to_image)
        self.back = ImageToToken(layer.cross_attn_image_to_token)
        self.register_buffer("shift", placing(layer.cross_attn_image_to_token))

    def forward(
        self, tokens: Tensor, prompt: Tensor, image: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(P, T, w), (P, T, w), (P, N, w), (1, N, w) -> tokens and image, updated."""
        layer, placed = self.layer, image + (position + self.shift)
        tokens = layer.update_tokens(tokens, prompt)
        tokens = layer.norm2(tokens + self.look(tokens + prompt, placed, image))
        tokens = layer.norm3(tokens + layer.mlp(tokens))
        return tokens, layer.norm4(image + self.back(tokens, prompt, placed))


class SharedLayer(nn.Module):
    """The first two-way layer: its image side is computed once an image."""

    def __init__(self, layer: TwoWayLayer) -> None:
        super().__init__()
        self.layer = layer
        self.look = TokenToImage(layer.cross_attn_token_to_image)
        self.back = ImageToToken(layer.cross_attn_image_to_token)
        k, v = layer.cross_attn_token_to_image.k_proj, layer.cross_attn_token_to_image.v_proj
        heads = self.back.heads
        self.register_buffer("diagonal", torch.eye(heads).reshape(1, heads, 1, heads, 1))
        q = layer.cross_attn_image_to_token.q_proj
        self.keys, self.image_values = linear(k.weight, k.bias), linear(v.weight, v.bias)
        self.image_queries = linear(q.weight, q.bias)

    def heads_first(self, x: Tensor, index: Tensor) -> Tensor:
        """(B, N, h * d) -> (P, h, d, N)."""
        x = x.reshape(-1, x.shape[1], self.look.heads, x.shape[2] // self.look.heads)
        return x.permute(0, 2, 3, 1).index_select(0, index)

    def forward(
        self, prompt: Tensor, image: Tensor, position: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(P, T, w), (B, N, w), (1, N, w), (P,) -> tokens and image of each prompt, updated."""
        layer, placed = self.layer, image + position
        tokens = layer.update_tokens(prompt, prompt)
        count, heads = tokens.shape[1], self.look.heads
        queries = self.look.inner(tokens + prompt).reshape(
            -1, count, heads, self.look.away.shape[1]
        )
        scores = queries.transpose(1, 2) @ self.heads_first(self.keys(placed), index)
        values = self.heads_first(self.image_values(image), index).transpose(2, 3)
        looked = (scores.softmax(-1) @ values).transpose(1, 2)
        looked = self.look.out(looked.reshape(-1, count, self.look.inner.out_features))
        tokens = layer.norm2(tokens + looked)
        tokens = layer.norm3(tokens + layer.mlp(tokens))
        queries = self.image_queries(placed).index_select(0, index)
        update = self.image_update(tokens, prompt, queries)
        return tokens, layer.norm4(image.index_select(0, index) + update)

    def image_update(self, tokens: Tensor, prompt: Tensor, queries: Tensor) -> Tensor:
        """Image to tokens: (P, T, w), (P, T, w), projected image (P or 1, N, h * d) -> (P, N, w).

        The tokens' keys lie on the diagonal of a block matrix: one dense product instead of one a
        head, and its result in the order that the softmax and the values need.
        """
        count, heads = tokens.shape[1], self.back.heads
        keys = self.back.inner(tokens + prompt).reshape(-1, count, heads, self.back.away.shape[1])
        keys = keys.permute(0, 2, 3, 1)[:, :, :, None] * self.diagonal
        keys = keys.reshape(-1, self.back.inner.out_features, heads * count)
        scores = (queries @ keys).reshape(-1, queries.shape[1], heads, count)
        return self.back.update(scores, tokens)


class LeanDecoder(nn.Module):
    """`Sam2.decode` restructured; see the module's text.

    Args:
        model: with its weights in float32; unchanged.
        window: side of the window in cells in which masks are made; 0 makes whole masks.
        masked: every prompt has a mask prompt; then nothing of the first layer is shared.

    """

    def __init__(self, model: Sam2, *, window: int = 0, masked: bool = False) -> None:
        super().__init__()
        preset = model.preset
        decoder, self.encoder = model.sam_mask_decoder, model.sam_prompt_encoder
        self.cells, self.window, self.masked = preset.embedding_grid, window, masked
        first, second = decoder.transformer.layers
        with torch.no_grad():
            self.first = LaterLayer(first) if masked else SharedLayer(first)
            self.second = LaterLayer(second)
            empty = self.encoder.no_mask_embed.weight.reshape(1, 1, -1)
            self.register_buffer("empty", empty.clone())
            self.register_buffer("output_tokens", decoder.output_tokens().clone())
            self.last = TokenToImage(decoder.transformer.final_attn_token_to_image)
            self.norm_last = decoder.transformer.norm_final_attn
            up1, norm, _, up2, _ = decoder.output_upscaling
            self.up1 = nn.Parameter(self._pointwise(up1), requires_grad=False)
            self.up2 = nn.Parameter(self._pointwise(up2), requires_grad=False)
            self.up_norm = nn.LayerNorm(norm.weight.shape[0], eps=norm.eps)
            self.up_norm.load_state_dict(norm.state_dict())
            hyper = decoder.output_hypernetworks_mlps
            for i in range(3):
                weight = torch.stack([mlp.layers[i].weight.t() for mlp in hyper])
                bias = torch.stack([mlp.layers[i].bias for mlp in hyper])[:, None]
                self.register_buffer(f"hyper_weight{i}", weight.contiguous())
                self.register_buffer(f"hyper_bias{i}", bias.contiguous())
        self.iou_head, self.score_head = decoder.iou_prediction_head, decoder.pred_obj_score_head

    @staticmethod
    def _pointwise(conv: nn.ConvTranspose2d) -> Tensor:
        """(in, out, 2, 2) -> (in, 4 * out), sub-pixel major."""
        return conv.weight.permute(0, 2, 3, 1).reshape(conv.weight.shape[0], -1).contiguous()

    def hypernetworks(self, tokens: Tensor) -> Tensor:
        """(P, 4, w) -> (P, 4, w / 8)."""
        x = tokens.transpose(0, 1)
        for i in range(3):
            x = x @ getattr(self, f"hyper_weight{i}") + getattr(self, f"hyper_bias{i}")
            x = F.relu(x) if i < 2 else x
        return x.transpose(0, 1)

    def window_cells(self, window_yx: Tensor) -> Tensor:
        """(P, 2) first row and column -> (P, window * window) indices of cells."""
        steps = torch.arange(self.window, device=window_yx.device)
        rows = window_yx[:, :1].long() + steps
        columns = window_yx[:, 1:].long() + steps
        return (rows[:, :, None] * self.cells + columns[:, None]).flatten(1)

    def masks(
        self, x: Tensor, high_res_s0: Tensor, high_res_s1: Tensor, hyper: Tensor, side: int
    ) -> Tensor:
        """Cells (P, n, w) and their fine features -> logits (P, 4, 4 * side, 4 * side)."""
        cells, narrow = x.shape[1], high_res_s1.shape[-1]
        fine = (x @ self.up1).reshape(-1, cells, 4, narrow) + high_res_s1
        fine = F.gelu(self.up_norm(fine))
        finer = (fine @ self.up2).reshape(-1, cells, 16, narrow // 2) + high_res_s0
        finer = F.gelu(finer).reshape(-1, cells * 16, narrow // 2)
        logits = hyper @ finer.transpose(1, 2)
        logits = logits.reshape(-1, MASK_TOKENS, side, side, 2, 2, 2, 2)
        logits = logits.permute(0, 1, 2, 4, 6, 3, 5, 7)
        return logits.reshape(-1, MASK_TOKENS, 4 * side, 4 * side)

    def forward(
        self,
        embedding: Tensor,
        high_res_s0: Tensor,
        high_res_s1: Tensor,
        points: Tensor,
        labels: Tensor,
        image_index: Tensor,
        window_yx: Tensor | None = None,
        mask_input: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode; features as `LeanEncoder` returns them, the rest as in `Sam2.decode`.

        Args:
            embedding: (B, E*E, width).
            high_res_s0: (B, E*E, 16, width/8).
            high_res_s1: (B, E*E, 4, width/4).
            points: float32 (P, K, 2).
            labels: int32 (P, K).
            image_index: int64 (P,).
            window_yx: int32 (P, 2) first cell of each window, when `window` is set.
            mask_input: (P, 1, G, G) logits to refine, when `masked`.

        Returns:
            Logits (P, 4, 4 * window, 4 * window), predicted IoU (P, 4), object score (P,).

        """
        sparse = self.encoder.sparse(points, labels)
        prompt = torch.cat([self.output_tokens.expand(sparse.shape[0], -1, -1), sparse], 1)
        # Depends on no input: computed once by whoever loads the graph, and not a part of the file.
        position = self.encoder.image_position().flatten(2).transpose(1, 2)
        if self.masked:
            dense = self.encoder.dense(mask_input, None).flatten(2).transpose(1, 2)
            image = embedding.index_select(0, image_index) + dense
            tokens, x = self.first(prompt, prompt, image, position)
        else:
            tokens, x = self.first(prompt, embedding + self.empty, position, image_index)
        tokens, x = self.second(tokens, prompt, x, position)
        tokens, prompt = tokens[:, :OUTPUT_TOKENS], prompt[:, :OUTPUT_TOKENS]
        tokens = self.norm_last(tokens + self.last(tokens + prompt, x + position, x))
        hyper = self.hypernetworks(tokens[:, 2:])
        if window_yx is None:
            high_res_s0 = high_res_s0.index_select(0, image_index)
            high_res_s1 = high_res_s1.index_select(0, image_index)
        else:
            cells = self.window_cells(window_yx)
            prompts = torch.arange(cells.shape[0], device=cells.device)[:, None]
            x = self._cells_at(x, cells + prompts * self.cells**2)
            places = cells + image_index[:, None] * self.cells**2
            high_res_s0 = self._cells_at(high_res_s0, places)
            high_res_s1 = self._cells_at(high_res_s1, places)
        logits = self.masks(x, high_res_s0, high_res_s1, hyper, self.window or self.cells)
        iou = self.iou_head(tokens[:, 1]).sigmoid()
        return logits, iou, self.score_head(tokens[:, 0])[:, 0]

    @staticmethod
    def _cells_at(features: Tensor, places: Tensor) -> Tensor:
        """(B, N, ...) at (P, k) places among B * N -> (P, k, ...)."""
        flat = features.flatten(0, 1).index_select(0, places.flatten())
        return flat.reshape(-1, places.shape[1], *features.shape[2:])
