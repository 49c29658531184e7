"""SAM 2's image path as one module: the reference that everything exported is compared with."""

from collections import OrderedDict
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from sam2_core.architecture.hiera import Hiera, Neck
from sam2_core.architecture.mask_decoder import MaskDecoder
from sam2_core.architecture.prompt_encoder import PromptEncoder
from sam2_core.presets import Preset

# ImageNet statistics of pixels in 0..255.
PIXEL_MEAN = (123.675, 116.28, 103.53)
PIXEL_STD = (58.395, 57.12, 57.375)
# Stability by which single-mask output falls back to the best of the three others.
STABILITY_DELTA, STABILITY_THRESHOLD = 0.05, 0.98
# Stability that is reported for a mask (Segment Anything's `stability_score_offset`).
REPORTED_DELTA = 1.0


def stability(logits: Tensor, delta: float) -> Tensor:
    """IoU of a mask thresholded at +delta and at -delta, (..., H, W) -> (...), float32.

    Counts are float32: they exceed what a half holds. 1 where nothing is above -delta.
    """
    inside = (logits > delta).float().sum((-1, -2))
    outside = (logits > -delta).float().sum((-1, -2))
    return torch.where(outside > 0, inside / outside.clamp(min=1), 1.0)


def select_mask(logits: Tensor, iou: Tensor) -> tuple[Tensor, Tensor]:
    """Single-mask output: token 0, or the best of tokens 1 to 3 where token 0 is unstable.

    Args:
        logits: (P, 4, H, W).
        iou: (P, 4) predicted.

    Returns:
        (P, 1, H, W) and (P,). `dynamic_multimask_via_stability` of the published model.

    """
    best = iou[:, 1:].argmax(1) + 1
    stable = stability(logits[:, 0], STABILITY_DELTA) >= STABILITY_THRESHOLD
    chosen = torch.where(stable, torch.zeros_like(best), best)
    index = chosen[:, None, None, None].expand(-1, 1, *logits.shape[-2:])
    return logits.gather(1, index), iou.gather(1, chosen[:, None])[:, 0]


class Sam2(nn.Module):
    """Image encoder, prompt encoder and mask decoder under Meta's names."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset = preset
        self.image_encoder = nn.Sequential(OrderedDict(trunk=Hiera(preset), neck=Neck(preset)))
        self.sam_prompt_encoder = PromptEncoder(preset)
        self.sam_mask_decoder = MaskDecoder(preset)
        self.no_mem_embed = nn.Parameter(torch.zeros(1, 1, preset.width))
        for name, value in (("pixel_mean", PIXEL_MEAN), ("pixel_std", PIXEL_STD)):
            buffer = torch.tensor(value).reshape(1, 3, 1, 1)
            self.register_buffer(name, buffer, persistent=False)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode images.

        Args:
            images: (B, S, S, 3) RGB 0..255, uint8 or float, already resized to the square.

        Returns:
            embedding (B, width, E, E) with `no_mem_embed` added, high_res_s0 (B, width/8, G, G),
            high_res_s1 (B, width/4, G/2, G/2).

        """
        return self.encode_planes(images.permute(0, 3, 1, 2))

    def encode_planes(self, planes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode images as (B, 3, S, S); see `encode`."""
        dtype = self.no_mem_embed.dtype
        pixels = planes.float()
        pixels = ((pixels - self.pixel_mean.float()) / self.pixel_std.float()).to(dtype)
        fine, middle, coarse = self.image_encoder(pixels)
        embedding = coarse + self.no_mem_embed.reshape(1, -1, 1, 1)
        decoder = self.sam_mask_decoder
        return embedding, decoder.conv_s0(fine), decoder.conv_s1(middle)

    def forward(
        self, embedding: Tensor, high_res_s0: Tensor, high_res_s1: Tensor, *prompts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode with the inputs of a decoder graph, see `decode`."""
        return self.decode((embedding, high_res_s0, high_res_s1), *prompts)

    def decode(
        self,
        features: tuple[Tensor, Tensor, Tensor],
        points: Tensor,
        labels: Tensor,
        image_index: Tensor,
        mask_input: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode P prompts over the B images of `features`.

        Args:
            features: what `encode` returned.
            points: (P, K, 2) x, y in model pixels, before the half-pixel shift.
            labels: (P, K): 1, 0, 2, 3 or -1. A box is its two corners (2, 3) and a padding (-1).
            image_index: (P,) which image each prompt belongs to.
            mask_input: (P, 1, G, G) logits to refine, or None.

        Returns:
            All four masks' logits (P, 4, G, G), predicted IoU (P, 4), object score logit (P,).

        """
        rows = tuple(part[image_index] for part in features)
        return self.decode_rows(rows, points, labels, mask_input)

    def decode_rows(
        self,
        features: tuple[Tensor, ...],
        points: Tensor,
        labels: Tensor,
        mask_input: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode as `decode` does; row p of each of the three `features` belongs to prompt p."""
        embedding, high_res_s0, high_res_s1 = features
        encoder = self.sam_prompt_encoder
        return self.sam_mask_decoder(
            embedding + encoder.dense(mask_input),
            encoder.image_position(),
            encoder.sparse(points, labels),
            high_res_s0,
            high_res_s1,
        )


def build_model(preset: Preset) -> Sam2:
    """Return the modules of a preset, uninitialised weights, in evaluation mode."""
    return Sam2(preset).eval()


def at_size(model: Sam2, image_size: int) -> Sam2:
    """Return the same weights, copied, for another input size."""
    other = build_model(model.preset.sized(image_size=image_size))
    other.load_state_dict(model.state_dict())
    return other


def cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast weights in place, those of modules that say `keeps_float32` excepted."""
    kept = [part for part in module.modules() if getattr(part, "keeps_float32", False)]
    before = [{name: value.clone() for name, value in part.state_dict().items()} for part in kept]
    module.to(dtype)
    for part, values in zip(kept, before, strict=True):
        part.float().load_state_dict(values)
    return module


# Gains over unit-variance initialisation, first match wins. The decoder's attention is sharpened
# and its heads are amplified, so that what a prompt says reaches its mask.
_GAINS = (
    ("sam_mask_decoder.transformer.*attn*.[qk]_proj.weight", 2.5),
    ("sam_mask_decoder.transformer.*.out_proj.weight", 1.5),
    ("sam_mask_decoder.output_hypernetworks_mlps.*.layers.2.weight", 1.5),
    ("sam_mask_decoder.output_hypernetworks_mlps.*.weight", 1.4),
    ("sam_mask_decoder.iou_prediction_head.*.weight", 1.4),
    ("sam_mask_decoder.pred_obj_score_head.*.weight", 1.4),
    ("sam_mask_decoder.output_upscaling.*.weight", 1.4),
    ("obj_ptr_proj.*.weight", 1.4),
)
_ABSOLUTE = (
    ("*.positional_encoding_gaussian_matrix", 1.0),
    ("image_encoder.trunk.pos_embed*", 0.3),
    ("sam_prompt_encoder.*embed*.weight", 1.0),
    ("sam_mask_decoder.*_token*.weight", 1.0),
    ("no_mem_embed", 0.5),
    ("maskmem_tpos_enc", 0.5),
    ("no_obj_*", 0.5),
)


def _deviation(name: str, shape: torch.Size) -> float:
    """Return the standard deviation of a weight's random values."""
    name = name.replace("tracking_decoder.", "sam_mask_decoder.")
    tokens = len(shape) == 2 and "transformer" not in name
    for pattern, deviation in _ABSOLUTE:
        if fnmatch(name, pattern) and (tokens or "token" not in pattern):
            return deviation
    transposed = name.startswith("sam_mask_decoder.output_upscaling")
    fan_in = shape[0] if transposed else shape[1:].numel()
    gain = next((gain for pattern, gain in _GAINS if fnmatch(name, pattern)), 1.0)
    return float(gain * fan_in**-0.5)


def random_weights(preset: Preset, seed: int = 0) -> Sam2:
    """Return a model with seeded random weights, the same for a seed on every machine.

    Scaled so that activations stay near unit size and masks are non-trivial: they differ between
    prompts, cover part of the grid, and both branches of the single-mask choice occur.
    """
    return fill_randomly(build_model(preset), seed)


def fill_randomly(model: nn.Module, seed: int) -> nn.Module:
    """Give a model, which has a `preset`, the weights of a seed; see `random_weights`."""
    generator = torch.Generator().manual_seed(seed)

    def values(name: str, old: Tensor) -> Tensor:
        random = torch.randn(old.shape, generator=generator)
        if old.ndim == 1:  # biases and norms
            return 1.0 + 0.1 * random if name.endswith("weight") else 0.1 * random
        random = random * _deviation(name, old.shape)
        # The upscaled features have a positive mean (they come out of a GELU): hypernetworks whose
        # outputs sum to zero keep masks from being all foreground or all background.
        if fnmatch(name, "*hypernetworks*.layers.2.weight"):
            random = (random - random.mean(0)) * min(1.0, 100 / model.preset.width)
        return random

    state = {name: values(name, old) for name, old in sorted(model.state_dict().items())}
    model.load_state_dict(state)
    return model
