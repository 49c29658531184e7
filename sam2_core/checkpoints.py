"""Checkpoints into a model: Meta's .pt files, and safetensors with Meta's or Hugging Face's names.

Reading one needs torch; the names do not.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sam2_core.machine import how_to_install
from sam2_core.machine_errors import first_line
from sam2_core.presets import MICRO, PRESETS, Preset
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Memory, Sam2

Model = TypeVar("Model", "Sam2", "Memory")
_HEADS = (
    r"(output_hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head|object_pointer_proj)"
)

# (pattern, replacement), applied in order to the whole name.
_RENAMES: tuple[tuple[str, str], ...] = (
    # Heads have three layers, the MLPs of transformers two.
    (rf"\b{_HEADS}\.layers\.0\.", r"\1.layers.1."),
    (rf"\b{_HEADS}\.proj_out\.", r"\1.layers.2."),
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
    *((rf"_downsampler\.layers\.{i}\.conv\.", f"_downsampler.encoder.{3 * i}.") for i in range(4)),
    *((rf"_downsampler\.layers\.{i}\.layer_norm\.", f"_downsampler.encoder.{3 * i + 1}.")
      for i in range(4)),
    (r"\.layer_norm(\d?)\.", r".norm\1."),
    (r"\.o_proj\.", ".out_proj."),
    (r"^no_memory_embedding$", "no_mem_embed"),
    (r"_downsampler\.final_conv\.", "_downsampler.encoder.12."),
    (r"^memory_encoder\.feature_projection\.", "memory_encoder.pix_feat_proj."),
    (r"^memory_encoder\.projection\.", "memory_encoder.out_proj."),
    (r"\.memory_fuser\.", ".fuser."),
    (r"\.depthwise_conv\.", ".dwconv."),
    (r"\.pointwise_conv(\d)\.", r".pwconv\1."),
    (r"\.scale$", ".gamma"),
    (r"^memory_temporal_positional_encoding$", "maskmem_tpos_enc"),
    (r"^no_object_pointer$", "no_obj_ptr"),
    (r"^occlusion_spatial_embedding_parameter$", "no_obj_embed_spatial"),
    (r"^object_pointer_proj\.", "obj_ptr_proj."),
    (r"^temporal_positional_encoding_projection_layer\.", "obj_ptr_tpos_proj."),
)  # fmt: skip
_POINTS = "prompt_encoder.point_embed.weight"
# The prompt encoder's copy of the shared position encoding.
_DUPLICATES = ("prompt_encoder.shared_embedding.positional_embedding",)
# Parts of SAM 2's state dict.
_IMAGE_PATH = {"image_encoder", "sam_prompt_encoder", "sam_mask_decoder", "no_mem_embed"}
_MEMORY = {
    "memory_attention", "memory_encoder", "mask_downsample", "maskmem_tpos_enc", "no_obj_ptr",
    "no_obj_embed_spatial", "obj_ptr_proj", "obj_ptr_tpos_proj", "tracking_decoder",
}  # fmt: skip
_UNUSED = "no_mem_pos_enc"  # by any published model


def part_of(key: str) -> str:
    """Return the part of SAM 2 that one of Meta's names belongs to."""
    return key.partition(".")[0]


def is_hugging_face(keys: Mapping[str, Any]) -> bool:
    """Whether a state dict has the Hugging Face layout."""
    return any(key.startswith(("vision_encoder.", "shared_image_embedding.")) for key in keys)


def from_hugging_face(state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a Hugging Face state dict to Meta's names; arrays are shared, not copied."""
    result: dict[str, Any] = {}
    for key, value in state.items():
        if key in _DUPLICATES:
            continue
        if key == _POINTS:
            for i in range(4):
                result[f"sam_prompt_encoder.point_embeddings.{i}.weight"] = value[i : i + 1]
            continue
        name = key
        for pattern, replacement in _RENAMES:
            name = re.sub(pattern, replacement, name)
        if part_of(name) in _IMAGE_PATH | _MEMORY:
            result[name] = value
    return result


PYTORCH = how_to_install("export")


# What an export needs beside PyTorch.
EXPORTING = ("onnx", "onnxscript")


def need_torch(what: str, instead: str = "", also: Sequence[str] = ()) -> None:
    """Refuse what needs packages that are not installed.

    Args:
        what: is to be done.
        instead: says how to do without.
        also: packages beside PyTorch.

    Raises:
        AutolabelError: one is not installed.

    """
    missing = [package for package in ("torch", *also) if importlib.util.find_spec(package) is None]
    if missing:
        named = "PyTorch" if missing[0] == "torch" else f"the package {missing[0]}"
        raise AutolabelError(f"{what} needs {named}: {PYTORCH}{instead}")


class NoMemoryError(AutolabelError):
    """A model segments images only."""


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a checkpoint file of either form: Meta's names to tensors.

    Returns:
        The image path, and the memory of video; one of them may be empty.

    Raises:
        AutolabelError: no such file, or it holds no weights of SAM 2.

    """
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
    weights = isinstance(state, dict) and all(
        isinstance(key, str) and hasattr(value, "shape") for key, value in state.items()
    )
    state = state if weights else {}
    if is_hugging_face(state):
        state = from_hugging_face(state)
    if not {"no_mem_embed", "no_obj_ptr"} & state.keys():
        raise AutolabelError(
            f"{path} holds no SAM 2 weights (Meta's .pt or the Hugging Face safetensors)"
        )
    parts = {key: part_of(key) for key in state if key != _UNUSED}
    if unknown := sorted(key for key, part in parts.items() if part not in _IMAGE_PATH | _MEMORY):
        raise AutolabelError(f"{path} holds what no SAM 2 has: {unknown[0]}")
    images, memory = (
        {key: state[key] for key, part in parts.items() if part in some}
        for some in (_IMAGE_PATH, _MEMORY)
    )
    return images, memory


def preset_of(state: dict[str, Any], path: Path) -> Preset:
    """Tell a checkpoint's preset by the shapes of its image path; `AutolabelError` if none fits."""
    if not state:
        raise AutolabelError(f"{path} holds a memory of video alone: name the whole checkpoint")
    dim = state["image_encoder.trunk.patch_embed.proj.bias"].shape[0]
    blocks = 1 + max(int(key.split(".")[3]) for key in state if ".trunk.blocks." in key)
    width = state["no_mem_embed"].shape[-1]
    for preset in (*PRESETS.values(), MICRO):
        if (preset.embed_dim, sum(preset.stages)) == (dim, blocks):
            return preset.sized(width=width)
    raise AutolabelError(
        f"{path} fits no preset: {blocks} trunk blocks, {dim} channels, width {width}"
    )


def load_checkpoint(path: Path, preset: Preset | None = None) -> Sam2:
    """Build the model of a checkpoint file, in evaluation mode.

    Args:
        path: Meta's .pt, or safetensors of either naming.
        preset: the dimensions it should have; told by its shapes when None.

    Raises:
        AutolabelError: unreadable, or its weights do not fit.

    """
    from sam2_core.architecture import build_model

    state, _ = read_weights(path)
    return _with_weights(build_model(preset or preset_of(state, path)), state, path)


def load_memory(path: Path, preset: Preset | None = None) -> Memory | None:
    """Build the memory of a checkpoint file, in evaluation mode; None: it segments images only.

    Args:
        path: as for `load_checkpoint`.
        preset: of the model that `load_checkpoint` returns; told by its shapes when None.

    Raises:
        AutolabelError: unreadable, or its weights do not fit.

    """
    from sam2_core.architecture import build_memory

    images, state = read_weights(path)
    if not state:
        return None
    return _with_weights(build_memory(preset or preset_of(images, path)), state, path)


def _with_weights(model: Model, state: dict[str, Any], path: Path) -> Model:
    wanted = model.state_dict()
    missing = sorted(set(wanted) - set(state))
    unknown = sorted(set(state) - set(wanted))
    misshapen = [key for key in wanted if key in state and wanted[key].shape != state[key].shape]
    odd = [
        key for key in wanted
        if key in state and (state[key].is_complex() or not state[key].isfinite().all())
    ]  # fmt: skip
    for text, keys in (
        ("lacks", missing), ("has unknown", unknown), ("has misshapen", misshapen),
        ("has values other than finite real numbers in", odd),
    ):  # fmt: skip
        if keys:
            raise AutolabelError(
                f"{path} does not fit the preset {model.preset.name}: it {text} {keys[0]}"
                + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
            )
    model.load_state_dict({key: value.float() for key, value in state.items()})
    return model
