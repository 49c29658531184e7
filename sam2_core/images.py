"""A picture's file as the array that a segmenter takes."""

from pathlib import Path

import numpy as np

from sam2_core.types import AutolabelError, ImageArray


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
