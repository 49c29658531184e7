"""The mask decoder as published: a two-way transformer, upscaling, hypernetworks and heads."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.hiera import MLP, LayerNorm2d
from sam2_core.presets import Preset

MASK_TOKENS = 4  # one for single-mask output, three for ambiguous prompts


class Attention(nn.Module):
    """Multi-head attention whose inner width may be smaller than its outer one."""

    def __init__(self, width: int, heads: int, downsample: int = 1) -> None:
        super().__init__()
        inner = width // downsample
        self.heads = heads
        self.q_proj = nn.Linear(width, inner)
        self.k_proj = nn.Linear(width, inner)
        self.v_proj = nn.Linear(width, inner)
        self.out_proj = nn.Linear(inner, width)

    def split(self, x: Tensor) -> Tensor:
        """(P, N, heads * d) -> (P, heads, N, d)."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(P, N, width), (P, M, width), (P, M, width) -> (P, N, width)."""
        q, k, v = self.split(self.q_proj(q)), self.split(self.k_proj(k)), self.split(self.v_proj(v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1))


class TwoWayLayer(nn.Module):
    """Tokens attend to themselves, then to the image; then the image attends to the tokens."""

    def __init__(self, width: int, heads: int, mlp_dim: int, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.self_attn = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attn_token_to_image = Attention(width, heads, 2)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width, mlp_dim, width, 2)
        self.norm3 = nn.LayerNorm(width)
        self.norm4 = nn.LayerNorm(width)
        self.cross_attn_image_to_token = Attention(width, heads, 2)

    def update_tokens(self, tokens: Tensor, prompt: Tensor) -> Tensor:
        """Self-attention among the tokens; the first layer adds no position and no residual."""
        if self.first:
            tokens = self.self_attn(tokens, tokens, tokens)
        else:
            placed = tokens + prompt
            tokens = tokens + self.self_attn(placed, placed, tokens)
        return self.norm1(tokens)

    def forward(
        self, tokens: Tensor, image: Tensor, prompt: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(P, T, width), (P, E*E, width) and their positions -> both, updated."""
        tokens = self.update_tokens(tokens, prompt)
        attended = self.cross_attn_token_to_image(tokens + prompt, image + position, image)
        tokens = self.norm2(tokens + attended)
        tokens = self.norm3(tokens + self.mlp(tokens))
        attended = self.cross_attn_image_to_token(image + position, tokens + prompt, tokens)
        return tokens, self.norm4(image + attended)


class TwoWayTransformer(nn.Module):
    """Two layers and a last look of the tokens at the image."""

    def __init__(self, width: int, heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TwoWayLayer(width, heads, mlp_dim, first=i == 0) for i in range(2)
        )
        self.final_attn_token_to_image = Attention(width, heads, 2)
        self.norm_final_attn = nn.LayerNorm(width)

    def forward(self, image: Tensor, position: Tensor, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """(P, E*E, width), (1, E*E, width), (P, T, width) -> tokens, image."""
        tokens = prompt
        for layer in self.layers:
            tokens, image = layer(tokens, image, prompt, position)
        attended = self.final_attn_token_to_image(tokens + prompt, image + position, image)
        return self.norm_final_attn(tokens + attended), image


class MaskDecoder(nn.Module):
    """Masks, predicted IoU and object score of P prompts."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        width = preset.width
        self.transformer = TwoWayTransformer(width, preset.decoder_heads, preset.decoder_mlp_dim)
        self.iou_token = nn.Embedding(1, width)
        self.mask_tokens = nn.Embedding(MASK_TOKENS, width)
        self.obj_score_token = nn.Embedding(1, width)
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(width, width // 4, 2, 2),
            LayerNorm2d(width // 4),
            nn.GELU(),
            nn.ConvTranspose2d(width // 4, width // 8, 2, 2),
            nn.GELU(),
        )
        self.conv_s0 = nn.Conv2d(width, width // 8, 1)
        self.conv_s1 = nn.Conv2d(width, width // 4, 1)
        self.output_hypernetworks_mlps = nn.ModuleList(
            MLP(width, width, width // 8, 3) for _ in range(MASK_TOKENS)
        )
        self.iou_prediction_head = MLP(width, preset.iou_head_dim, MASK_TOKENS, 3)
        self.pred_obj_score_head = MLP(width, width, 1, 3)

    def output_tokens(self) -> Tensor:
        """Object score, IoU and mask tokens, (6, width)."""
        parts = (self.obj_score_token, self.iou_token, self.mask_tokens)
        return torch.cat([part.weight for part in parts])

    def upscale(self, image: Tensor, high_res_s0: Tensor, high_res_s1: Tensor) -> Tensor:
        """(P, width, E, E) and the high-resolution features -> (P, width/8, G, G)."""
        up1, norm, gelu, up2, gelu2 = self.output_upscaling
        fine = gelu(norm(up1(image) + high_res_s1))
        return gelu2(up2(fine) + high_res_s0)

    def forward(
        self,
        image: Tensor,
        position: Tensor,
        sparse: Tensor,
        high_res_s0: Tensor,
        high_res_s1: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode.

        Args:
            image: (P, width, E, E) embedding of each prompt's image, dense prompt added.
            position: (1, width, E, E).
            sparse: (P, K, width) embedded points.
            high_res_s0: (P, width/8, G, G) features of each prompt's image, after conv_s0.
            high_res_s1: (P, width/4, G/2, G/2), after conv_s1.

        Returns:
            All four masks' logits (P, 4, G, G), predicted IoU (P, 4), object score logit (P,).

        """
        count, width, side, _ = image.shape
        output = self.output_tokens().expand(count, -1, -1)
        prompt = torch.cat([output, sparse], dim=1)
        tokens, updated = self.transformer(
            image.flatten(2).transpose(1, 2), position.flatten(2).transpose(1, 2), prompt
        )
        updated = updated.transpose(1, 2).reshape(count, width, side, side)
        fine = self.upscale(updated, high_res_s0, high_res_s1)
        hyper = torch.stack(
            [mlp(tokens[:, 2 + i]) for i, mlp in enumerate(self.output_hypernetworks_mlps)], dim=1
        )
        logits = (hyper @ fine.flatten(2)).reshape(count, MASK_TOKENS, *fine.shape[-2:])
        iou = self.iou_prediction_head(tokens[:, 1]).sigmoid()
        return logits, iou, self.pred_obj_score_head(tokens[:, 0])[:, 0]
