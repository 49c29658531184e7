"""Pictures in MCAP recordings: which topics have them, and each message's as a file in the cache.

Read are sensor_msgs CompressedImage and Image (CDR of ROS 2, or ROS 1), and Foxglove's
CompressedImage, RawImage and CompressedVideo (Protobuf, JSON, ROS 2). The packages come
with the extra `mcap`; no ROS installation is needed.

Each selected picture becomes a file in the cache once. Compressed pictures keep their bytes, raw
ones become PNG, and frames of video JPEG as those of video files do. What cannot be read is a frame
with the reason: a message that is no picture, a damaged part of the file, and once, at its end, a
file that breaks off. ROS 1's pictures have two forms that never change, so they are read here:
little endian, strings and arrays behind their length (wiki.ros.org/ROS/TCPROS, sensor_msgs).
"""

import base64
import json
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import av
import numpy as np

from sam2_core.machine import of_extra
from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.types import AutolabelError
from tasks.frames.download import ExtractedFrames, Row
from tasks.frames.identity import fits_int64
from tasks.frames.images import TooLargeError, as_jpeg, refuse_large
from tasks.frames.video_streams import damage, pixels_bgr
from tasks.store import storage
from tasks.types import StreamRef
from tasks.wording import counted


def require_mcap() -> None:
    """Raise an AutolabelError that names the package where MCAP files cannot be read."""
    of_extra("mcap", "an MCAP file", "mcap")


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
        for channel in summary.channels.values() if summary else ():
            found[channel.topic] = summary.schemas[channel.schema_id].name
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
        yield from filter(None, (_message(part, schemas, channels) for part in parts))


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
        return partial(_from_ros1, schema.name)
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


# Fields of ROS 1's messages: a form of `struct`, or "" for what lies behind its length.
_ROS1_HEADER = {"seq": "I", "sec": "I", "nsec": "I", "frame_id": ""}
_ROS1 = {
    "sensor_msgs/CompressedImage": {"format": "", "data": ""},
    "sensor_msgs/Image": {
        "height": "I", "width": "I", "encoding": "", "is_bigendian": "B", "step": "I", "data": "",
    },
}  # fmt: skip


def _from_ros1(name: str, data: bytes) -> Any:
    found: dict[str, Any] = {}
    at = 0
    for field, form in (_ROS1_HEADER | _ROS1[name]).items():
        (found[field],) = struct.unpack_from(f"<{form or 'I'}", data, at)
        at += struct.calcsize(f"<{form or 'I'}")
        if not form:
            length, found[field] = found[field], data[at : at + found[field]]
            at += length
    if at > len(data):
        raise ValueError(f"{at} bytes are announced, {len(data)} are there")
    for text in found.keys() & {"format", "encoding"}:
        found[text] = found[text].decode("utf-8", "replace")
    return SimpleNamespace(timestamp=SimpleNamespace(sec=found["sec"], nsec=found["nsec"]), **found)


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

log = logging.getLogger(__name__)


class BadRecordingError(ValueError):
    """A recording of which nothing can be read; the message is the reason."""


def suffix_by_content(data: bytes, told: str) -> str:
    """Return the ending of an image file, by its first bytes.

    Raises:
        BadPictureError: it is of no known format.

    """
    for head, suffix in _HEADS.items():
        if data.startswith(head):
            return suffix
    raise BadPictureError(
        f"{len(data)} bytes, neither JPEG, PNG, WebP, BMP nor TIFF (format {told!r})"
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


class PacketDecoder:
    """Decodes the packets of a topic; a picture may come out some messages after its packet."""

    def __init__(self, wanted: Callable[[int], bool]) -> None:
        self._wanted = wanted
        self._context: Any = None
        self._times: dict[int, int] = {}  # of packets whose picture has not come out yet

    def feed(self, number: int, time_ns: int, codec: str, data: bytes) -> Iterator[Shot]:
        """Decode a packet; a damaged one costs the pictures that need it."""
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
                number, time_ns,
                problem=f"this frame of the video cannot be decoded: {damage(error)}",
            )  # fmt: skip

    def _out(self, frames: Any) -> Iterator[Shot]:
        for frame in frames:
            number = int(frame.pts)
            time_ns = self._times.pop(number, 0)
            if not self._wanted(number):
                yield Shot(number, time_ns)
                continue
            yield Shot(number, time_ns, as_jpeg(pixels_bgr(frame)), ".jpg")

    def end(self) -> Iterator[Shot]:
        """Yield what the decoder still holds, and what never came out."""
        if self._context is not None:
            try:
                yield from self._out(self._context.decode(None))
            except av.FFmpegError as error:
                log.debug("the end of a video: %s", damage(error))
        for number, time_ns in sorted(self._times.items()):
            yield Shot(number, time_ns, problem="this frame of the video could not be decoded")


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
    decoders: dict[tuple[str, int], Callable[[bytes], Any]] = {}
    video, number, seen, last_ns = PacketDecoder(wanted), 0, False, 0
    first_problem = ""
    with path.open("rb") as file:
        for item in messages_in(file):
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
    item: Message,
    number: int,
    decoders: dict[tuple[str, int], Callable[[bytes], Any]],
    video: PacketDecoder,
    wanted: Callable[[int], bool],
) -> Iterator[Shot]:
    kind = KINDS.get(item.schema.name, "")
    if kind != VIDEO and not wanted(number):
        yield Shot(number, item.time_ns)
        return
    try:
        key = (item.encoding, item.schema.id)
        if key not in decoders:
            decoders[key] = decoder_of(item.encoding, item.schema)
        message = decoders[key](item.data)
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
        yield Shot(number, item.time_ns, problem=f"the message is damaged: {reason_of(error)}")


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


def extract_stream(
    path: Path, ref: StreamRef, first: int, extracted: ExtractedFrames
) -> tuple[list[Row], int]:
    """Write the selected pictures of a topic into the cache.

    Args:
        path: of the recording on this machine.
        ref: which topic.
        first: index of its first picture: those of earlier recordings of this camera.
        extracted: where to.

    Returns:
        What was found of each, and how many pictures there are.

    Raises:
        BadRecordingError: nothing in the file can be read, or nothing that is selected, and it is
            damaged before that.
        CacheError: the cache cannot be written.

    """
    chosen, count = ref.selection, 0
    rows: list[Row] = []
    gap: Shot | None = None
    for shot in shots_of(path, ref.stream, lambda number: first + number in chosen):
        number, problem = shot.number, shot.problem
        count = max(count, number + 1)
        gap = shot if shot.is_gap else gap
        if first + number in chosen:
            name = "" if problem else extracted.keep(number, shot.data, shot.suffix)
            problem = f"{_topic_text(ref)}, message number {number}: {problem}" if problem else ""
            rows.append((number, name, (0, 0), len(shot.data), shot.time_ns, problem))
    if gap and not rows and (chosen.stop is None or first + gap.number < chosen.stop):
        whole = counted(gap.number, "picture")
        raise BadRecordingError(
            f"{_topic_text(ref)}: {gap.problem}; before that are {whole}, and --frames {chosen} "
            "takes none of them"
        )
    return rows, count


def _topic_text(ref: StreamRef) -> str:
    return f"{ref.uri.rpartition('/')[2]}, topic {ref.stream}"
