"""Seeded random weights: to train from, and to test and time with where there are no others."""

from __future__ import annotations

from fnmatch import fnmatch

import torch
from torch import Tensor

from sam2_core.architecture.model import Sam2, build_model
from sam2_core.presets import Preset

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
)
_ABSOLUTE = (
    ("*.positional_encoding_gaussian_matrix", 1.0),
    ("image_encoder.trunk.pos_embed*", 0.3),
    ("sam_prompt_encoder.*embed*.weight", 1.0),
    ("sam_mask_decoder.*_token*.weight", 1.0),
    ("no_mem_embed", 0.5),
)


def _deviation(name: str, shape: torch.Size) -> float:
    """Return the standard deviation of a weight's random values."""
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
    model = build_model(preset)
    generator = torch.Generator().manual_seed(seed)

    def values(name: str, old: Tensor) -> Tensor:
        random = torch.randn(old.shape, generator=generator)
        if old.ndim == 1:  # biases and norms
            return 1.0 + 0.1 * random if name.endswith("weight") else 0.1 * random
        random = random * _deviation(name, old.shape)
        # The upscaled features have a positive mean (they come out of a GELU): hypernetworks whose
        # outputs sum to zero keep masks from being all foreground or all background.
        if fnmatch(name, "*hypernetworks*.layers.2.weight"):
            random = (random - random.mean(0)) * min(1.0, 100 / preset.width)
        return random

    state = {name: values(name, old) for name, old in sorted(model.state_dict().items())}
    model.load_state_dict(state)
    return model
