"""Pictures in messages as the bytes of image files: raw ones become PNG, compressed ones stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.frames.images import refuse_large

JPEG_QUALITY = 95
_HEADS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\x00": ".tif",
    b"MM\x00*": ".tif",
}
# Encodings (sensor_msgs/image_encodings.hpp, foxglove.RawImage): type, channels, code to BGR.
_ENCODINGS: dict[str, tuple[str, int, str]] = {
    "rgb8": ("u1", 3, "COLOR_RGB2BGR"), "8UC3": ("u1", 3, ""), "bgr8": ("u1", 3, ""),
    "rgba8": ("u1", 4, "COLOR_RGBA2BGR"), "bgra8": ("u1", 4, "COLOR_BGRA2BGR"),
    "mono8": ("u1", 1, ""), "8UC1": ("u1", 1, ""),
    "mono16": ("u2", 1, ""), "16UC1": ("u2", 1, ""),
    # OpenCV names a Bayer pattern by its second row's second and third pixel.
    "bayer_rggb8": ("u1", 1, "COLOR_BayerBG2BGR"), "bayer_bggr8": ("u1", 1, "COLOR_BayerRG2BGR"),
    "bayer_gbrg8": ("u1", 1, "COLOR_BayerGR2BGR"), "bayer_grbg8": ("u1", 1, "COLOR_BayerGB2BGR"),
    "yuv422": ("u1", 2, "COLOR_YUV2BGR_UYVY"), "uyvy": ("u1", 2, "COLOR_YUV2BGR_UYVY"),
    "yuv422_yuy2": ("u1", 2, "COLOR_YUV2BGR_YUY2"), "yuyv": ("u1", 2, "COLOR_YUV2BGR_YUY2"),
}  # fmt: skip


class BadPictureError(ValueError):
    """A message that holds no picture; the message is the reason."""


def suffix_by_content(data: bytes, told: str) -> str:
    """Return the ending of an image file, by its first bytes.

    Raises:
        BadPictureError: it is of no known format.

    """
    for head, suffix in _HEADS.items():
        if data.startswith(head):
            return suffix
    raise BadPictureError(
        f"{len(data)} bytes that are no JPEG, PNG, WebP, BMP or TIFF (format {told!r})"
    )


def as_png(message: Any) -> bytes:
    """Encode a raw picture (fields height, width, encoding, step, data) as PNG.

    Raises:
        BadPictureError: its encoding is unknown, or its size is not that of its data.
        TooLargeError: it has more pixels than the limit.

    """
    import cv2

    height, width, step = int(message.height), int(message.width), int(message.step)
    encoding, data = str(message.encoding), bytes(message.data)
    if encoding not in _ENCODINGS:
        raise BadPictureError(f"encoding {encoding!r}; known are {', '.join(_ENCODINGS)}")
    refuse_large(width, height)
    kind, channels, code = _ENCODINGS[encoding]
    row = width * channels * int(kind[1])
    if not height or not width or step < row or len(data) != step * height:
        raise BadPictureError(
            f"{len(data)} bytes for {width}x{height} pixels of {encoding} in rows of {step} bytes"
        )
    lines = np.frombuffer(data, np.uint8).reshape(height, step)[:, :row]
    big = ">" if getattr(message, "is_bigendian", False) else "<"
    pixels: Any = np.ascontiguousarray(lines).view(f"{big}{kind}").reshape(height, width, channels)
    pixels = pixels.astype(kind)
    if code:
        pixels = cv2.cvtColor(pixels, getattr(cv2, code))
    return bytes(cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes())
