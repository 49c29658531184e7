"""The Hugging Face names of SAM 2's weights, mapped to Meta's one to one.

The layout is that of the transformers library's `Sam2Model`; a video model's memory weights are
left out. Works on any mapping of arrays (torch or numpy): it only renames and slices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MLP_PARTS = "(mlp|output_hypernetworks_mlps\\.\\d+|iou_prediction_head|pred_obj_score_head)"

# (pattern, replacement), applied in order to the whole name.
_RENAMES: tuple[tuple[str, str], ...] = (
    (r"^vision_encoder\.backbone\.patch_embed\.projection\.",
     "image_encoder.trunk.patch_embed.proj."),
    (r"^vision_encoder\.backbone\.", "image_encoder.trunk."),
    (r"^vision_encoder\.neck\.convs\.(\d+)\.", r"image_encoder.neck.convs.\1.conv."),
    (r"^shared_image_embedding\.positional_embedding$",
     "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"),
    (r"^prompt_encoder\.mask_embed\.conv1\.", "sam_prompt_encoder.mask_downscaling.0."),
    (r"^prompt_encoder\.mask_embed\.layer_norm1\.", "sam_prompt_encoder.mask_downscaling.1."),
    (r"^prompt_encoder\.mask_embed\.conv2\.", "sam_prompt_encoder.mask_downscaling.3."),
    (r"^prompt_encoder\.mask_embed\.layer_norm2\.", "sam_prompt_encoder.mask_downscaling.4."),
    (r"^prompt_encoder\.mask_embed\.conv3\.", "sam_prompt_encoder.mask_downscaling.6."),
    (r"^prompt_encoder\.", "sam_prompt_encoder."),
    (r"^mask_decoder\.upscale_conv1\.", "sam_mask_decoder.output_upscaling.0."),
    (r"^mask_decoder\.upscale_layer_norm\.", "sam_mask_decoder.output_upscaling.1."),
    (r"^mask_decoder\.upscale_conv2\.", "sam_mask_decoder.output_upscaling.3."),
    (r"^mask_decoder\.", "sam_mask_decoder."),
    (r"\.layer_norm_final_attn\.", ".norm_final_attn."),
    (r"\.layer_norm(\d)\.", r".norm\1."),
    (r"\.o_proj\.", ".out_proj."),
    (r"^no_memory_embedding$", "no_mem_embed"),
)  # fmt: skip
_POINTS = "prompt_encoder.point_embed.weight"
# The prompt encoder's copy of the shared position encoding.
_DUPLICATES = ("prompt_encoder.shared_embedding.positional_embedding",)
_IMAGE_PATH = (
    "vision_encoder.", "prompt_encoder.", "mask_decoder.", "shared_image_embedding.",
    "no_memory_embedding",
)  # fmt: skip


def is_hugging_face(keys: Mapping[str, Any]) -> bool:
    """Whether a state dict has the Hugging Face layout."""
    return any(key.startswith(("vision_encoder.", "shared_image_embedding.")) for key in keys)


def _rename_mlp(key: str, depth: Mapping[str, int]) -> str:
    """proj_in, layers.N, proj_out -> layers.0, layers.N+1, layers.last."""
    match = re.match(rf"(.*\.{_MLP_PARTS})\.(proj_in|layers\.(\d+)|proj_out)\.(.*)", key)
    if match is None:
        return key
    stem, part, inner, parameter = match[1], match[3], match[4], match[5]
    if part == "proj_in":
        index = 0
    else:
        index = depth.get(stem, 0) + 1 if part == "proj_out" else int(inner) + 1
    return f"{stem}.layers.{index}.{parameter}"


def from_hugging_face(state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a Hugging Face state dict to Meta's names; arrays are shared, not copied."""
    depth: dict[str, int] = {}
    for key in state:
        match = re.match(rf"(.*\.{_MLP_PARTS})\.layers\.(\d+)\.weight$", key)
        if match:
            depth[match[1]] = max(depth.get(match[1], 0), int(match[3]) + 1)
    result: dict[str, Any] = {}
    for key, value in state.items():
        if not key.startswith(_IMAGE_PATH) or key in _DUPLICATES:
            continue
        if key == _POINTS:
            for i in range(4):
                result[f"sam_prompt_encoder.point_embeddings.{i}.weight"] = value[i : i + 1]
            continue
        name = _rename_mlp(key, depth)
        for pattern, replacement in _RENAMES:
            name = re.sub(pattern, replacement, name)
        result[name] = value
    return result
