"""The mask decoder restructured: about half the arithmetic for the same masks.

All exact up to rounding (x are the E*E image tokens of a prompt, T its tokens, h heads):

- share: in the first layer all prompts of an image see the same image tokens, so their projections
  are computed once an image;
- fold: later, where image tokens differ from prompt to prompt, keys and values are not projected:
  the few queries are (q W_k) x', and values are projected after the weighted sum, (p x) W_v. The
  same for image-to-token attention, with the output projection folded into the token values;
- trim: the last attention is read at the six output tokens only; the hypernetworks are one batch;
- upscaling is pointwise (a transposed convolution of size and stride 2 sends each cell to its own
  four), so it runs on token-major products.
"""

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.lean_attention import LaterLayer, SharedLayer, TokenToImage
from sam2_core.architecture.mask_decoder import MASK_TOKENS
from sam2_core.architecture.model import Sam2

OUTPUT_TOKENS = 2 + MASK_TOKENS


class TokenSide(nn.Module):
    """What a prompt's tokens begin and end with, in float32 whatever the image's precision is."""

    keeps_float32 = True

    def __init__(self, model: Sam2) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(model.sam_prompt_encoder)
        decoder = copy.deepcopy(model.sam_mask_decoder)
        self.register_buffer("output_tokens", decoder.output_tokens().clone())
        self.last = TokenToImage(decoder.transformer.final_attn_token_to_image)
        self.norm_last = decoder.transformer.norm_final_attn
        hyper = decoder.output_hypernetworks_mlps
        for i in range(3):
            weight = torch.stack([mlp.layers[i].weight.t() for mlp in hyper])
            bias = torch.stack([mlp.layers[i].bias for mlp in hyper])[:, None]
            self.register_buffer(f"hyper_weight{i}", weight.contiguous())
            self.register_buffer(f"hyper_bias{i}", bias.contiguous())
        self.iou_head, self.score_head = decoder.iou_prediction_head, decoder.pred_obj_score_head

    def prompt(self, points: Tensor, labels: Tensor) -> Tensor:
        """Points (P, K, 2) and labels (P, K) -> output tokens and embedded points (P, T, w)."""
        sparse = self.encoder.sparse(points, labels)
        return torch.cat([self.output_tokens.expand(sparse.shape[0], -1, -1), sparse], 1)

    def hypernetworks(self, tokens: Tensor) -> Tensor:
        """(P, 4, w) -> (P, 4, w / 8)."""
        x = tokens.transpose(0, 1)
        for i in range(3):
            x = x @ getattr(self, f"hyper_weight{i}") + getattr(self, f"hyper_bias{i}")
            x = F.relu(x) if i < 2 else x
        return x.transpose(0, 1)

    def forward(
        self, tokens: Tensor, prompt: Tensor, image: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Look at the image a last time and read the tokens.

        Returns:
            Mask weights (P, 4, w / 8), predicted IoU (P, 4), object score (P,), tokens (P, 6, w).

        """
        tokens, prompt = tokens[:, :OUTPUT_TOKENS], prompt[:, :OUTPUT_TOKENS]
        tokens = self.norm_last(tokens + self.last(tokens + prompt, image + position, image))
        iou = self.iou_head(tokens[:, 1]).sigmoid()
        score = self.score_head(tokens[:, 0])[:, 0]
        return self.hypernetworks(tokens[:, 2:]), iou, score, tokens


class LeanDecoder(nn.Module):
    """`Sam2.decode` restructured; see the module's text.

    Args:
        model: with its weights in float32; unchanged.
        masked: every prompt has a mask prompt; then nothing of the first layer is shared.
        baked: hold the image's position encoding as a constant; a compiler would otherwise compute
            it again for every prompt.

    """

    def __init__(self, model: Sam2, *, masked: bool = False, baked: bool = False) -> None:
        super().__init__()
        preset = model.preset
        decoder = model.sam_mask_decoder
        self.cells, self.masked = preset.embedding_grid, masked
        first, second = decoder.transformer.layers
        with torch.no_grad():
            self.tokens = TokenSide(model)
            self.register_buffer("baked", self._position().clone() if baked else None)
            self.first = LaterLayer(first) if masked else SharedLayer(first)
            self.second = LaterLayer(second)
            empty = model.sam_prompt_encoder.no_mask_embed.weight.reshape(1, 1, -1)
            self.register_buffer("empty", empty.clone())
            up1, norm, _, up2, _ = decoder.output_upscaling
            # Means taken off as in the encoder's s1: what is normalised has none, in any precision.
            first_up = self._pointwise(up1).reshape(preset.width, 4, -1)
            first_up = (first_up - first_up.mean(-1, keepdim=True)).flatten(1)
            self.up1 = nn.Parameter(first_up, requires_grad=False)
            self.up2 = nn.Parameter(self._pointwise(up2), requires_grad=False)
            self.up_norm = nn.LayerNorm(norm.weight.shape[0], eps=norm.eps)
            self.up_norm.load_state_dict(norm.state_dict())

    def _position(self) -> Tensor:
        """Position encoding of the image tokens, (1, N, w)."""
        return self.tokens.encoder.image_position().flatten(2).transpose(1, 2)

    @staticmethod
    def _pointwise(conv: nn.ConvTranspose2d) -> Tensor:
        """(in, out, 2, 2) -> (in, 4 * out), sub-pixel major."""
        return conv.weight.permute(0, 2, 3, 1).reshape(conv.weight.shape[0], -1).contiguous()

    def masks(self, x: Tensor, high_res_s0: Tensor, high_res_s1: Tensor, hyper: Tensor) -> Tensor:
        """Cells (P, n, w) and their fine features -> logits (P, 4, n, 16) in upscaling's order."""
        cells, narrow = x.shape[1], high_res_s1.shape[-1]
        fine = (x @ self.up1).reshape(-1, cells, 4, narrow) + high_res_s1
        fine = F.gelu(self.up_norm(fine))
        finer = (fine @ self.up2).reshape(-1, cells, 16, narrow // 2) + high_res_s0
        finer = F.gelu(finer).reshape(-1, cells * 16, narrow // 2)
        return (hyper @ finer.transpose(1, 2)).reshape(-1, MASK_TOKENS, cells, 16)

    def laid_out(self, logits: Tensor) -> Tensor:
        """Logits by cell, (P, M, n, 16) -> (P, M, 4 * side, 4 * side)."""
        side, masks = self.cells, logits.shape[1]
        logits = logits.reshape(-1, masks, side, side, 2, 2, 2, 2)
        logits = logits.permute(0, 1, 2, 4, 6, 3, 5, 7)
        return logits.reshape(-1, masks, 4 * side, 4 * side)

    def forward(self, *inputs: Tensor, **more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decode as `by_cell` does; logits (P, 4, G, G)."""
        logits, iou, object_score = self.by_cell(*inputs, **more)
        return self.laid_out(logits), iou, object_score

    def by_cell(
        self,
        embedding: Tensor,
        high_res_s0: Tensor,
        high_res_s1: Tensor,
        points: Tensor,
        labels: Tensor,
        image_index: Tensor,
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
            mask_input: (P, 1, G, G) logits to refine, when `masked`.

        Returns:
            Logits (P, 4, n, 16) of n cells for `laid_out`, predicted IoU (P, 4), object score (P,).

        """
        prompt = self.tokens.prompt(points, labels)
        # Depends on no input: computed once where the graph is loaded, and not a part of the file.
        position = self._position() if self.baked is None else self.baked
        position = position.to(embedding.dtype)
        if self.masked:
            dense = self.tokens.encoder.dense(mask_input).flatten(2).transpose(1, 2)
            image = embedding.index_select(0, image_index) + dense.to(embedding.dtype)
            tokens, x = self.first(prompt, prompt, image, position)
        else:
            tokens, x = self.first(prompt, embedding + self.empty, position, image_index)
        tokens, x = self.second(tokens, prompt, x, position)
        hyper, iou, object_score, _ = self.tokens(tokens, prompt, x, position)
        hyper = hyper.to(x.dtype)
        high_res_s0 = high_res_s0.index_select(0, image_index)
        high_res_s1 = high_res_s1.index_select(0, image_index)
        return self.masks(x, high_res_s0, high_res_s1, hyper), iou, object_score
