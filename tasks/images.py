"""Image files to uint8 RGB as displayed; a damaged file is an error, never half a picture."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from sam2_core.types import AutolabelError, ImageArray
from tasks.types import FrameFailure, FrameRef

_ORIENTATION = 0x0112
_JPEG = {"JPEG", "MPO"}


class BadImageError(AutolabelError):
    """A file that cannot be shown as an image; the message is the reason."""


def read_image(frame: FrameRef) -> ImageArray:
    """Pixels of a downloaded frame: uint8 (H, W, 3) RGB, EXIF rotation applied.

    Raises:
        BadImageError: missing, empty, truncated, damaged or no image; says what.

    """
    path = Path(frame.local_path or frame.uri)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadImageError(f"cannot read {path.name}: {error.strerror}") from error
    return decode_image(data)


def decode_image(data: bytes) -> ImageArray:
    """Decode the bytes of an image file to uint8 (H, W, 3) RGB as displayed.

    Alpha is dropped, grey is repeated, CMYK is converted, 16 bits keep their upper 8.

    Raises:
        BadImageError: the reason.

    """
    if not data:
        raise BadImageError("zero-byte file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data)) as image:
                return _decode(data, image)
        except UnidentifiedImageError as error:
            raise BadImageError("not an image, or its header is damaged") from error
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise BadImageError(f"truncated or damaged image: {error}") from error


def _decode(data: bytes, image: Image.Image) -> ImageArray:
    """Only the header has been read: simplejpeg decodes 3 times faster, and strictly."""
    if image.format in _JPEG and image.mode in {"RGB", "L"}:
        orientation = image.getexif().get(_ORIENTATION, 1)
        return _rotate(simplejpeg.decode_jpeg(data, "RGB", strict=True), orientation)
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return _from_deep_grey(np.asarray(image))
    if image.mode in {"P", "PA"}:
        image = image.convert("RGBA")
    return np.ascontiguousarray(image.convert("RGB"), dtype=np.uint8)


def _from_deep_grey(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ImageArray:
    if values.dtype == np.float32:
        peak = float(np.nanmax(values, initial=0.0))
        scaled = np.nan_to_num(values) * (255.0 if peak <= 1.0 else 1.0)
        grey = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    else:
        grey = (np.clip(values.astype(np.int64), 0, 65535) >> 8).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _rotate(pixels: ImageArray, orientation: int) -> ImageArray:
    """Apply an EXIF orientation (1 to 8; TIFF 6.0, tag 274)."""
    if orientation in {5, 6, 7, 8}:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    if orientation in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def load_frame(frame: FrameRef) -> tuple[FrameRef, ImageArray] | FrameFailure:
    """Read one frame: the reference with its size filled in and the pixels, or why not."""
    try:
        pixels = read_image(frame)
    except BadImageError as error:
        return failure(frame, "decode", str(error))
    return replace(frame, size_hw=pixels.shape[:2]), pixels


def failure(frame: FrameRef, stage: str, reason: str) -> FrameFailure:
    """Say of a frame why it could not be labeled."""
    identity = (frame.sequence_id, frame.camera, frame.index, frame.uri)
    return FrameFailure(*identity, stage, reason)
