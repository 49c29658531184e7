"""A picture's file as the array that a segmenter takes, and how large a picture may be."""

import os
from pathlib import Path

import numpy as np

from sam2_core.types import AutolabelError, ImageArray

LIMIT_NAME = "AUTOLABEL_MAX_MEGAPIXELS"
DEFAULT_MEGAPIXELS = 64
# Above it Pillow refuses by itself.
MOST_MEGAPIXELS = 178


def open_image(path: str | Path) -> ImageArray:
    """Read a picture: uint8 (H, W, 3) RGB as displayed, EXIF rotation applied.

    Raises:
        AutolabelError: it is not there or cannot be decoded; names the file.

    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            return np.array(ImageOps.exif_transpose(image).convert("RGB"), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise AutolabelError(f"cannot read the picture {path}: {error}") from error


def max_megapixels() -> int:
    """Return the limit of a picture's size: millions of pixels.

    Raises:
        AutolabelError: AUTOLABEL_MAX_MEGAPIXELS is no number from 1 to 178.

    """
    text = os.environ.get(LIMIT_NAME, str(DEFAULT_MEGAPIXELS))
    if not text.isdecimal() or not 1 <= int(text) <= MOST_MEGAPIXELS:
        raise AutolabelError(f"{LIMIT_NAME}={text!r}: give a whole number from 1 to 178")
    return int(text)
