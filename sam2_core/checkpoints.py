"""Checkpoints: where they are, whether they are what they should be, and into a model.

Two published forms of the same weights load alike: Meta's .pt files and the Hugging Face
safetensors (see `hugging_face_keys`). Reading a checkpoint needs torch; fetching one does not.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.cache import cache_folder, file_sha256, write_whole
from sam2_core.hugging_face_keys import from_hugging_face, is_hugging_face
from sam2_core.installing import how_to_install
from sam2_core.machine_errors import first_line
from sam2_core.model_download import Progress, by_hand, download
from sam2_core.presets import MICRO, PRESETS, Preset
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Sam2

SOURCES = ("meta", "hugging-face")
_LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
# Of SAM 2's state dict; those of video are not used here.
_PARTS = {
    "image_encoder", "sam_prompt_encoder", "sam_mask_decoder", "no_mem_embed", "memory_attention",
    "memory_encoder", "mask_downsample", "maskmem_tpos_enc", "no_mem_pos_enc", "no_obj_ptr",
    "no_obj_embed_spatial", "obj_ptr_proj", "obj_ptr_tpos_proj",
}  # fmt: skip
PYTORCH = how_to_install("export", "torch")


def checkpoint_path(preset: Preset, source: str = "meta", cache: Path | None = None) -> Path:
    """Return where a preset's checkpoint belongs; `AutolabelError` when none is published."""
    if source not in SOURCES:
        raise AutolabelError(f"unknown source {source!r}: one of {', '.join(SOURCES)}")
    if not preset.checkpoint:
        raise AutolabelError(
            f"{preset.name} comes with this package, graphs and all: nothing has to be downloaded "
            "or exported"
            if preset.name in PRESETS
            else f"no checkpoint of {preset.name} is published for download"
        )
    hub = preset.hugging_face.rpartition("/")[2] + ".safetensors"
    name = preset.checkpoint if source == "meta" else hub
    return cache_folder(cache) / "checkpoints" / name


def _pin(path: Path) -> Path:
    """Return the file beside a checkpoint that holds the sha256 it had when it was first seen."""
    return path.with_name(f"{path.name}.sha256")


def verify(path: Path, pinned: str = "", cache: Path | None = None) -> str:
    """Check a checkpoint's sha256 and return it.

    Args:
        path: the checkpoint.
        pinned: its published sha256, "" when none is known: then the sha256 that `record` left
            beside the file counts.
        cache: cache folder.

    Raises:
        AutolabelError: the file is not what it was or should be; it must not be used.

    """
    try:
        found = file_sha256(path, cache)
    except OSError as error:
        raise AutolabelError(f"cannot read {path}: {error.strerror}") from error
    recorded = _pin(path)
    expected, whose = pinned, "published"
    if not expected:
        with contextlib.suppress(OSError, IndexError):
            expected, whose = recorded.read_text().split()[0], f"recorded in {recorded}"
    if expected and found != expected:
        raise AutolabelError(
            f"{path} has sha256 {found}, not the {whose} {expected}: it is damaged or has been "
            "replaced, and is not used. Remove it and fetch it again"
        )
    return found


def record(path: Path, sha256: str) -> None:
    """Leave the sha256 of a checkpoint beside it, so that another one in its place is noticed.

    Only of one that was fetched whole or has been loaded: a damaged file must not be held to what
    it is, or the sound one that replaces it would be refused.
    """
    recorded = _pin(path)
    if not recorded.exists():
        with contextlib.suppress(OSError):  # a read-only folder: nothing can be recorded
            write_whole(recorded, f"{sha256}  {path.name}\n")


def fetch_checkpoint(
    preset: Preset,
    *,
    source: str = "meta",
    cache: Path | None = None,
    progress: Progress = lambda *_: None,
) -> tuple[Path, str]:
    """Return a preset's checkpoint and its sha256, downloading it when it is not there.

    Meta's files are held to their published sha256. For the Hugging Face files none is known here:
    it is recorded at the first download and held to ever after.

    Raises:
        AutolabelError: cannot be had; the message says which file to place where.

    """
    path = checkpoint_path(preset, source, cache)
    url = preset.meta_url if source == "meta" else preset.hugging_face_url
    pinned = preset.checkpoint_sha256 if source == "meta" else ""
    if not pinned and not path.exists() and _pin(path).exists():
        pinned = _pin(path).read_text().split()[0]  # it was here before: held to what it was
    fetched = download(url, path, sha256=pinned, progress=progress)
    try:
        if path.suffix == ".safetensors":
            _check_safetensors(path, remove=bool(fetched))
        sha256 = verify(path, pinned, cache)
    except AutolabelError as error:
        raise AutolabelError(f"{error}. {by_hand(url, path, pinned)}") from error
    record(path, sha256)
    return path, sha256


def _check_safetensors(path: Path, *, remove: bool) -> None:
    """Refuse what is no whole safetensors file of SAM 2's weights, by its header and size.

    Args:
        path: the file.
        remove: it was fetched just now (from a login page, say): nobody needs it.

    """
    try:
        _check_header(path)
    except AutolabelError as error:
        if not remove:
            raise AutolabelError(f"{error}. Remove it") from error
        path.unlink()
        raise AutolabelError(f"what was fetched is not used: {error}") from error


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < _LONGEST_HEADER else {}
        names = {name: facts for name, facts in header.items() if name != "__metadata__"}
        size = 8 + length + max(facts["data_offsets"][1] for facts in names.values())
    except (OSError, ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise AutolabelError(f"{path} is no safetensors file") from error
    there = path.stat().st_size
    if there != size:
        raise AutolabelError(f"{path} has {there} bytes, and its header says {size}")
    if not is_hugging_face(names):
        raise AutolabelError(f"{path} holds no SAM 2 weights as Hugging Face has them")


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
