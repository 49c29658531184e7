"""Pictures in MCAP recordings: which topics have them, and each message's as a file in the cache.

Read are sensor_msgs CompressedImage and Image (CDR of ROS 2, or ROS 1), and Foxglove's
CompressedImage, RawImage and CompressedVideo (Protobuf, JSON, ROS 2). The packages come
with the extra `mcap`; no ROS installation is needed.

Each selected picture becomes a file in the cache once. Compressed pictures keep their bytes, raw
ones become PNG, and frames of video JPEG as those of video files do. What cannot be read is a frame
with the reason: a message that is no picture, a damaged part of the file, and once, at its end, a
file that breaks off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.types import AutolabelError
from tasks.frames.cached import ExtractedFrames, Row
from tasks.frames.download import ChangedError, fetch
from tasks.frames.identity import file_version
from tasks.frames.images import TooLargeError
from tasks.frames.mcap_messages import BadPictureError, Decoders, as_png, suffix_by_content
from tasks.frames.mcap_records import Message, messages_in, require_mcap, told_of
from tasks.frames.mcap_video import PacketDecoder, Shot
from tasks.frames.source_names import fits_int64
from tasks.store import storage
from tasks.types import FrameRef, StreamRef
from tasks.wording import counted

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


class BadRecordingError(ValueError):
    """A recording of which nothing can be read; the message is the reason."""


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
    decoders, video, number, seen, last_ns = Decoders(), PacketDecoder(wanted), 0, False, 0
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
    decoders: Decoders,
    video: PacketDecoder,
    wanted: Callable[[int], bool],
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
        yield Shot(number, item.time_ns, problem=f"the message is damaged: {told_of(error)}")


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


__all__ = ["BadRecordingError", "frames_of_stream"]


def frames_of_stream(ref: StreamRef, first: int) -> tuple[list[FrameRef], int]:
    """Extract the selected pictures of a topic.

    Args:
        ref: which.
        first: index of its first picture: those of earlier recordings of this camera.

    Returns:
        The selected frames, and how many pictures there are.

    Raises:
        BadRecordingError: nothing in the file can be read, or nothing that is selected, and it is
            damaged before that.
        StorageError: it cannot be had, or changed meanwhile.
        CacheError: the cache cannot be written.

    """
    extracted, chosen = ExtractedFrames(ref.uri, ref.etag, ref.stream), ref.selection
    record = f"{first}-{chosen.start}-{chosen.stop}-{chosen.step}"
    found = extracted.read_record(record)
    if found is None:
        path = fetch(ref.uri, ref.etag, ref.size_bytes, intact=True)
        rows: list[Row] = []
        count = 0
        gap: Shot | None = None
        for shot in shots_of(path, ref.stream, lambda number: first + number in chosen):
            count = max(count, shot.number + 1)
            gap = shot if shot.is_gap else gap
            if first + shot.number in chosen:
                rows.append(_kept(extracted, shot))
        if gap and not rows and (chosen.stop is None or first + gap.number < chosen.stop):
            whole = counted(gap.number, "picture")
            raise BadRecordingError(
                f"{_place(ref)}: {gap.problem}; before that are {whole}, and --frames {chosen} "
                "takes none of them"
            )
        if storage.is_local(ref.uri) and ref.etag not in {"", file_version(path)}:
            raise ChangedError(ref.uri)
        extracted.write_record(record, rows, count)
        found = rows, count
    rows, count = found
    return [_frame(ref, extracted.folder, first, row) for row in sorted(rows)], count


def _kept(extracted: ExtractedFrames, shot: Shot) -> Row:
    name = "" if shot.problem else extracted.keep(shot.number, shot.data, shot.suffix)
    return shot.number, name, (0, 0), len(shot.data), shot.time_ns, shot.problem


def _frame(ref: StreamRef, folder: Path, first: int, row: Row) -> FrameRef:
    number, name, _, size_bytes, time_ns, problem = row
    if problem:
        problem = f"{_place(ref)}, message number {number}: {problem}"
    return FrameRef(
        ref.sequence_id, ref.camera, first + number, time_ns, f"{ref.address}#frame={number}",
        (0, 0), ref.etag, size_bytes, str(folder / name) if name else "", problem,
    )  # fmt: skip


def _place(ref: StreamRef) -> str:
    return f"{ref.uri.rpartition('/')[2]}, topic {ref.stream}"
