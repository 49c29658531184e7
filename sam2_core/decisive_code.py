"""Which modules decide masks, besides the weights: those that every mask goes through.

Tests hold these lists against what labeling really imports.
"""

from __future__ import annotations

from sam2_core.source_digest import source_digest

_EVERYWHERE = (
    "batching", "close_ups", "mask_borders", "postprocess", "preprocess", "prompts",
    "rle", "segmenter", "views", "windows",
)  # fmt: skip
_ONNXRUNTIME = ("backends.onnxruntime_backend", "onnx_contract")
_BACKENDS = {
    "onnxruntime-cpu": _ONNXRUNTIME,
    "onnxruntime-cuda": (
        *_ONNXRUNTIME, "backends.gpu", "backends.onnxruntime_cuda", "backends.onnxruntime_fusion",
        "backends.onnxruntime_graph", "backends.onnxruntime_short_norm", "backends.pixel_kernels",
    ),
    "tensorrt": (
        "onnx_contract", "backends.tensorrt_backend", "backends.tensorrt_build",
        "backends.tensorrt_calls", "backends.tensorrt_engine", "backends.tensorrt_loading",
        "backends.tensorrt_plan", "backends.gpu", "backends.pixel_kernels",
    ),
    "torch": (
        "backends.torch_backend", "backends.torch_buckets", "backends.torch_captured",
        "backends.torch_compiled", "backends.torch_modules", "backends.torch_pixels",
        "architecture.hiera", "architecture.layers", "architecture.lean_attention",
        "architecture.lean_decoder", "architecture.lean_encoder", "architecture.mask_decoder",
        "architecture.model", "architecture.prompt_encoder", "architecture.published",
        "architecture.token_grid", "hugging_face_keys",
    ),
}  # fmt: skip


def decisive_modules(backend: str) -> tuple[str, ...]:
    """Return the dotted names of what decides the masks of a backend.

    Args:
        backend: as stamps name it; what follows its name, such as a version, does not matter.

    """
    own = next((names for name, names in _BACKENDS.items() if backend.startswith(name)), ())
    return tuple(f"sam2_core.{name}" for name in (*_EVERYWHERE, *own))


def mask_code(backend: str) -> str:
    """Return the digest of the code that decides a backend's masks: a stamp's `code_version`."""
    return source_digest(decisive_modules(backend))
