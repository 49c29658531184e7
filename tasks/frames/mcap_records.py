"""MCAP files: the topics of a recording, and its messages in the order of the file.

A damaged part of a file is told and passed over, where the format allows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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
    try:
        with storage.explained("read", uri), fs.open(path, "rb") as file:
            summary = make_reader(file).get_summary()
        found = (
            {one.topic: summary.schemas[one.schema_id].name for one in summary.channels.values()}
            if summary
            else {}
        )
    except storage.StorageError as error:  # its end may lead to places that are not there
        log.debug("no summary of a recording: %s", error)
        found = {}
    except Exception as error:  # whatever it trips over in a damaged file
        if is_machine_error(error):
            raise as_machine_error(error, f"reading {storage.redact(uri)}") from error
        found = {}
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


def messages_in(file: IO[bytes]) -> Iterator[Message | str]:
    """Yield messages in the order of the file, and what cannot be read of it, in words."""
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader, breakup_chunk

    known = _Known()
    reader = StreamReader(file, emit_chunks=True).records
    place = 0
    while True:
        try:
            record = next(reader, None)
            if record is None:
                return
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "reading a recording") from error
            yield f"the file is cut or damaged behind its byte {place} ({told_of(error)})"
            return
        place, parts = file.tell(), [record]
        if isinstance(record, Chunk):
            try:
                parts = breakup_chunk(record, validate_crc=True)
            except Exception as error:
                if is_machine_error(error) and not _claims_another_size(record):
                    raise as_machine_error(error, "reading a recording") from error
                yield f"the part of the file before its byte {place} is damaged ({told_of(error)})"
                continue
        yield from filter(None, map(known.message, parts))


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


class _Known:
    """Schemas and channels of a recording, as far as it has been read."""

    def __init__(self) -> None:
        self._schemas: dict[int, Any] = {}
        self._channels: dict[int, Any] = {}

    def message(self, record: Any) -> Message | None:
        """Return a record's message; None for what is none, or has no schema."""
        from mcap.records import Channel, Schema
        from mcap.records import Message as MessageRecord

        if isinstance(record, Schema):
            self._schemas[record.id] = record
        elif isinstance(record, Channel):
            self._channels[record.id] = record
        elif isinstance(record, MessageRecord) and record.channel_id in self._channels:
            channel = self._channels[record.channel_id]
            schema = self._schemas.get(channel.schema_id)
            if schema is not None:
                encoding, time_ns = channel.message_encoding, min(record.log_time, 2**63 - 1)
                return Message(channel.topic, encoding, schema, time_ns, record.data)
        return None


def told_of(error: Exception) -> str:
    """Return what an error says, or what it is called."""
    return str(error) or type(error).__name__
