"""MCAP files: the topics of a recording, and its messages in the order of the file, as objects.

A damaged part of a file is passed over where the format allows it, and said so. Messages are CDR of
ROS 2, ROS 1, Protobuf or JSON. ROS 1's pictures have two forms that never change, so they are read
here, without its packages: little endian, strings and arrays behind their length
(wiki.ros.org/ROS/TCPROS, sensor_msgs).
"""

from __future__ import annotations

import base64
import io
import json
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.types import AutolabelError
from tasks.store import storage

INSTALL = "pip install 'sam2-autolabel[mcap]' (in a checkout: make extra-mcap)"

log = logging.getLogger(__name__)


def require_mcap() -> None:
    """Raise an AutolabelError that names the package where MCAP files cannot be read."""
    try:
        import mcap  # noqa: F401
    except ImportError as error:
        raise AutolabelError(f"MCAP files need the package mcap: {INSTALL}") from error


def topics_of(uri: str, fetched: Callable[[], Path]) -> dict[str, str]:
    """Schemas of a recording's topics, from its summary where it has one.

    Args:
        uri: of the recording.
        fetched: brings it to this machine, where it has to be read as a whole.

    Raises:
        AutolabelError: it cannot be read; names the file.

    """
    require_mcap()
    from mcap.reader import make_reader

    fs, path = storage.filesystem(uri)
    found: dict[str, str] = {}
    try:
        with storage.explained("read", uri), fs.open(path, "rb") as file:
            summary = make_reader(file).get_summary()
        for one in summary.channels.values() if summary else ():
            found[one.topic] = summary.schemas[one.schema_id].name
    except Exception as error:  # whatever it trips over in a damaged file
        # Its end may lead to places that are not there: storage's word says nothing.
        if is_machine_error(error) and not isinstance(error, storage.StorageError):
            raise as_machine_error(error, f"reading {storage.redact(uri)}") from error
        log.debug("no summary of a recording: %s", error)
        found.clear()
    if found:
        return found
    with fetched().open("rb") as file:
        for item in messages_in(file):
            if isinstance(item, Message):
                found.setdefault(item.topic, item.schema.name)
    if not found:
        raise AutolabelError(f"{storage.redact(uri)} is no MCAP file, or none of it can be read")
    return found


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a recording, not decoded yet."""

    topic: str
    encoding: str
    schema: Any
    time_ns: int
    data: bytes


class BadPictureError(ValueError):
    """A message that holds no picture; the message is the reason."""


def messages_in(file: IO[bytes]) -> Iterator[Message | str]:
    """Yield messages in the order of the file, and what cannot be read of it, in words."""
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader, breakup_chunk

    schemas: dict[int, Any] = {}
    channels: dict[int, Any] = {}
    reader = StreamReader(file, emit_chunks=True).records
    byte = 0
    while True:
        try:
            record = next(reader, None)
            if record is None:
                return
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "reading a recording") from error
            yield f"the file is cut or damaged behind its byte {byte} ({reason_of(error)})"
            return
        byte, parts = file.tell(), [record]
        if isinstance(record, Chunk):
            try:
                parts = breakup_chunk(record, validate_crc=True)
            except Exception as error:
                if is_machine_error(error) and not _claims_another_size(record):
                    raise as_machine_error(error, "reading a recording") from error
                yield f"the part of the file before its byte {byte} is damaged ({reason_of(error)})"
                continue
        yield from filter(None, (_message(one, schemas, channels) for one in parts))


def _message(record: Any, schemas: dict[int, Any], channels: dict[int, Any]) -> Message | None:
    """Return a record's message; None for what is none, or has no schema, which is remembered."""
    from mcap.records import Channel, Schema
    from mcap.records import Message as MessageRecord

    if isinstance(record, Schema):
        schemas[record.id] = record
    elif isinstance(record, Channel):
        channels[record.id] = record
    elif isinstance(record, MessageRecord) and record.channel_id in channels:
        channel = channels[record.channel_id]
        if channel.schema_id in schemas:
            encoding, time_ns = channel.message_encoding, min(record.log_time, 2**63 - 1)
            schema = schemas[channel.schema_id]
            return Message(channel.topic, encoding, schema, time_ns, record.data)
    return None


def _claims_another_size(chunk: Any) -> bool:
    """Whether compressed data say that they are larger than the chunk: damage may ask for all."""
    if chunk.compression != "zstd":
        return False
    import zstandard

    try:
        claimed = zstandard.frame_content_size(chunk.data)
    except zstandard.ZstdError:
        return True
    return claimed not in (-1, chunk.uncompressed_size)


def reason_of(error: Exception) -> str:
    """Return the message of an error, or its name."""
    return str(error) or type(error).__name__


def decoder_of(encoding: str, schema: Any) -> Callable[[bytes], Any]:
    """Return what makes an object, with its fields as attributes, of a message of a schema.

    Raises:
        BadPictureError: nothing here reads messages of this encoding.

    """
    if encoding == "json":
        return _from_json
    if encoding == "ros1":
        return _ros1_compressed if schema.name.endswith("CompressedImage") else _ros1_image
    from mcap_protobuf.decoder import DecoderFactory as Protobuf
    from mcap_ros2.decoder import DecoderFactory as Ros2

    for factory in (Ros2(), Protobuf()):
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


class _Ros1(io.BytesIO):
    """Takes the fields of a message in turn."""

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Numbers of a form of `struct`."""
        return struct.unpack(f"<{form}", self.read(struct.calcsize(f"<{form}")))

    def bytes(self) -> bytes:
        """Return what lies behind its length.

        Raises:
            ValueError: there is less.

        """
        (length,) = self.numbers("I")
        found = self.read(length)
        if len(found) < length:
            raise ValueError(f"{length} bytes are announced, {len(found)} are there")
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
