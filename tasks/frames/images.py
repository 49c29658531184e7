"""Image files to uint8 RGB as displayed; a damaged file is an error, never half a picture."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from sam2_core.images import LIMIT_NAME, MOST_MEGAPIXELS, max_megapixels
from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.types import AutolabelError, FloatArray, ImageArray
from tasks.frames.identity import CHANGED_SINCE_LISTED, is_file_here, read_versioned
from tasks.types import FrameFailure, FrameRef

# Our own limit judges them. For good: what restores filters in one thread undoes them in all.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)

_ORIENTATION = 0x0112
_JPEG = {"JPEG", "MPO"}
# Formats that Pillow may read, whatever the suffix: some of its other readers run programs (EPS).
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")


class BadImageError(AutolabelError):
    """A file that cannot be shown as an image; the message is the reason."""


class NotReadError(BadImageError):
    """A file that cannot be read now, or is no longer the one that was listed: run again."""


class TooLargeError(BadImageError):
    """A picture with more pixels than the limit; nothing of it has been decoded."""


def refuse_large(width: int, height: int) -> None:
    """Refuse a picture by what its header says: a file of kilobytes may decode to gigabytes.

    Raises:
        TooLargeError: it has more pixels than the limit.

    """
    if width * height > max_megapixels() * 1_000_000:
        raise _too_large(f"{width}x{height}", width * height)


def _too_large(what: str, pixels: int) -> TooLargeError:
    return TooLargeError(
        f"{what} is {pixels / 1e6:.0f} megapixels, more than {max_megapixels()}; {LIMIT_NAME} sets "
        f"another limit, of at most {MOST_MEGAPIXELS}"
    )


def read_image(frame: FrameRef) -> ImageArray:
    """Pixels of a downloaded frame: uint8 (H, W, 3) RGB, EXIF rotation applied.

    Raises:
        BadImageError: empty, truncated, damaged or no image; says what.
        NotReadError: missing, access is denied, or changed since it was listed.
        MachineError: the disk fails, or memory or file handles are at an end.

    """
    return decode_image(_file_bytes(frame))


def _file_bytes(frame: FrameRef) -> bytes:
    path = Path(frame.local_path or frame.uri)
    try:
        data, version = read_versioned(path)
    except OSError as error:
        if is_machine_error(error):
            raise as_machine_error(error, f"reading {path}") from error
        raise NotReadError(f"cannot read {path.name}: {error.strerror}") from error
    if is_file_here(frame.uri) and frame.etag not in {"", version}:
        raise NotReadError(f"{path.name}: {CHANGED_SINCE_LISTED}")
    return data


def stored_size(frame: FrameRef) -> tuple[tuple[int, int], int]:
    """(height, width) of a downloaded frame as its file stores it, and its EXIF orientation.

    The orientation is 1 to 8 (TIFF 6.0, tag 274); `read_image` turns by it. Only the header is
    decoded.

    Raises:
        BadImageError: as `read_image`, as far as a header tells.

    """
    with _opened(_file_bytes(frame)) as image:
        return (image.height, image.width), _orientation(image)


def is_picture(path: Path, size_hw: tuple[int, int]) -> bool:
    """Whether a file's header is that of a picture of this (height, width) as displayed."""
    try:
        with _opened(path) as image:
            return shown_size((image.height, image.width), _orientation(image)) == size_hw
    except BadImageError:
        return False


def decode_image(data: bytes) -> ImageArray:
    """Decode the bytes of an image file to uint8 (H, W, 3) RGB as displayed.

    Alpha is dropped, grey is repeated, CMYK is converted, 16 bits keep their upper 8.

    Raises:
        BadImageError: the reason.

    """
    with _opened(data) as opened:
        # Only the header has been read: simplejpeg decodes 3 times faster, and strictly.
        if opened.format in _JPEG and opened.mode in {"RGB", "L"}:
            pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
            return turn_pixels(pixels, _orientation(opened))
        opened.load()
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")):
            return _from_deep_grey(np.asarray(image))
        if image.mode in {"P", "PA"}:
            image = image.convert("RGBA")
        return np.ascontiguousarray(image.convert("RGB"), dtype=np.uint8)


def as_jpeg(pixels_bgr: Any, quality: int = 95) -> bytes:
    """Encode a picture, uint8 (H, W, 3) BGR, as JPEG."""
    import cv2

    return bytes(cv2.imencode(".jpg", pixels_bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes())


@contextlib.contextmanager
def _opened(data: bytes | Path) -> Iterator[Image.Image]:
    """Open an image, of which only the header is read and judged; what fails is a BadImageError."""
    if not data:
        raise BadImageError("zero-byte file")
    try:
        file = io.BytesIO(data) if isinstance(data, bytes) else data
        with Image.open(file, formats=_FORMATS) as image:
            refuse_large(*image.size)
            yield image
    except UnidentifiedImageError as error:
        raise BadImageError("not an image, or its header is damaged") from error
    except Image.DecompressionBombError as error:  # it tells the pixels, and not width and height
        pixels = re.search(r"\d+", str(error))
        raise _too_large("the picture", int(pixels[0]) if pixels else 0) from error
    except AutolabelError:
        raise
    except Exception as error:  # of bytes in memory: whatever a decoder trips over is in them
        if is_machine_error(error):
            raise as_machine_error(error, "decoding a picture") from error
        raise BadImageError(f"truncated or damaged image: {error}") from error


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 where there is none or an unknown one."""
    found = image.getexif().get(_ORIENTATION, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _from_deep_grey(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ImageArray:
    if values.dtype == np.float32:
        peak = float(np.nanmax(values, initial=0.0))
        scaled = np.nan_to_num(values) * (255.0 if peak <= 1.0 else 1.0)
        grey = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    else:
        grey = (np.clip(values, 0, 65535) >> 8).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def load_frame(frame: FrameRef) -> tuple[FrameRef, ImageArray] | FrameFailure:
    """Read one frame: the reference with its size filled in and the pixels, or why not."""
    try:
        pixels = read_image(frame)
    except NotReadError as error:
        return FrameFailure.of(frame, "download", str(error))
    except BadImageError as error:
        return FrameFailure.of(frame, "decode", str(error))
    return replace(frame, size_hw=pixels.shape[:2]), pixels


UPRIGHT = 1
# How a stored picture is turned: first transposed, then mirrored left to right, then upside down.
_TRANSPOSED = frozenset({5, 6, 7, 8})
_MIRRORED = frozenset({2, 3, 6, 7})
_UPSIDE_DOWN = frozenset({3, 4, 7, 8})


def shown_size(stored_hw: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) as displayed of a picture as stored."""
    height, width = stored_hw
    return (width, height) if orientation in _TRANSPOSED else stored_hw


def turn_pixels(pixels: ImageArray, orientation: int) -> ImageArray:
    """Turn a stored picture, uint8 (H, W, 3), to how it is displayed."""
    if orientation in _TRANSPOSED:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def turn_boxes(xyxy_px: FloatArray, stored_hw: tuple[int, int], orientation: int) -> FloatArray:
    """Turn boxes, float32 (N, 4) in pixels of the stored picture, with it."""
    height, width = shown_size(stored_hw, orientation)
    left, top, right, bottom = xyxy_px.T
    if orientation in _TRANSPOSED:
        left, top, right, bottom = top, left, bottom, right
    if orientation in _MIRRORED:
        left, right = width - right, width - left
    if orientation in _UPSIDE_DOWN:
        top, bottom = height - bottom, height - top
    return np.stack([left, top, right, bottom], axis=1)
