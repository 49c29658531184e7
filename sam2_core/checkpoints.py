"""Checkpoints into a model: Meta's .pt files, and safetensors with Meta's or Hugging Face's names.

Reading one needs torch; the names do not.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.machine import how_to_install
from sam2_core.machine_errors import first_line
from sam2_core.presets import MICRO, PRESETS, Preset
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Sam2

_HEADS = r"(output_hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head)"

# (pattern, replacement), applied in order to the whole name.
_RENAMES: tuple[tuple[str, str], ...] = (
    # Heads have three layers, the MLPs of transformers two.
    (rf"\.{_HEADS}\.layers\.0\.", r".\1.layers.1."),
    (rf"\.{_HEADS}\.proj_out\.", r".\1.layers.2."),
    (r"\.proj_out\.", ".layers.1."),
    (r"\.proj_in\.", ".layers.0."),
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


def from_hugging_face(state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a Hugging Face state dict to Meta's names; arrays are shared, not copied."""
    result: dict[str, Any] = {}
    for key, value in state.items():
        if not key.startswith(_IMAGE_PATH) or key in _DUPLICATES:
            continue
        if key == _POINTS:
            for i in range(4):
                result[f"sam_prompt_encoder.point_embeddings.{i}.weight"] = value[i : i + 1]
            continue
        name = key
        for pattern, replacement in _RENAMES:
            name = re.sub(pattern, replacement, name)
        result[name] = value
    return result


# Of SAM 2's state dict; those of video are not used here.
_PARTS = {
    "image_encoder", "sam_prompt_encoder", "sam_mask_decoder", "no_mem_embed", "memory_attention",
    "memory_encoder", "mask_downsample", "maskmem_tpos_enc", "no_mem_pos_enc", "no_obj_ptr",
    "no_obj_embed_spatial", "obj_ptr_proj", "obj_ptr_tpos_proj",
}  # fmt: skip
PYTORCH = how_to_install("export", "torch")


def read_weights(path: Path) -> dict[str, Any]:
    """Read a checkpoint file of either form: Meta's names to tensors, image path only.

    Raises:
        AutolabelError: no such file, or it holds no SAM 2 weights.

    """
    from sam2_core.architecture import image_path_keys

    if not path.is_file():
        raise AutolabelError(f"there is no checkpoint {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(str(path))
        else:
            import torch

            state = torch.load(str(path), map_location="cpu", weights_only=True)
            state = state.get("model", state) if isinstance(state, dict) else {}
    except ImportError as error:
        raise AutolabelError(f"reading {path} needs the package {error.name}: {PYTORCH}") from error
    except pickle.UnpicklingError as error:  # torch's words tell how to run what it holds
        raise AutolabelError(
            f"cannot read the checkpoint {path}: it is damaged or holds more than weights, such as "
            "code, and is not opened"
        ) from error
    except Exception as error:  # torch and safetensors each raise their own
        why = first_line(error)
        raise AutolabelError(f"cannot read the checkpoint {path}: {why}") from error
    state = state if _of_tensors(state) else {}
    if is_hugging_face(state):
        state = from_hugging_face(state)
    keys = image_path_keys(state)
    if "no_mem_embed" not in keys:
        raise AutolabelError(
            f"{path} holds no SAM 2 weights (Meta's .pt or the Hugging Face safetensors)"
        )
    if unknown := sorted(key for key in state if key.partition(".")[0] not in _PARTS):
        raise AutolabelError(f"{path} holds what no SAM 2 has: {unknown[0]}")
    return {key: state[key] for key in keys}


def _of_tensors(state: Any) -> bool:
    return isinstance(state, dict) and all(
        isinstance(key, str) and hasattr(value, "shape") for key, value in state.items()
    )


def preset_of(state: dict[str, Any], path: Path) -> Preset:
    """Tell a checkpoint's preset by its shapes; `AutolabelError` when none fits."""
    dim = state["image_encoder.trunk.patch_embed.proj.bias"].shape[0]
    blocks = 1 + max(int(key.split(".")[3]) for key in state if ".trunk.blocks." in key)
    width = state["no_mem_embed"].shape[-1]
    for preset in (*PRESETS.values(), MICRO):
        if (preset.embed_dim, sum(preset.stages)) == (dim, blocks):
            return preset.sized(width=width)
    raise AutolabelError(
        f"{path} fits no preset: {blocks} trunk blocks, {dim} channels, width {width}"
    )


def _finite(values: Any) -> bool:
    return not values.is_complex() and bool(values.isfinite().all())


def load_checkpoint(path: Path, preset: Preset | None = None) -> Sam2:
    """Build the model of a checkpoint file, in evaluation mode.

    Args:
        path: Meta's .pt, or safetensors of either naming.
        preset: the dimensions it should have; told by its shapes when None.

    Raises:
        AutolabelError: unreadable, or its weights do not fit.

    """
    from sam2_core.architecture import build_model

    state = read_weights(path)
    preset = preset or preset_of(state, path)
    model = build_model(preset)
    wanted = model.state_dict()
    missing = sorted(set(wanted) - set(state))
    unknown = sorted(set(state) - set(wanted))
    misshapen = [key for key in wanted if key in state and wanted[key].shape != state[key].shape]
    odd = [key for key in wanted if key in state and not _finite(state[key])]
    for text, keys in (
        ("lacks", missing), ("has unknown", unknown), ("has misshapen", misshapen),
        ("has values that are no finite real numbers in", odd),
    ):  # fmt: skip
        if keys:
            raise AutolabelError(
                f"{path} does not fit the preset {preset.name}: it {text} {keys[0]}"
                + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
            )
    model.load_state_dict({key: value.float() for key, value in state.items()})
    return model
