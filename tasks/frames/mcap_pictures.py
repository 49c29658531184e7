"""Pictures in MCAP recordings: which topics have them, and each message's as a file's bytes.

Read are sensor_msgs CompressedImage and Image (CDR of ROS 2, or ROS 1), and Foxglove's
CompressedImage, RawImage and CompressedVideo (Protobuf, JSON, ROS 2). The packages come
with the extra `mcap`; no ROS installation is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.types import AutolabelError
from tasks.frames.images import TooLargeError
from tasks.frames.mcap_messages import Decoders
from tasks.frames.raw_pictures import BadPictureError, as_png, suffix_by_content
from tasks.frames.timestamps import fits_int64
from tasks.store import storage

COMPRESSED, VIDEO, RAW = "compressed", "video", "raw"
KINDS = {
    "sensor_msgs/CompressedImage": COMPRESSED,
    "sensor_msgs/Image": RAW,
    "sensor_msgs/msg/CompressedImage": COMPRESSED,
    "foxglove_msgs/msg/CompressedImage": COMPRESSED,
    "foxglove.CompressedImage": COMPRESSED,
    "foxglove_msgs/msg/CompressedVideo": VIDEO,
    "foxglove.CompressedVideo": VIDEO,
    "sensor_msgs/msg/Image": RAW,
    "foxglove_msgs/msg/RawImage": RAW,
    "foxglove.RawImage": RAW,
}
_INSTALL = "pip install 'sam2-autolabel[mcap]' (in a checkout: make extra-mcap)"

log = logging.getLogger(__name__)


class BadRecordingError(ValueError):
    """A recording of which nothing can be read; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a topic.

    Attributes:
        number: of the message in its topic.
        time_ns: when it was taken; of what has no time, when it was written.
        data: bytes of an image file; b"" for a picture that is not wanted.
        suffix: ending of such a file, with the dot.
        problem: why there is no picture.
        is_gap: the file is damaged here, and not only a message in it.

    """

    number: int
    time_ns: int
    data: bytes = b""
    suffix: str = ""
    problem: str = ""
    is_gap: bool = False


def require_mcap() -> None:
    """Raise an AutolabelError that names the package where MCAP files cannot be read."""
    try:
        import mcap  # noqa: F401
    except ImportError as error:
        raise AutolabelError(f"MCAP files need the package mcap: {_INSTALL}") from error


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
        for item in _items(file):
            if isinstance(item, _Message):
                found.setdefault(item.topic, item.schema.name)
    if not found:
        raise AutolabelError(f"{storage.redact(uri)} is no MCAP file, or none of it can be read")
    return found


@dataclass(frozen=True, slots=True)
class _Message:
    topic: str
    encoding: str
    schema: Any
    time_ns: int
    data: bytes


def _items(file: IO[bytes]) -> Iterator[_Message | str]:
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
            yield f"the file is cut or damaged behind its byte {place} ({_told(error)})"
            return
        place, parts = file.tell(), [record]
        if isinstance(record, Chunk):
            try:
                parts = breakup_chunk(record, validate_crc=True)
            except Exception as error:  # noqa: BLE001
                yield f"the part of the file before its byte {place} is damaged ({_told(error)})"
                continue
        yield from filter(None, map(known.message, parts))


class _Known:
    """Schemas and channels of a recording, as far as it has been read."""

    def __init__(self) -> None:
        self._schemas: dict[int, Any] = {}
        self._channels: dict[int, Any] = {}

    def message(self, record: Any) -> _Message | None:
        """Return a record's message; None for what is none, or has no schema."""
        from mcap.records import Channel, Message, Schema

        if isinstance(record, Schema):
            self._schemas[record.id] = record
        elif isinstance(record, Channel):
            self._channels[record.id] = record
        elif isinstance(record, Message) and record.channel_id in self._channels:
            channel = self._channels[record.channel_id]
            schema = self._schemas.get(channel.schema_id)
            if schema is not None:
                encoding, time_ns = channel.message_encoding, min(record.log_time, 2**63 - 1)
                return _Message(channel.topic, encoding, schema, time_ns, record.data)
        return None


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def shots_of(path: Path, topic: str, wanted: Callable[[int], bool]) -> Iterator[Shot]:
    """Yield the pictures of a topic; those of video may come a few messages late.

    Args:
        path: of the recording.
        topic: which.
        wanted: whether the picture of a number is to be decoded; others come without one.

    Raises:
        BadRecordingError: not a single message of the topic can be read.

    """
    require_mcap()
    decoders, video, number, seen, last_ns = Decoders(), _Video(wanted), 0, False, 0
    first_problem = ""
    with path.open("rb") as file:
        for item in _items(file):
            if isinstance(item, str):
                first_problem = first_problem or item
                if seen:
                    yield Shot(number, last_ns, problem=item, is_gap=True)
                    number += 1
                continue
            if item.topic != topic:
                continue
            seen, last_ns = True, item.time_ns
            yield from _shots(item, number, decoders, video, wanted)
            number += 1
    yield from video.end()
    if not seen:
        why = f": {first_problem}" if first_problem else ""
        raise BadRecordingError(f"no message of topic {topic} can be read{why}")


def _shots(
    item: _Message, number: int, decoders: Decoders, video: _Video, wanted: Callable[[int], bool]
) -> Iterator[Shot]:
    kind = KINDS.get(item.schema.name, "")
    if kind != VIDEO and not wanted(number):
        yield Shot(number, item.time_ns)
        return
    try:
        message = decoders.decode(item.encoding, item.schema, item.data)
        time_ns = _stamp_ns(message) or item.time_ns
        if kind == VIDEO:
            yield from video.feed(number, time_ns, str(message.format), bytes(message.data))
            return
        if kind == RAW:
            data, suffix = as_png(message), ".png"
        else:
            data = bytes(message.data)
            suffix = suffix_by_content(data, str(message.format))
        yield Shot(number, time_ns, data, suffix)
    except (BadPictureError, TooLargeError) as error:
        yield Shot(number, item.time_ns, problem=str(error))
    except (AutolabelError, MemoryError):
        raise
    except Exception as error:
        if is_machine_error(error):
            raise as_machine_error(error, "decoding a message") from error
        yield Shot(number, item.time_ns, problem=f"the message is damaged: {_told(error)}")


def _stamp_ns(message: Any) -> int:
    """When a picture was taken, as its message says; 0 where it does not."""
    header = getattr(message, "header", None)
    stamp = getattr(header, "stamp", None) or getattr(message, "timestamp", None)
    if stamp is None:
        return 0
    for seconds, nanoseconds in (("sec", "nanosec"), ("seconds", "nanos"), ("sec", "nsec")):
        if hasattr(stamp, seconds) and hasattr(stamp, nanoseconds):
            whole, rest = getattr(stamp, seconds), getattr(stamp, nanoseconds)
            time_ns = int(whole) * 1_000_000_000 + int(rest)
            return time_ns if fits_int64(time_ns) else 0
    return 0


class _Video:
    """Decodes the packets of a topic; a picture may come out some messages after its packet."""

    def __init__(self, wanted: Callable[[int], bool]) -> None:
        self._wanted = wanted
        self._context: Any = None
        self._times: dict[int, int] = {}  # of packets whose picture has not come out yet

    def feed(self, number: int, time_ns: int, codec: str, data: bytes) -> Iterator[Shot]:
        """Decode a packet; a damaged one costs the pictures that need it."""
        av = _av()
        if self._context is None:
            names = {"h265": "hevc", "hevc": "hevc", "h264": "h264", "av1": "av1", "vp9": "vp9"}
            if codec.lower() not in names:
                raise BadPictureError(f"video in {codec!r}; known are {', '.join(names)}")
            self._context = av.CodecContext.create(names[codec.lower()], "r")
            self._context.thread_count = 1  # several hold pictures back
        packet = av.Packet(data)
        packet.pts = packet.dts = number
        self._times[number] = time_ns
        try:
            yield from self._out(self._context.decode(packet))
        except av.FFmpegError as error:
            del self._times[number]
            yield Shot(
                number, time_ns, problem=f"this frame of the video cannot be decoded: {error}"
            )

    def _out(self, frames: Any) -> Iterator[Shot]:
        for frame in frames:
            number = int(frame.pts)
            time_ns = self._times.pop(number, 0)
            if not self._wanted(number):
                yield Shot(number, time_ns)
                continue
            import cv2

            from tasks.frames.raw_pictures import JPEG_QUALITY

            pixels = frame.to_ndarray(format="bgr24")
            data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
            yield Shot(number, time_ns, data.tobytes(), ".jpg")

    def end(self) -> Iterator[Shot]:
        """Yield what the decoder still holds, and what never came out."""
        if self._context is not None:
            try:
                yield from self._out(self._context.decode(None))
            except _av().FFmpegError as error:
                log.debug("the end of a video: %s", error)
        for number, time_ns in sorted(self._times.items()):
            reason = "this frame of the video could not be decoded"
            yield Shot(number, time_ns, problem=reason)


def _av() -> Any:
    try:
        import av
        import av.error
    except ImportError as error:
        raise AutolabelError(f"compressed video needs the package av: {_INSTALL}") from error
    return av
