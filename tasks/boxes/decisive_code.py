"""Which modules decide pixels and boxes: part of a run's key. `sam2_core.decisive_code` has masks.

The names of the modules do not count, only what is in them.
"""

from __future__ import annotations

from sam2_core.decisive_code import source_digest
from tasks.frames.decoding import PIXEL_MODULES

_DETECTED = (
    "tasks.boxes.detect", "tasks.boxes.yolox", "tasks.boxes.prompted",
    "sam2_core.backends.onnx_in_halves", "sam2_core.backends.onnxruntime_network",
    "sam2_core.backends.pixel_kernels",
)  # fmt: skip
_IMPORTED = (
    "tasks.boxes.imported", "tasks.boxes.import_files", "tasks.boxes.json_boxes",
    "tasks.boxes.text_boxes", "tasks.boxes.rows", "tasks.boxes.cvat_boxes",
    "tasks.boxes.field_boxes",
)  # fmt: skip


def decisive_modules(*, imported: bool) -> tuple[str, ...]:
    """Return the dotted names of what decides pixels and boxes, imported or detected ones."""
    return (*PIXEL_MODULES, *(_IMPORTED if imported else _DETECTED))


def box_code(*, imported: bool) -> str:
    """Return the digest of the code that decides pixels and boxes."""
    return source_digest(decisive_modules(imported=imported))
