"""Messages of MCAP recordings as objects: CDR of ROS 2, ROS 1, Protobuf and JSON.

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

from tasks.frames.raw_pictures import BadPictureError


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
