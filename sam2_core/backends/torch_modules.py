"""PyTorch modules as a backend runs them: published or restructured, in one precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sam2_core.architecture.lean_attention import SharedLayer
from sam2_core.architecture.lean_decoder import LeanDecoder
from sam2_core.architecture.lean_encoder import LeanEncoder
from sam2_core.architecture.model import (
    REPORTED_DELTA,
    Sam2,
    at_size,
    cast,
    select_mask,
    stability,
)
from sam2_core.architecture.published import PublishedEncoder
from sam2_core.export import close_up_size
from sam2_core.types import AutolabelError


class Chosen(nn.Module):
    """A decoder reduced to what leaves the device: the chosen mask, its scores in one tensor."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (P, G, G) and float32 (3, P): predicted IoU, object score, stability."""
        logits, iou, score = self.decoder(*inputs)
        chosen, chosen_iou = select_mask(logits, iou)
        steady = stability(chosen, REPORTED_DELTA)[:, 0]
        return chosen[:, 0], torch.stack([chosen_iou.float(), score.float(), steady])


class _Decode(nn.Module):
    def __init__(self, model: Sam2) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, embedding: Tensor, high_res_s0: Tensor, high_res_s1: Tensor, *prompts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.model.decode((embedding, high_res_s0, high_res_s1), *prompts)


class OneImageLayer(nn.Module):
    """A `SharedLayer` for prompts of one image: all their tokens are one long sequence.

    Batched over prompts, the image's keys and values would be copied for each of them: 142 MB each
    at 136 prompts, 0.9 of the decoder's 4.6 ms on an H200.
    """

    def __init__(self, shared: SharedLayer) -> None:
        super().__init__()
        self.shared = shared

    def _by_head(self, x: Tensor) -> Tensor:
        """(1, N, h * d) -> (h, N, d)."""
        return self.shared.look.by_head(x)

    def forward(
        self, prompt: Tensor, image: Tensor, position: Tensor, _index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(P, T, w), (1, N, w) twice, (P,) -> tokens (P, T, w) and image (P, N, w), updated."""
        shared = self.shared
        layer, placed = shared.layer, image + position
        tokens = layer.update_tokens(prompt, prompt)
        prompts, count = tokens.shape[:2]
        queries = self._by_head(shared.look.inner(tokens + prompt).to(image.dtype))
        keys = self._by_head(shared.keys(placed))
        values = self._by_head(shared.image_values(image))
        looked = F.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=1.0)
        looked = looked[0].transpose(0, 1).reshape(prompts, count, -1).to(tokens.dtype)
        tokens = layer.norm2(tokens + shared.look.out(looked))
        tokens = layer.norm3(tokens + layer.mlp(tokens))
        update = shared.image_update(tokens, prompt, shared.image_queries(placed))
        return tokens, shared.norm(image + update)


@dataclass(frozen=True)
class Modules:
    """What a backend calls; all in evaluation mode on one device.

    Attributes:
        encoder: float32 (B, 3, S, S) to three feature tensors.
        decoder: features, points, labels, image index to a chosen mask (see `Chosen`).
        decoder_single: the same for features of one image.
        decoder_masks: the same with mask prompts.

    """

    encoder: nn.Module
    decoder: nn.Module
    decoder_single: nn.Module
    decoder_masks: nn.Module


def modules_for(model: Sam2, graph: str, close_ups: bool | None) -> tuple[Sam2, bool]:
    """Return the model at the input size that is wanted, and whether that is of close-ups.

    Raises:
        AutolabelError: close-ups are wanted, and there is no size for them.

    """
    size = close_up_size(model.preset, graph)
    if close_ups and not size:
        raise AutolabelError(f"{model.preset.name}/{graph} has no close-ups: use whole frames")
    if close_ups is False or not size:
        return model, False
    return at_size(model, size), True


def build_modules(model: Sam2, graph: str, dtype: torch.dtype, device: str) -> Modules:
    """Build the modules of a model; the model must not be used afterwards."""
    model = model.eval()
    parts: list[nn.Module]
    if graph == "published":
        decoder = _Decode(model)
        parts = [PublishedEncoder(model), decoder, decoder, decoder]
    else:
        single = LeanDecoder(model, baked=True)
        single.first = OneImageLayer(single.first)
        masked = LeanDecoder(model, masked=True, baked=True)
        parts = [LeanEncoder(model, fused=True), LeanDecoder(model, baked=True), single, masked]
    # Folded in float32, cast afterwards.
    encoder, *decoders = (cast(part.eval(), dtype).to(device) for part in parts)
    return Modules(encoder, *(Chosen(decoder).eval() for decoder in decoders))
