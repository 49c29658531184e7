"""Attention between a prompt's tokens and image tokens, restructured; see `lean_decoder`.

What belongs to the few tokens of a prompt keeps float32 also in a half-precision model: it decides
which of the masks is chosen, and costs next to nothing. What is as large as the image is halved.
"""

import copy

import torch
from torch import Tensor, nn

from sam2_core.architecture.lean_encoder import linear
from sam2_core.architecture.mask_decoder import Attention, TwoWayLayer


def token_side(module: nn.Module) -> nn.Module:
    """Return a copy of a module that keeps its weights in float32 when a model is cast."""
    module = copy.deepcopy(module)
    module.keeps_float32 = True
    return module


def token_layer(layer: TwoWayLayer) -> TwoWayLayer:
    """Return the parts of a layer that see tokens only, in float32."""
    few = token_side(layer)
    assert isinstance(few, TwoWayLayer)  # noqa: S101 - for the type checker
    del few.norm4, few.cross_attn_token_to_image, few.cross_attn_image_to_token
    return few


class Folded(nn.Module):
    """An `Attention` between tokens and image, its image-side projections moved to the tokens.

    The token side projects with `inner` (queries or keys, scaled); `away` takes the result on to
    the image's width, per head.
    """

    keeps_float32 = True

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
        weights = (queries.to(placed.dtype) @ placed.transpose(1, 2)).softmax(-1)
        sums = (weights @ image).to(tokens.dtype)
        sums = sums.reshape(-1, self.heads, image.shape[-1]).transpose(0, 1)
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
        return weights @ self.columns(values, count).to(weights.dtype)

    def forward(self, tokens: Tensor, prompt: Tensor, placed: Tensor) -> Tensor:
        """(P, T, w), (P, T, w), image with `placing` (P, N, w) -> (P, N, w)."""
        count = tokens.shape[1]
        keys = self.columns(self.by_head(self.inner(tokens + prompt)) @ self.away, count)
        scores = placed @ keys.to(placed.dtype).transpose(1, 2)
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
        self.layer, self.norm = token_layer(layer), layer.norm4
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
        return tokens, self.norm(image + self.back(tokens, prompt, placed))


class SharedLayer(nn.Module):
    """The first two-way layer: its image side is computed once an image."""

    def __init__(self, layer: TwoWayLayer) -> None:
        super().__init__()
        self.layer, self.norm = token_layer(layer), layer.norm4
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
        queries = self.look.inner(tokens + prompt).to(image.dtype)
        queries = queries.reshape(-1, count, heads, self.look.away.shape[1])
        scores = queries.transpose(1, 2) @ self.heads_first(self.keys(placed), index)
        values = self.heads_first(self.image_values(image), index).transpose(2, 3)
        looked = (scores.softmax(-1) @ values).to(tokens.dtype).transpose(1, 2)
        looked = self.look.out(looked.reshape(-1, count, self.look.inner.out_features))
        tokens = layer.norm2(tokens + looked)
        tokens = layer.norm3(tokens + layer.mlp(tokens))
        queries = self.image_queries(placed).index_select(0, index)
        update = self.image_update(tokens, prompt, queries)
        return tokens, self.norm(image.index_select(0, index) + update)

    def image_update(self, tokens: Tensor, prompt: Tensor, queries: Tensor) -> Tensor:
        """Image to tokens: (P, T, w), (P, T, w), projected image (P or 1, N, h * d) -> (P, N, w).

        The tokens' keys lie on the diagonal of a block matrix: one dense product instead of one a
        head, and its result in the order that the softmax and the values need.
        """
        count, heads = tokens.shape[1], self.back.heads
        keys = self.back.inner(tokens + prompt).to(queries.dtype)
        keys = keys.reshape(-1, count, heads, self.back.away.shape[1])
        keys = keys.permute(0, 2, 3, 1)[:, :, :, None] * self.diagonal
        keys = keys.reshape(-1, self.back.inner.out_features, heads * count)
        scores = (queries @ keys).reshape(-1, queries.shape[1], heads, count)
        return self.back.update(scores, tokens)
