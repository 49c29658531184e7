"""Messages of MCAP recordings as objects, and the pictures in them as the bytes of image files.

Read are CDR of ROS 2, ROS 1, Protobuf and JSON. Raw pictures become PNG, compressed ones stay.
ROS 1's pictures have two forms that never change, so they are read here, without its packages:
little endian, strings and arrays behind their length (wiki.ros.org/ROS/TCPROS, sensor_msgs).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from types import SimpleNamespace
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


class Decoders:
    """What turns messages into objects, one for each schema."""

    def __init__(self) -> None:
        self._factories: list[Any] | None = None
        self._decoders: dict[tuple[str, int], Callable[[bytes], Any]] = {}

    def decode(self, encoding: str, schema: Any, data: bytes) -> Any:
        """Return a message with its fields as attributes.

        Raises:
            BadPictureError: nothing here reads messages of this encoding.

        """
        key = (encoding, schema.id)
        if key not in self._decoders:
            self._decoders[key] = self._decoder(encoding, schema)
        return self._decoders[key](data)

    def _decoder(self, encoding: str, schema: Any) -> Callable[[bytes], Any]:
        if encoding == "json":
            return _from_json
        if encoding == "ros1":
            return _ros1_compressed if schema.name.endswith("CompressedImage") else _ros1_image
        if self._factories is None:
            from mcap_protobuf.decoder import DecoderFactory as Protobuf
            from mcap_ros2.decoder import DecoderFactory as Ros2

            self._factories = [Ros2(), Protobuf()]
        for factory in self._factories:
            decoder: Callable[[bytes], Any] | None = factory.decoder_for(encoding, schema)
            if decoder:
                return decoder
        raise BadPictureError(
            f"messages in {encoding} with a schema in {schema.encoding} cannot be read "
            "(cdr with ros2msg, ros1, protobuf and json can)"
        )


def _from_json(data: bytes) -> Any:
    message = json.loads(data, object_hook=lambda fields: SimpleNamespace(**fields))
    message.data = base64.b64decode(message.data)
    return message


class _Ros1:
    """Takes the fields of a message in turn."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Numbers of a form of `struct`."""
        found = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def bytes(self) -> bytes:
        """Return what lies behind its length.

        Raises:
            ValueError: there is less.

        """
        (length,) = self.numbers("I")
        found = self._data[self._at : self._at + length]
        if len(found) < length:
            raise ValueError(f"{length} bytes are announced, {len(found)} are there")
        self._at += length
        return found

    def text(self) -> str:
        """Return a string."""
        return self.bytes().decode("utf-8", "replace")

    def header(self) -> SimpleNamespace:
        """Return a header's stamp and frame."""
        _, seconds, nanoseconds = self.numbers("III")
        stamp = SimpleNamespace(sec=seconds, nsec=nanoseconds)
        return SimpleNamespace(stamp=stamp, frame_id=self.text())


def _ros1_compressed(data: bytes) -> Any:
    fields = _Ros1(data)
    header = fields.header()
    return SimpleNamespace(header=header, format=fields.text(), data=fields.bytes())


def _ros1_image(data: bytes) -> Any:
    fields = _Ros1(data)
    header = fields.header()
    height, width = fields.numbers("II")
    encoding = fields.text()
    is_bigendian, step = fields.numbers("BI")
    return SimpleNamespace(
        header=header, height=height, width=width, encoding=encoding, is_bigendian=is_bigendian,
        step=step, data=fields.bytes(),
    )  # fmt: skip
