"""The mask decoder for many prompts on each of several views, as training wants it.

The same function as `Sam2.decode`, where every prompt of a view gets that view's features, without
repeating per prompt what is the same for all prompts of a view: in the first two-way layer the
image tokens' projections. And features are spread, not indexed: the backward pass of indexing adds
row by row, in single file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sam2_core.architecture.mask_decoder import MASK_TOKENS, TwoWayLayer
from sam2_core.architecture.model import Sam2

Decoded = tuple[Tensor, Tensor, Tensor]


def spread(x: Tensor, per: int) -> Tensor:
    """Repeat each of B rows for its `per` prompts: (B * per, ...)."""
    return x[:, None].expand(-1, per, *x.shape[1:]).flatten(0, 1)


def decode_views(
    model: Sam2, features: tuple[Tensor, ...], points: Tensor, labels: Tensor
) -> Decoded:
    """Decode P = B * N prompts without mask prompts, N on each of the B views in turn.

    Returns:
        All four masks' logits (P, 4, G, G), predicted IoU (P, 4), object score logit (P,).

    """
    embedding, high_res_s0, high_res_s1 = features
    views, per = len(embedding), len(points) // len(embedding)
    encoder, decoder = model.sam_prompt_encoder, model.sam_mask_decoder
    image = (embedding + encoder.dense(None)).flatten(2).transpose(1, 2)
    position = encoder.image_position().flatten(2).transpose(1, 2)
    sparse = encoder.sparse(points, labels)
    output = decoder.output_tokens().expand(len(sparse), -1, -1)
    prompt = torch.cat([output, sparse], dim=1)
    transformer = decoder.transformer
    first, second = transformer.layers
    tokens, updated = _first_layer(first, image, prompt, position)
    tokens, updated = second(tokens, updated, prompt, position)
    attended = transformer.final_attn_token_to_image(tokens + prompt, updated + position, updated)
    tokens = transformer.norm_final_attn(tokens + attended)
    side = embedding.shape[-1]
    updated = updated.transpose(1, 2).reshape(views * per, -1, side, side)
    fine = decoder.upscale(updated, spread(high_res_s0, per), spread(high_res_s1, per))
    mlps = decoder.output_hypernetworks_mlps
    hyper = torch.stack([mlp(tokens[:, 2 + i]) for i, mlp in enumerate(mlps)], dim=1)
    logits = (hyper @ fine.flatten(2)).reshape(len(fine), MASK_TOKENS, *fine.shape[-2:])
    iou = decoder.iou_prediction_head(tokens[:, 1]).sigmoid()
    return logits, iou, decoder.pred_obj_score_head(tokens[:, 0])[:, 0]


def _first_layer(
    layer: TwoWayLayer, image: Tensor, prompt: Tensor, position: Tensor
) -> tuple[Tensor, Tensor]:
    """Two-way layer over image tokens (B, E*E, width) that a view's prompts (P, T, width) share."""
    views, per = len(image), len(prompt) // len(image)
    placed = image + position
    tokens = layer.update_tokens(prompt, prompt)
    attention = layer.cross_attn_token_to_image
    # The view's prompts as one long row of queries.
    query = attention.q_proj(tokens + prompt).reshape(views, -1, attention.q_proj.out_features)
    parts = (query, attention.k_proj(placed), attention.v_proj(image))
    out = F.scaled_dot_product_attention(*(attention.split(part) for part in parts))
    out = attention.out_proj(out.transpose(1, 2).reshape(views * per, prompt.shape[1], -1))
    tokens = layer.norm2(tokens + out)
    tokens = layer.norm3(tokens + layer.mlp(tokens))
    attention = layer.cross_attn_image_to_token
    query = spread(attention.q_proj(placed), per)
    parts = (query, attention.k_proj(tokens + prompt), attention.v_proj(tokens))
    out = F.scaled_dot_product_attention(*(attention.split(part) for part in parts))
    out = attention.out_proj(out.transpose(1, 2).reshape(views * per, image.shape[1], -1))
    return tokens, layer.norm4(spread(image, per) + out)
