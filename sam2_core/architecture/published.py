"""The graphs as published, with the inputs and outputs of an exported model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from sam2_core.architecture.lean_decoder import LeanDecoder
from sam2_core.architecture.model import REPORTED_DELTA, Sam2, select_mask, stability


class PublishedEncoder(nn.Module):
    """`Sam2.encode` as a module."""

    def __init__(self, model: Sam2) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, 3, S, S) RGB 0..255 -> embedding, high_res_s0, high_res_s1."""
        return self.model.encode_planes(image)


def finished(
    logits: Tensor,
    iou: Tensor,
    object_score: Tensor,
    laid_out: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> tuple[Tensor, ...]:
    """Turn four masks into a decoder graph's outputs, everything but the logits in float32.

    Args:
        logits: (P, 4, h, w).
        iou: (P, 4) predicted.
        object_score: (P,).
        laid_out: puts logits in the order of the image: of the chosen mask only, where no more is
            asked for.

    Returns:
        Of the chosen mask: logits (P, 1, h, w), predicted IoU (P,), object score (P,) and stability
        (P,); then of all four: logits (P, 4, h, w), predicted IoU (P, 4), stability (P, 4).

    """
    chosen, chosen_iou = select_mask(logits, iou)
    steady = stability(chosen, REPORTED_DELTA)[:, 0]
    all_steady = stability(logits, REPORTED_DELTA)
    single = (laid_out(chosen), chosen_iou.float(), object_score.float(), steady)
    return (*single, laid_out(logits), iou.float(), all_steady)


class Finished(nn.Module):
    """A restructured decoder with a decoder graph's outputs."""

    def __init__(self, decoder: LeanDecoder) -> None:
        super().__init__()
        self.decoder = decoder

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
    ) -> tuple[Tensor, ...]:
        """Decode P prompts; see `LeanDecoder` and `finished`."""
        features = (embedding, high_res_s0, high_res_s1)
        prompts = (points, labels, image_index, window_yx, mask_input)
        decoded = self.decoder.by_cell(*features, *prompts)
        return finished(*decoded, laid_out=self.decoder.laid_out)


class PublishedDecoder(nn.Module):
    """`Sam2.decode` and the choice of a mask as a module."""

    def __init__(self, model: Sam2) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        embedding: Tensor,
        high_res_s0: Tensor,
        high_res_s1: Tensor,
        points: Tensor,
        labels: Tensor,
        image_index: Tensor,
        mask_input: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Decode P prompts; see `Sam2.decode` and `finished`."""
        features = (embedding, high_res_s0, high_res_s1)
        return finished(*self.model.decode(features, points, labels, image_index, mask_input))
