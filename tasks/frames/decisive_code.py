"""What decides pixels and boxes: modules, whose source is part of a run's key, and libraries.

The names of the modules do not count, only what is in them. `sam2_core.decisive_code` has masks.
"""

import functools
import hashlib
import json
from importlib import metadata

from sam2_core.decisive_code import source_digest

# Part of a run's key; tests hold them against what reading frames really imports.
PIXEL_MODULES = (
    "tasks.frames.images", "tasks.frames.video", "tasks.frames.mcap_pictures",
)  # fmt: skip
# Their distributions; OpenCV has several, of which one is installed.
_LIBRARIES = {
    "numpy": ("numpy",),
    "opencv": (
        "opencv-python-headless", "opencv-contrib-python-headless", "opencv-python",
        "opencv-contrib-python",
    ),
    "pillow": ("pillow",),
    "pyav": ("av",),
    "simplejpeg": ("simplejpeg",),
}  # fmt: skip


@functools.cache
def decoding_versions() -> dict[str, str]:
    """Return the versions of the installed libraries that decode pictures, videos and recordings.

    The names are "numpy", "opencv", "pillow", "pyav" and "simplejpeg", sorted; one that is not
    installed (PyAV comes with an extra) is left out. Nothing is imported.
    """
    found = {}
    for name, distributions in _LIBRARIES.items():
        for one in distributions:
            try:
                found[name] = metadata.version(one)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


@functools.cache
def decoding_digest() -> str:
    """Return 12 hexadecimal digits of the decoding code and its libraries' versions."""
    versions = json.dumps([source_digest(PIXEL_MODULES), decoding_versions()])
    return hashlib.sha256(versions.encode()).hexdigest()[:12]


_DETECTED = (
    "tasks.boxes.detect", "tasks.boxes.yolox", "tasks.boxes.prompted",
    "sam2_core.backends.onnx_batches", "sam2_core.backends.onnxruntime_cuda",
    "sam2_core.backends.pixel_kernels",
)  # fmt: skip
_IMPORTED = (
    "tasks.boxes.imported", "tasks.boxes.import_files", "tasks.boxes.annotations",
    "tasks.boxes.coco_json",
    "tasks.pipeline.open_boxes",
)  # fmt: skip


def decisive_modules(*, imported: bool) -> tuple[str, ...]:
    """Return the dotted names of what decides pixels and boxes, imported or detected ones."""
    return (*PIXEL_MODULES, *(_IMPORTED if imported else _DETECTED))


def box_code(*, imported: bool) -> str:
    """Return the digest of the code that decides pixels and boxes."""
    return source_digest(decisive_modules(imported=imported))
