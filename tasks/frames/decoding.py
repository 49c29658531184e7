"""The libraries that decode pictures, videos and recordings."""

import functools
import hashlib
import json
from importlib import metadata

from sam2_core.labels_version import LABELS_VERSION

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
    installed is left out. Nothing is imported.
    """
    found = {}
    for name, distributions in _LIBRARIES.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


@functools.cache
def decoding_digest() -> str:
    """Return 12 hexadecimal digits of the labels' version and the libraries' versions."""
    versions = json.dumps([LABELS_VERSION, decoding_versions()])
    return hashlib.sha256(versions.encode()).hexdigest()[:12]
