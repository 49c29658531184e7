"""The graphs as published, with the inputs and outputs of an exported model."""

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


class Finished(nn.Module):
    """A decoder, published or restructured, with the outputs of a decoder graph."""

    def __init__(self, decoder: Sam2 | LeanDecoder) -> None:
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
        mask_input: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Decode P prompts; see `Sam2.decode` and `LeanDecoder`.

        Returns:
            Of the chosen mask: logits (P, 1, h, w), predicted IoU (P,), object score (P,) and
            stability (P,); then of all four: logits (P, 4, h, w), predicted IoU (P, 4), stability
            (P, 4). Everything but the logits in float32.

        """
        features = (embedding, high_res_s0, high_res_s1)
        prompts = (points, labels, image_index)
        if isinstance(self.decoder, LeanDecoder):
            # Logits are put in the order of the image last: of the chosen mask only, where no more
            # is asked for.
            decoded = self.decoder.by_cell(*features, *prompts, mask_input)
            laid_out = self.decoder.laid_out
        else:
            decoded = self.decoder(*features, *prompts, mask_input)
            laid_out = nn.Identity()
        logits, iou, object_score = decoded
        chosen, chosen_iou = select_mask(logits, iou)
        steady = stability(chosen, REPORTED_DELTA)[:, 0]
        all_steady = stability(logits, REPORTED_DELTA)
        single = (laid_out(chosen), chosen_iou.float(), object_score.float(), steady)
        return (*single, laid_out(logits), iou.float(), all_steady)
