"""The modules that are exported, their example inputs, and the files made of their graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sam2_core.onnx_contract import CLOSE_UP, DECODED, FEATURES
from sam2_core.presets import Preset

if TYPE_CHECKING:
    from sam2_core.architecture import Sam2

# Of all four masks; in decoder_multi.onnx they carry the names above.
DECODED_MULTI = ("logits_multi", "predicted_iou_multi", "stability_multi")
# A file's name, the outputs that it keeps, and whether it is for features of one image.
File = tuple[str, tuple[str, ...], bool]


@dataclass(frozen=True)
class Job:
    """A module to trace, and the files that become of its graph."""

    name: str
    module: Any
    inputs: dict[str, Any]
    outputs: tuple[str, ...]
    files: tuple[File, ...]


MULTI = (*DECODED_MULTI[:2], DECODED[2], DECODED_MULTI[2])


def windows_of(preset: Preset) -> tuple[int, ...]:
    """Sides of the window buckets in cells: a quarter and half of the embedding's grid."""
    return (preset.embedding_grid // 4, preset.embedding_grid // 2)


def published_jobs(model: Sam2, dtype: Any) -> Iterator[Job]:
    """Yield the modules of the published graph; the model is cast to `dtype`."""
    from sam2_core.architecture import cast
    from sam2_core.architecture.published import PublishedDecoder, PublishedEncoder

    preset = model.preset
    cast(model, dtype)
    grid, width = preset.grid, preset.width
    shapes = (width, grid // 4, grid // 4), (width // 8, grid, grid), (width // 4, *[grid // 2] * 2)
    inputs = _prompts(preset, shapes, dtype)
    yield _encoder_job(preset, PublishedEncoder(model))
    decoder, outputs = PublishedDecoder(model), (*DECODED, *DECODED_MULTI)
    files: tuple[File, ...] = (("decoder", DECODED, False), ("decoder_multi", MULTI, False))
    yield Job("decoder", decoder, inputs, outputs, files)
    masked = inputs | _mask_input(preset)
    yield Job("decoder_mask", decoder, masked, outputs, (("decoder_mask", DECODED, False),))


def restructured_jobs(model: Sam2, dtype: Any) -> Iterator[Job]:
    """Yield the modules of the restructured graph; the model is cast to `dtype`."""
    import torch

    from sam2_core.architecture.lean_decoder import LeanDecoder
    from sam2_core.architecture.lean_encoder import LeanEncoder
    from sam2_core.architecture.model import at_size, cast
    from sam2_core.architecture.published import Finished

    preset = model.preset
    close_up = at_size(model, preset.close_up_size) if preset.close_up_size else None
    inputs = _lean_prompts(preset, dtype)
    # Folded in float32, cast afterwards.
    encoder = LeanEncoder(model, early=dtype == torch.float16)
    plain, masked = LeanDecoder(model), LeanDecoder(model, masked=True)
    windowed = {side: LeanDecoder(model, window=side) for side in windows_of(preset)}
    cast(model, dtype)
    for module in (encoder, plain, masked, *windowed.values()):
        cast(module, dtype)
    yield _encoder_job(preset, encoder)
    outputs = (*DECODED, *DECODED_MULTI)
    files: tuple[File, ...] = (
        ("decoder", DECODED, False),
        ("decoder_single", DECODED, True),
        ("decoder_multi", MULTI, False),
    )
    yield Job("decoder", Finished(plain), inputs, outputs, files)
    given = inputs | _mask_input(preset)
    files = (("decoder_mask", DECODED, False),)
    yield Job("decoder_mask", Finished(masked), given, outputs, files)
    for side, module in windowed.items():
        name = f"decoder_w{side}"
        given = inputs | {"window_yx": torch.zeros(3, 2, dtype=torch.int32)}
        files = ((name, DECODED, False), (f"decoder_single_w{side}", DECODED, True))
        yield Job(name, Finished(module), given, outputs, files)
    if close_up is not None:
        yield from _close_up_jobs(close_up, dtype)


def _close_up_jobs(model: Sam2, dtype: Any) -> Iterator[Job]:
    """Yield the restructured modules for close-ups; every prompt has an image of its own."""
    import torch

    from sam2_core.architecture.lean_decoder import LeanDecoder
    from sam2_core.architecture.lean_encoder import LeanEncoder
    from sam2_core.architecture.model import cast
    from sam2_core.architecture.published import Finished

    encoder, decoder = LeanEncoder(model, early=dtype == torch.float16), LeanDecoder(model)
    cast(encoder, dtype)
    cast(decoder, dtype)
    yield _encoder_job(model.preset, encoder, f"encoder{CLOSE_UP}")
    name = f"decoder{CLOSE_UP}"
    inputs = _lean_prompts(model.preset, dtype)
    yield Job(name, Finished(decoder), inputs, DECODED, ((name, DECODED, False),))


def _lean_prompts(preset: Preset, dtype: Any) -> dict[str, Any]:
    """Return example inputs of a restructured decoder."""
    cells, width = preset.embedding_grid**2, preset.width
    shapes = (cells, width), (cells, 16, width // 8), (cells, 4, width // 4)
    return _prompts(preset, shapes, dtype)


def _encoder_job(preset: Preset, module: Any, name: str = "encoder") -> Job:
    import torch

    size = preset.image_size
    inputs = {"image": torch.zeros(2, 3, size, size)}
    return Job(name, module, inputs, FEATURES, ((name, FEATURES, False),))


def _prompts(preset: Preset, shapes: Any, dtype: Any) -> dict[str, Any]:
    """Return example inputs of a decoder: two images, three prompts of four points."""
    import torch

    features = {
        name: torch.randn(2, *shape, dtype=dtype)
        for name, shape in zip(FEATURES, shapes, strict=True)
    }
    return features | {
        "points": torch.rand(3, 4, 2) * preset.image_size,
        "labels": torch.tensor([[2, 3, 1, -1]] * 3, dtype=torch.int32),
        "image_index": torch.tensor([0, 1, 0]),
    }


def _mask_input(preset: Preset) -> dict[str, Any]:
    import torch

    return {"mask_input": torch.randn(3, 1, preset.grid, preset.grid)}


DYNAMIC = {
    "image": {0: "B"},
    **{name: {0: "B"} for name in FEATURES},
    "points": {0: "P", 1: "K"},
    "labels": {0: "P", 1: "K"},
    "image_index": {0: "P"},
    "mask_input": {0: "P"},
    "window_yx": {0: "P"},
}
